#include "workers/protocol/control_channel.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"

namespace jforge {

namespace {

using namespace std::chrono_literals;
constexpr auto kHeartbeatInterval = 1s;
constexpr double kDrainLimitSeconds = 2;

class MpiLink final : public CoordinatorLink {
 public:
  MpiLink(const Communicator& requests, const Communicator& replies, Rank coordinator)
      : requests_(requests), replies_(replies), coordinator_(coordinator) {}
  void send(const RankMessage& message) override {
    requests_.send(coordinator_, kControlTag, encode(message));
  }
  std::optional<CoordinatorMessage> try_receive() override {
    auto received = replies_.try_receive();
    if (!received) {
      return std::nullopt;
    }
    return decode_coordinator_message(received->payload);
  }

 private:
  const Communicator& requests_;
  const Communicator& replies_;
  Rank coordinator_;
};

class InProcessLink final : public CoordinatorLink {
 public:
  explicit InProcessLink(InProcessMailbox& mailbox) : mailbox_(mailbox) {}
  void send(const RankMessage& message) override { mailbox_.push_request(message); }
  std::optional<CoordinatorMessage> try_receive() override { return mailbox_.pop_reply(); }

 private:
  InProcessMailbox& mailbox_;
};

template <class T>
std::optional<T> pop_front(std::deque<T>& queue) {
  if (queue.empty()) {
    return std::nullopt;
  }
  T front = std::move(queue.front());
  queue.pop_front();
  return front;
}

}  // namespace

std::unique_ptr<CoordinatorLink> make_mpi_link(const Communicator& requests,
                                               const Communicator& replies, Rank coordinator) {
  return std::make_unique<MpiLink>(requests, replies, coordinator);
}

std::unique_ptr<CoordinatorLink> make_in_process_link(InProcessMailbox& mailbox) {
  return std::make_unique<InProcessLink>(mailbox);
}

void InProcessMailbox::push_request(RankMessage message) {
  const std::lock_guard lock(mutex_);
  requests_.push_back(std::move(message));
}
std::optional<RankMessage> InProcessMailbox::pop_request() {
  const std::lock_guard lock(mutex_);
  return pop_front(requests_);
}
void InProcessMailbox::push_reply(CoordinatorMessage message) {
  const std::lock_guard lock(mutex_);
  replies_.push_back(std::move(message));
}
std::optional<CoordinatorMessage> InProcessMailbox::pop_reply() {
  const std::lock_guard lock(mutex_);
  return pop_front(replies_);
}

ControlChannel::ControlChannel(std::unique_ptr<CoordinatorLink> link, PhaseClock& clock,
                               Silence silence)
    : link_(std::move(link)),
      clock_(clock),
      silence_(std::move(silence)),
      thread_([this] { run(); }) {}

ControlChannel::~ControlChannel() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    posted_.notify_one();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void ControlChannel::run() {
  try {
    auto next_heartbeat = std::chrono::steady_clock::now();
    for (;;) {
      std::deque<RankMessage> sending;
      bool stopping = false;
      bool closing = false;
      {
        std::unique_lock lock(mutex_);
        posted_.wait_for(lock, interval_.next(), [&] { return stopping_ || !outgoing_.empty(); });
        sending.swap(outgoing_);
        stopping = stopping_;
        closing = closing_;
      }
      for (const RankMessage& message : sending) {
        link_->send(message);
        interval_.start();
      }
      receive();
      if (stopping) {
        drain(closing);
        return;
      }
      watch_coordinator();
      const auto now = std::chrono::steady_clock::now();
      if (now >= next_heartbeat) {
        const PhaseClock::Reading reading = clock_.read();
        link_->send(Heartbeat{reading.phase, reading.step, reading.progress, reading.age_seconds,
                              reading.waiting, reading.tokens, reading.forwards, host_name(),
                              static_cast<std::int64_t>(::getpid())});
        next_heartbeat = now + kHeartbeatInterval;
        ++unanswered_;
      }
    }
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      wake_.notify_all();
      if (stopping_) {
        return;  // close() rethrows failure_
      }
    }
    // During training the worker asks for nothing, so this thread must end the job itself.
    lose(fmt::format("lost contact with the coordinator: {}", error.what()));
  }
}

void ControlChannel::receive() {
  while (auto reply = link_->try_receive()) {
    interval_.start();
    heard_seconds_ = awake_.seconds();
    const std::lock_guard lock(mutex_);
    if (auto* lease = std::get_if<LeaseReply>(&*reply)) {
      leases_.push_back(std::move(*lease));
    } else if (auto* commit = std::get_if<CommitReply>(&*reply)) {
      commits_.push_back(std::move(*commit));
    } else {
      const auto& heartbeat = std::get<HeartbeatReply>(*reply);
      coordinator_ = fmt::format("host {}, pid {}", heartbeat.host, heartbeat.process_id);
      --unanswered_;
      if (heartbeat.stop) {
        request_stop();
      }
      if (std::exchange(job_progress_, heartbeat.job_progress) != heartbeat.job_progress) {
        clock_.others_progressed();
      }
    }
    wake_.notify_all();
  }
}

// MPI requires all messages to be received before a communicator is freed.
void ControlChannel::drain(bool closing) {
  const double begin = awake_.seconds();
  while (closing && unanswered_ > 0 && awake_.seconds() - begin < kDrainLimitSeconds) {
    std::this_thread::sleep_for(2ms);
    receive();
  }
}

void ControlChannel::watch_coordinator() {
  const double silent = awake_.seconds() - heard_seconds_;
  if (silent <= silence_.limit_seconds) {
    return;
  }
  const std::string message = fmt::format(
      "rank 0 ({}) is silent: its coordinator has not answered for {:.1f} s, the limit "
      "is {:.1f} s; ending the job",
      coordinator_.empty() ? "it never answered" : coordinator_, silent, silence_.limit_seconds);
  lose(message);
}

void ControlChannel::lose(const std::string& message) {
  if (silence_.on_lost) {
    silence_.on_lost(message);
    silence_.limit_seconds = std::numeric_limits<double>::infinity();
    return;
  }
  log_critical("{}", message);
  close_log();
  MpiSession::abort(static_cast<int>(ExitCode::internal));
}

void ControlChannel::post(RankMessage message) {
  const std::lock_guard lock(mutex_);
  outgoing_.push_back(std::move(message));
  posted_.notify_one();
}

template <class Reply>
Reply ControlChannel::wait_for(std::deque<Reply>& queue) {
  const WaitingForOthers waiting;
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return !queue.empty() || failure_; });
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  return *pop_front(queue);
}

void ControlChannel::request_lease(LeaseRequest request) { post(request); }

LeaseReply ControlChannel::take_lease() { return wait_for(leases_); }

Lease ControlChannel::request_commit(Lease finished) {
  post(CommitRequest{std::move(finished)});
  return wait_for(commits_).lease;
}

void ControlChannel::commit_done(const Lease& lease, std::int64_t tokens, std::int64_t forwards) {
  post(CommitDone{lease.id, lease.attempt, tokens, forwards});
}

void ControlChannel::close() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    closing_ = true;
    posted_.notify_one();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

}  // namespace jforge
