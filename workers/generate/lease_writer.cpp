#include "workers/generate/lease_writer.h"

#include <chrono>
#include <cstdint>

namespace jforge {

LeaseWriter::LeaseWriter(Write write) : write_(std::move(write)), thread_([this] { run(); }) {}

LeaseWriter::~LeaseWriter() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LeaseWriter::add(Lease lease, std::vector<Trajectory> trajectories) {
  std::unique_lock lock(mutex_);
  wait_for_at_most(kMostWaiting, lock);
  leases_.emplace_back(std::move(lease), std::move(trajectories));
  changed_.notify_all();
}

void LeaseWriter::rethrow_failure() {
  const std::scoped_lock lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void LeaseWriter::finish() {
  std::unique_lock lock(mutex_);
  wait_for_at_most(0, lock);
}

void LeaseWriter::wait_for_at_most(std::size_t leases, std::unique_lock<std::mutex>& lock) {
  constexpr std::chrono::milliseconds kBetweenLooks{200};
  std::uint64_t progress = clock_.read().progress;
  for (std::size_t seen = leases_.size(); !failure_ && leases_.size() > leases;
       seen = leases_.size()) {
    const bool changed =
        changed_.wait_for(lock, kBetweenLooks, [&] { return failure_ || leases_.size() != seen; });
    // Writing one lease to a slow disk may exceed this thread's hang limit.
    if (const std::uint64_t now = clock_.read().progress; changed || now != progress) {
      progress = now;
      note_progress();
    }
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void LeaseWriter::run() {
  clock_.follow_this_thread();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !leases_.empty(); });
    if (leases_.empty()) {
      return;
    }
    // Only this thread removes the front, and emplace_back() moves no element.
    const auto& [lease, trajectories] = leases_.front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      write_(lease, trajectories);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      failure_ = failure;
      leases_.clear();
      changed_.notify_all();
      return;
    }
    leases_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace jforge
