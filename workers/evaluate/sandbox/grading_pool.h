#pragma once

/// Grading beside decoding: answers go in as they are finished, verdicts come out.

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

/// Threads that grade answers of tasks that run code; those of other tasks are graded by the thread
/// that hands them in. A time-out is graded once more with no other program of this pool running,
/// nor, with turns, of any other process that shares them, and only that second verdict counts:
/// other programs' load is not the answer's fault. When the runner throws Interrupted the pool
/// grades nothing more: take() and drain() give what came out before, and what is handed in is
/// dropped. Its methods may be called from several threads.
class GradingPool {
 public:
  /// `threads` >= 1: programs at a time; at most the cores that are this process's share of the
  /// machine (share_of_cores). `runner` may be null when no task runs code; it and `turns`, which
  /// every program waits for unless it is null, must outlive the pool.
  GradingPool(CodeRunner* runner, int threads, const HostTurns* turns = nullptr);
  GradingPool(const GradingPool&) = delete;
  GradingPool& operator=(const GradingPool&) = delete;
  /// Waits for the programs that are running; what has not begun is dropped.
  ~GradingPool();

  /// Hands an answer in; `task` and `record` must stay until its verdict has come out. Waits while
  /// four answers for each thread are waiting. Throws what Task::grade threw for any answer (the
  /// first such error; the pool then grades nothing more).
  void submit(std::int64_t ticket, const Task& task, const std::optional<std::string>& answer,
              const TaskRecord& record);
  /// Whether submit() would wait for an answer of a task that runs code.
  [[nodiscard]] bool full() const;
  /// Verdicts that have come out since the last time, in any order. Does not wait. Throws as
  /// submit().
  [[nodiscard]] std::vector<GradedAnswer> take();
  /// Waits until everything handed in is graded, and takes it. Throws as submit().
  [[nodiscard]] std::vector<GradedAnswer> drain();
  /// Grows with every finished try and while a program waits for its turn: signs of life.
  [[nodiscard]] std::uint64_t signs_of_life() const noexcept { return signs_; }

 private:
  struct Job {
    std::int64_t ticket = 0;
    const Task* task = nullptr;
    std::optional<std::string> answer;
    const TaskRecord* record = nullptr;
    bool again = false;  ///< It timed out once.
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
  bool alone_ = false;  ///< The one that runs is a second try.
  /// Nothing more is graded: the pool ends, or the runner was interrupted.
  std::atomic<bool> stopping_ = false;
  std::atomic<std::uint64_t> signs_ = 0;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

/// Cores for each of `processes` processes that share this machine: those this process may run on,
/// at most an equal part of the machine's, at least 1.
[[nodiscard]] int share_of_cores(int processes);

}  // namespace jforge
