#include "runtime/phase_clock.h"

#include <chrono>
#include <utility>

#include "runtime/fault_injection.h"

namespace jforge {

namespace {
thread_local PhaseClock* followed = nullptr;

std::int64_t monotonic_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
}  // namespace

PhaseClock::~PhaseClock() {
  if (followed == this) {
    followed = nullptr;
  }
}

void PhaseClock::follow_this_thread() noexcept { followed = this; }

void PhaseClock::set_owner(std::string owner) {
  const std::lock_guard lock(mutex_);
  owner_ = std::move(owner);
}

void PhaseClock::set_deadline(double seconds) {
  const std::lock_guard lock(mutex_);
  default_deadline_seconds_ = seconds;
}

void PhaseClock::enter(const std::string& phase) {
  double deadline = 0;
  {
    const std::lock_guard lock(mutex_);
    deadline = default_deadline_seconds_;
  }
  enter(phase, deadline);
}

void PhaseClock::enter(const std::string& phase, double deadline_seconds) {
  {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
    deadline_seconds_ = deadline_seconds;
    count(0, 0);
    progress(0);
  }
  if (faults_armed()) {
    fault_point("phase " + phase);
  }
}

void PhaseClock::count(std::int64_t tokens, std::int64_t forwards) noexcept {
  tokens_.store(tokens, std::memory_order_relaxed);
  forwards_.store(forwards, std::memory_order_relaxed);
}

void PhaseClock::progress(std::int64_t step) {
  step_.store(step, std::memory_order_relaxed);
  progress();
}

void PhaseClock::progress() noexcept {
  touch();
  progress_.fetch_add(1, std::memory_order_release);
}

void PhaseClock::touch() noexcept {
  last_nanoseconds_.store(monotonic_nanoseconds(), std::memory_order_relaxed);
}

void PhaseClock::others_progressed() noexcept {
  if (waiting_.load() > 0) {
    touch();
  }
}

PhaseClock::Reading PhaseClock::read() const {
  const std::lock_guard lock(mutex_);
  Reading reading;
  reading.owner = owner_;
  reading.phase = phase_;
  reading.deadline_seconds = deadline_seconds_;
  reading.progress = progress_.load(std::memory_order_acquire);
  reading.step = step_.load(std::memory_order_relaxed);
  reading.tokens = tokens_.load(std::memory_order_relaxed);
  reading.forwards = forwards_.load(std::memory_order_relaxed);
  reading.waiting = waiting_.load() > 0;
  const std::int64_t last = last_nanoseconds_.load(std::memory_order_relaxed);
  reading.age_seconds = last == 0 ? 0 : static_cast<double>(monotonic_nanoseconds() - last) * 1e-9;
  return reading;
}

void note_progress() noexcept {
  if (followed != nullptr) {
    followed->progress();
  }
}

NoSignsOfProgress::NoSignsOfProgress() noexcept : followed_(std::exchange(followed, nullptr)) {}

NoSignsOfProgress::~NoSignsOfProgress() { followed = followed_; }

WaitingForOthers::WaitingForOthers() noexcept : clock_(followed) {
  if (clock_ != nullptr && clock_->waiting_.fetch_add(1) == 0) {
    clock_->progress();
  }
}

WaitingForOthers::~WaitingForOthers() {
  // Progress first, so that a watchdog never sees a working rank as old as its wait.
  if (clock_ != nullptr) {
    if (clock_->waiting_.load() == 1) {
      clock_->progress();
    }
    clock_->waiting_.fetch_sub(1);
  }
}

}  // namespace jforge
