#include "coordinator/coordinator.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <tuple>
#include <variant>

#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/poll_until.h"
#include "runtime/stop_signal.h"

namespace jforge {

void CoordinatorConfig::validate() const {
  if (!(heartbeat_limit_seconds >= 2)) {
    throw ConfigError(
        "run.heartbeat_limit_seconds must be at least 2 (heartbeats come once a second)");
  }
}

Coordinator::Coordinator(const Communicator& requests, const Communicator& replies,
                         InProcessMailbox& mailbox, CoordinatorConfig config)
    : requests_(requests),
      replies_(replies),
      mailbox_(mailbox),
      config_(config),
      membership_(requests.size(), config.heartbeat_limit_seconds, 0),
      thread_([this] { run(); }) {}

Coordinator::~Coordinator() { close(); }

void Coordinator::open_round(std::int32_t round, LeaseQueue queue) {
  const std::lock_guard lock(mutex_);
  GenerationProgress progress;
  progress.prompts_total = queue.prompts_total();
  round_.emplace(
      Round{round, std::move(queue), progress, std::chrono::steady_clock::now(), busy_seconds()});
}

bool Coordinator::close_round() {
  const std::lock_guard lock(mutex_);
  expect(round_.has_value(), "no round is open");
  const bool drained = round_->queue.drained();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - round_->opened).count();
  const double busy = busy_seconds() - round_->busy_seconds;
  log_info("coordinator: {:.2f} s of a core in {:.1f} s, {:.2f} %", busy, seconds,
           100 * busy / std::max(seconds, 1e-9));
  round_.reset();
  return drained;
}

GenerationProgress Coordinator::progress() const {
  const std::lock_guard lock(mutex_);
  if (!round_) {
    return {};
  }
  GenerationProgress progress = round_->progress;
  std::tie(progress.tokens_made, progress.forwards_made) = membership_.made();
  return progress;
}

double Coordinator::busy_seconds() {
  clockid_t clock{};
  timespec time{};
  if (::pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 ||
      ::clock_gettime(clock, &time) != 0) {
    return 0;
  }
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void Coordinator::close() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Coordinator::run() {
  try {
    LookInterval interval;
    for (;;) {
      bool stopping = false;
      {
        const std::lock_guard lock(mutex_);
        stopping = stopping_;
      }
      const bool worked = poll_once();
      if (stopping && !worked) {
        return;
      }
      watch();
      answer_held_requests();
      if (worked) {
        interval.start();
      } else {
        std::this_thread::sleep_for(interval.next());
      }
    }
  } catch (const std::exception& error) {
    // The ranks wait for answers that will not come: end the job with the reason.
    log_critical("the coordinator failed: {}", error.what());
    close_log();
    MpiSession::abort(static_cast<int>(ExitCode::internal));
  }
}

bool Coordinator::poll_once() {
  bool worked = false;
  while (auto request = mailbox_.pop_request()) {
    handle(kCoordinatorRank, *request);
    worked = true;
  }
  while (auto received = requests_.try_receive()) {
    handle(received->source, decode_rank_message(received->payload));
    worked = true;
  }
  return worked;
}

void Coordinator::reply(Rank destination, const CoordinatorMessage& message) {
  if (destination == kCoordinatorRank) {
    mailbox_.push_reply(message);
  } else {
    replies_.send(destination, kControlTag, encode(message));
  }
}

LeaseReply Coordinator::answer_lease_request(Rank source, const LeaseRequest& request) {
  const std::lock_guard lock(mutex_);
  if (request.stop_requested) {
    // If one rank is told to stop, all stop at their next request or step.
    request_stop();
  }
  if (stop_requested()) {
    return {LeaseAnswer::stop, {}};
  }
  if (!round_ || round_->number != request.round) {
    return {LeaseAnswer::wait, {}};
  }
  if (auto lease = round_->queue.grant(source, now_seconds(), config_.lease_seconds)) {
    return {LeaseAnswer::granted, std::move(*lease)};
  }
  return {round_->queue.drained() ? LeaseAnswer::drained : LeaseAnswer::wait, {}};
}

void Coordinator::handle(Rank source, const RankMessage& message) {
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    std::uint64_t job_progress = 0;
    {
      const std::lock_guard lock(mutex_);
      membership_.heard(source, *heartbeat, now_seconds());
      if (membership_.progressed(source) && round_) {
        round_->queue.extend(source, now_seconds(), config_.lease_seconds);
      }
      job_progress = membership_.progress();
    }
    // A rank in the middle of long answers hears of a stop here.
    reply(source, HeartbeatReply{host_name(), static_cast<std::int64_t>(::getpid()), job_progress,
                                 stop_requested()});
  } else if (const auto* request = std::get_if<LeaseRequest>(&message)) {
    const LeaseReply answer = answer_lease_request(source, *request);
    if (answer.answer == LeaseAnswer::wait && request->idle) {
      held_.push_back({source, *request, now_seconds() + config_.hold_seconds});
    } else {
      reply(source, answer);
    }
  } else if (const auto* commit = std::get_if<CommitRequest>(&message)) {
    CommitReply granted;
    {
      const std::lock_guard lock(mutex_);
      if (round_) {
        granted.lease = round_->queue.request_commit(commit->lease);
      }
    }
    reply(source, granted);
  } else if (const auto* done = std::get_if<CommitDone>(&message)) {
    const std::lock_guard lock(mutex_);
    if (round_) {
      round_->queue.committed(done->id, done->attempt, now_seconds());
      round_->progress.prompts_done = round_->queue.prompts_committed();
      round_->progress.tokens += done->tokens;
      round_->progress.forwards += done->forwards;
    }
  }
}

void Coordinator::answer_held_requests() {
  while (!held_.empty()) {
    const HeldRequest& first = held_.front();
    const LeaseReply answer = answer_lease_request(first.source, first.request);
    if (answer.answer == LeaseAnswer::wait && now_seconds() < first.until_seconds) {
      return;  // The later ones must wait too.
    }
    reply(first.source, answer);
    held_.pop_front();
  }
}

void Coordinator::watch() {
  const double now = now_seconds();
  if (now < next_watch_seconds_) {
    return;
  }
  next_watch_seconds_ = now + 1.0;
  std::string silence;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return;
    }
    if (round_) {
      if (const std::size_t expired = round_->queue.expire(now); expired > 0) {
        log_warn("{} leases showed no progress for {} s and are given out again", expired,
                 config_.lease_seconds);
      }
    }
    if (const std::optional<Rank> lost = membership_.lost(now)) {
      // run_slurm.sbatch excludes the host.
      silence = fmt::format("rank {} is silent ({}); what every rank did last:\n{}", *lost,
                            membership_.host(*lost), membership_.table(now));
    }
  }
  if (!silence.empty()) {
    log_critical("{}", silence);
    close_log();
    MpiSession::abort(static_cast<int>(ExitCode::internal));
  }
}

}  // namespace jforge
