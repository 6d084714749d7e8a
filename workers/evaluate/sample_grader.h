#pragma once

/// Grades decoded samples: beside decoding where that runs programs.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "data/tasks/task.h"
#include "workers/evaluate/sample_record.h"
#include "workers/evaluate/sandbox/grading_pool.h"

namespace jforge {

/// A decoded sample and what becomes of it.
struct GradedSample {
  std::size_t run = 0;  ///< The caller's own number for its task and method.
  TimedSample sample;
};

/// Not thread-safe.
class SampleGrader {
 public:
  /// `runner` may be null when no task runs code; `threads` programs are run at a time, each when
  /// it has its turn, unless `turns` is null. The runner, the turns and what is given to add() must
  /// outlive the grader.
  SampleGrader(CodeRunner* runner, int threads, const HostTurns* turns = nullptr)
      : pool_(runner, threads, turns) {}

  /// Extracts the answer of `sample`'s text, cut at the task's stop texts, and has it graded.
  /// Throws what grading any answer threw.
  void add(const Task& task, const TaskRecord& problem, GradedSample sample);
  /// Samples graded since the last time, in any order: records complete. Throws as add().
  [[nodiscard]] std::vector<GradedSample> take();
  /// Whether add() would wait for a program to end.
  [[nodiscard]] bool full() const { return pool_.full(); }
  /// GradingPool::signs_of_life.
  [[nodiscard]] std::uint64_t signs_of_life() const noexcept { return pool_.signs_of_life(); }
  /// Added and not taken.
  [[nodiscard]] bool pending() const noexcept { return !waiting_.empty(); }

 private:
  std::int64_t next_ticket_ = 0;
  std::map<std::int64_t, GradedSample> waiting_;
  GradingPool pool_;
};

}  // namespace jforge
