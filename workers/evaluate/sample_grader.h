#pragma once

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
  std::size_t run = 0;  ///< The caller's index.
  TimedSample sample;
};

/// Not thread-safe.
class SampleGrader {
 public:
  /// `runner` may be null if no task runs code. At most `threads` programs run at a time, each with
  /// a turn if `turns` is set. Runner, turns and arguments of add() must outlive the grader.
  SampleGrader(CodeRunner* runner, int threads, const HostTurns* turns = nullptr)
      : pool_(runner, threads, turns) {}

  /// Extracts the answer from the text, cut at stop texts, and submits it. Throws errors of any
  /// grading.
  void add(const Task& task, const TaskRecord& problem, GradedSample sample);
  /// Newly graded samples, in any order. Throws as add().
  [[nodiscard]] std::vector<GradedSample> take();
  [[nodiscard]] bool full() const { return pool_.full(); }
  [[nodiscard]] std::uint64_t signs_of_life() const noexcept { return pool_.signs_of_life(); }
  /// Whether samples are not yet taken.
  [[nodiscard]] bool pending() const noexcept { return !waiting_.empty(); }

 private:
  std::int64_t next_ticket_ = 0;
  std::map<std::int64_t, GradedSample> waiting_;
  GradingPool pool_;
};

}  // namespace jforge
