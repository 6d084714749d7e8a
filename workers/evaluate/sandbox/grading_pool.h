#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/tasks/task.h"
#include "workers/evaluate/sandbox/host_turns.h"

namespace jforge {

struct GradedAnswer {
  std::int64_t ticket = 0;
  Verdict verdict;
};

/// Grades answers on its own threads, or in submit() if the task runs no code. An answer that times
/// out is graded once more with no other program of this pool (with turns: of all processes that
/// share them) running, because load is not its fault; the second verdict counts. After Interrupted
/// from the runner, new answers are dropped; take() and drain() return earlier verdicts.
/// Thread-safe.
class GradingPool {
 public:
  /// `threads` >= 1: concurrent programs, at most share_of_cores(). `runner` may be null if no task
  /// runs code. `runner` and `turns`, which every program waits for, must outlive the pool.
  GradingPool(CodeRunner* runner, int threads, const HostTurns* turns = nullptr);
  GradingPool(const GradingPool&) = delete;
  GradingPool& operator=(const GradingPool&) = delete;
  /// Waits for running programs and drops the others.
  ~GradingPool();

  /// `task` and `record` must live until the verdict is returned. Blocks while four answers per
  /// thread are queued. Throws the first error of Task::grade, which ends grading.
  void submit(std::int64_t ticket, const Task& task, const std::optional<std::string>& answer,
              const TaskRecord& record);
  /// Whether submit() would block for code.
  [[nodiscard]] bool full() const;
  /// Returns new verdicts in any order; does not block. Throws as submit().
  [[nodiscard]] std::vector<GradedAnswer> take();
  /// Waits until everything is graded. Throws as submit().
  [[nodiscard]] std::vector<GradedAnswer> drain();
  /// Grows with every attempt and while a program waits for its turn.
  [[nodiscard]] std::uint64_t signs_of_life() const noexcept { return signs_; }

 private:
  struct Job {
    std::int64_t ticket = 0;
    const Task* task = nullptr;
    std::optional<std::string> answer;
    const TaskRecord* record = nullptr;
    bool again = false;
  };

  void work();
  [[nodiscard]] bool next_job(std::unique_lock<std::mutex>& lock, Job& job);
  [[nodiscard]] Verdict try_job(const Job& job);
  void finish(const Job& job, Verdict verdict);
  void throw_if_failed();

  CodeRunner* runner_;
  const HostTurns* turns_;
  std::size_t queue_limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  std::deque<Job> again_;
  std::vector<GradedAnswer> graded_;
  int running_ = 0;
  bool alone_ = false;  ///< A second attempt is running.
  /// The pool is being destroyed or the runner was interrupted.
  std::atomic<bool> stopping_ = false;
  std::atomic<std::uint64_t> signs_ = 0;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

/// Returns the cores for one of `processes` processes: at most an equal share of the machine's and
/// the process's affinity, at least 1.
[[nodiscard]] int share_of_cores(int processes);

}  // namespace jforge
