#include "workers/evaluate/sandbox/grading_pool.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "runtime/error.h"
#include "runtime/log.h"

namespace jforge {

GradingPool::GradingPool(CodeRunner* runner, int threads, const HostTurns* turns)
    : runner_(runner),
      turns_(turns),
      queue_limit_(4 * static_cast<std::size_t>(std::max(threads, 1))) {
  expect(threads >= 1, "a grading pool has at least one thread");
  if (runner == nullptr) {
    return;
  }
  try {
    for (int thread = 0; thread < threads; ++thread) {
      threads_.emplace_back([this] { work(); });
    }
  } catch (const std::system_error& error) {
    if (threads_.empty()) {
      throw EnvironmentError(fmt::format("cannot start a grading thread: {}", error.what()));
    }
    log_warn("programs are graded by {} threads instead of {}: {}", threads_.size(), threads,
             error.what());
  }
}

GradingPool::~GradingPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void GradingPool::submit(std::int64_t ticket, const Task& task,
                         const std::optional<std::string>& answer, const TaskRecord& record) {
  if (!task.runs_code()) {
    Verdict verdict = task.grade(answer, record, nullptr);
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    graded_.push_back({ticket, std::move(verdict)});
    return;
  }
  expect(runner_ != nullptr, "task '" + task.name() + "' runs code: the pool needs a runner");
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return failure_ != nullptr || stopping_ || queue_.size() < queue_limit_; });
  throw_if_failed();
  if (stopping_) {
    return;
  }
  queue_.push_back({ticket, &task, answer, &record, false});
  changed_.notify_all();
}

bool GradingPool::full() const {
  const std::lock_guard lock(mutex_);
  return failure_ == nullptr && !stopping_ && queue_.size() >= queue_limit_;
}

std::vector<GradedAnswer> GradingPool::take() {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  return std::exchange(graded_, {});
}

std::vector<GradedAnswer> GradingPool::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return running_ == 0 &&
           (failure_ != nullptr || stopping_ || (queue_.empty() && again_.empty()));
  });
  throw_if_failed();
  return std::exchange(graded_, {});
}

void GradingPool::throw_if_failed() {
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

bool GradingPool::next_job(std::unique_lock<std::mutex>& lock, Job& job) {
  // First attempts take precedence: a second attempt stops all other threads.
  changed_.wait(lock, [&] {
    return stopping_ || failure_ != nullptr || (!alone_ && !queue_.empty()) ||
           (running_ == 0 && !again_.empty());
  });
  if (stopping_ || failure_ != nullptr) {
    return false;
  }
  std::deque<Job>& source = queue_.empty() ? again_ : queue_;
  alone_ = queue_.empty();
  job = std::move(source.front());
  source.pop_front();
  ++running_;
  return true;
}

Verdict GradingPool::try_job(const Job& job) {
  if (turns_ == nullptr) {
    return job.task->grade(job.answer, *job.record, runner_);
  }
  const std::optional<HostTurn> turn = turns_->wait(job.again, [&] {
    ++signs_;
    return stopping_.load();
  });
  if (!turn) {
    throw Interrupted("grading: ended while a program waited for its turn");
  }
  return job.task->grade(job.answer, *job.record, runner_);
}

void GradingPool::work() {
  std::unique_lock lock(mutex_);
  Job job;
  while (next_job(lock, job)) {
    changed_.notify_all();
    lock.unlock();
    Verdict verdict;
    std::exception_ptr failure;
    bool interrupted = false;
    try {
      verdict = try_job(job);
    } catch (const Interrupted&) {
      interrupted = true;
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --running_;
    ++signs_;
    alone_ = false;
    if (interrupted) {
      stopping_ = true;
    } else if (failure == nullptr) {
      finish(job, std::move(verdict));
    } else if (failure_ == nullptr) {
      failure_ = failure;
    }
    changed_.notify_all();
  }
}

void GradingPool::finish(const Job& job, Verdict verdict) {
  const bool timed_out =
      verdict.status == VerdictStatus::timeout || verdict.base_status == VerdictStatus::timeout;
  if (timed_out && !job.again) {
    again_.push_back(job);
    again_.back().again = true;
    return;
  }
  graded_.push_back({job.ticket, std::move(verdict)});
}

int share_of_cores(int processes) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int machine = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int own =
      sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : machine;
  return std::max(1, std::min(own, machine / std::max(1, processes)));
}

}  // namespace jforge
