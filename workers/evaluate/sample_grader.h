#pragma once

/// Grades decoded samples, in parallel to decoding if programs are run.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "data/tasks/task.h"
#include "workers/evaluate/sample_record.h"
#include "workers/evaluate/sandbox/grading_pool.h"

namespace jforge {

struct GradedSample {
  std::size_t run = 0;  ///< The caller's index of task and method.
  TimedSample sample;
};

/// Not thread-safe.
class SampleGrader {
 public:
  /// `runner` may be null if no task runs code. `threads` programs run at a time, each after
  /// getting a turn if `turns` is set. Runner, turns and arguments of add() must outlive the
  /// grader.
  SampleGrader(CodeRunner* runner, int threads, const HostTurns* turns = nullptr)
      : pool_(runner, threads, turns) {}

  /// Extracts the answer from the text, cut at the task's stop texts, and submits it. Throws errors
  /// of grading any answer.
  void add(const Task& task, const TaskRecord& problem, GradedSample sample);
  /// Returns newly graded samples with complete records, in any order. Throws as add().
  [[nodiscard]] std::vector<GradedSample> take();
  /// Whether add() would block.
  [[nodiscard]] bool full() const { return pool_.full(); }
  [[nodiscard]] std::uint64_t signs_of_life() const noexcept { return pool_.signs_of_life(); }
  /// Whether samples were added and not yet taken.
  [[nodiscard]] bool pending() const noexcept { return !waiting_.empty(); }

 private:
  std::int64_t next_ticket_ = 0;
  std::map<std::int64_t, GradedSample> waiting_;
  GradingPool pool_;
};

}  // namespace jforge
