#include "workers/generate/leased_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/phase_clock.h"
#include "runtime/stop_signal.h"

namespace jforge {

namespace {
/// Delays after `wait` while this rank still decodes. The coordinator itself delays idle ranks.
constexpr auto kFirstRetry = std::chrono::milliseconds(50);
constexpr auto kLongestRetry = std::chrono::milliseconds(1000);
}  // namespace

LeasedGeneration::LeasedGeneration(TrajectoryGenerator& generator, LeaseHooks hooks,
                                   double stop_seconds)
    : generator_(generator),
      hooks_(std::move(hooks)),
      stop_seconds_(stop_seconds),
      retry_(kFirstRetry) {}

bool LeasedGeneration::run() {
  generator_.clear();
  do {
    admit_leased();
    if (generator_.running() == 0) {
      break;
    }
    step();
    if (hooks_.commit_due()) {
      commit_all_finished();
    }
  } while (!over());
  if (!drained_) {
    stop();
  }
  return drained_;
}

void LeasedGeneration::step() {
  generator_.step();
  while (auto trajectory = generator_.take_finished()) {
    collect(std::move(*trajectory));
  }
  forwards_ += 1;
  hooks_.on_forward();
}

void LeasedGeneration::admit_leased() {
  while (generator_.free_places() > 0) {
    std::optional<GeneratePrompt> prompt = next();
    if (!prompt) {
      return;
    }
    generator_.admit(std::move(*prompt));
  }
}

/// Returns the next prompt, or nothing: with an empty batch only at the end of the run.
std::optional<GeneratePrompt> LeasedGeneration::next() {
  const bool idle = generator_.running() == 0;
  std::optional<WaitingForOthers> wait;
  while (waiting_.empty()) {
    if (idle && !wait && !asked_) {  // A request made while busy is answered at once.
      hooks_.before_idle();
      wait.emplace();  // Repeated requests are not progress.
    }
    if (drained_ || stopped_ || (idle && over())) {
      return std::nullopt;
    }
    if (!asked_) {
      if (!idle && std::chrono::steady_clock::now() < retry_at_) {
        return std::nullopt;
      }
      ask(false, idle);
    }
    if (!idle && asked_at_ == forwards_) {
      return std::nullopt;  // the reply arrives during the next forward
    }
    take();
  }
  wait.reset();
  const PromptId id = waiting_.front();
  waiting_.pop_front();
  if (waiting_.empty() && !asked_) {
    ask(false, false);
  }
  return GeneratePrompt{.id = id, .tokens = hooks_.prompt(id)};
}

void LeasedGeneration::ask(bool stop_requested, bool idle) {
  hooks_.request(stop_requested, idle);
  asked_ = true;
  asked_at_ = forwards_;
}

void LeasedGeneration::take() {
  LeaseReply reply = hooks_.take();
  asked_ = false;
  switch (reply.answer) {
    case LeaseAnswer::granted:
      retry_ = kFirstRetry;
      open(std::move(reply.lease));
      break;
    case LeaseAnswer::wait:
      retry_at_ = std::chrono::steady_clock::now() + retry_;
      retry_ = std::min(kLongestRetry, 2 * retry_);
      break;
    case LeaseAnswer::drained:
      drained_ = true;
      break;
    case LeaseAnswer::stop:
      stopped_ = true;
      coordinator_stops_ = true;
      break;
  }
}

void LeasedGeneration::open(Lease lease) {
  expect(!lease.prompts.empty(), fmt::format("lease {} holds no prompts", lease.id));
  if (const auto known = open_.find(lease.id); known != open_.end()) {
    // The lease, or what is not committed of it, expired and came back to this rank: continue it as
    // the new attempt.
    known->second.lease.attempt = lease.attempt;
    return;
  }
  for (const PromptId id : lease.prompts) {
    expect(lease_of_.emplace(id, lease.id).second,
           fmt::format("prompt {} of lease {} is in another open lease", id, lease.id));
    waiting_.push_back(id);
  }
  const LeaseId id = lease.id;
  const std::size_t prompts = lease.prompts.size();
  open_.emplace(id, OpenLease{std::move(lease), {}, prompts});
}

void LeasedGeneration::collect(Trajectory trajectory) {
  const auto place = open_.find(lease_of_.at(trajectory.prompt_id));
  OpenLease& open = place->second;
  open.done.push_back(std::move(trajectory));
  fault_point("generate");
  if (--open.to_finish == 0) {
    commit_finished(open);
    open_.erase(place);
  }
}

void LeasedGeneration::commit_finished(OpenLease& open) {
  if (open.done.empty()) {
    return;
  }
  std::ranges::sort(open.done, {}, &Trajectory::prompt_id);
  Lease finished{open.lease.id, open.lease.attempt, {}};
  for (const Trajectory& trajectory : open.done) {
    finished.prompts.push_back(trajectory.prompt_id);
    lease_of_.erase(trajectory.prompt_id);
  }
  hooks_.commit(std::move(finished), std::exchange(open.done, {}));
}

void LeasedGeneration::commit_all_finished() {
  for (auto& [id, open] : open_) {
    commit_finished(open);
  }
}

bool LeasedGeneration::over() {
  stopped_ = stopped_ || hooks_.stop_requested();
  return stopped_ || drained_;
}

void LeasedGeneration::stop() {
  if (asked_) {
    take();
  }
  if (!drained_ && !coordinator_stops_) {
    ask(true, false);
    take();
  }
  for (const PromptId id : waiting_) {
    open_.at(lease_of_.at(id)).to_finish -= 1;
  }
  waiting_.clear();
  commit_all_finished();
  const double seconds = std::max(0.0, std::min(stop_seconds_, seconds_to_stop()));
  log_info("stopping: {} running answers have {:.0f} s to finish", generator_.running(), seconds);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!drained_ && generator_.running() > 0 && std::chrono::steady_clock::now() < end) {
    step();
  }
  commit_all_finished();
}

}  // namespace jforge
