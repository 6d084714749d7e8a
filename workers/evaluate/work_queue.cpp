#include "workers/evaluate/work_queue.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/phase_clock.h"
#include "runtime/poll_until.h"

namespace jforge {

namespace {
constexpr int kQueueTag = 1;
constexpr Rank kServerRank = 0;
constexpr std::chrono::microseconds kPollInterval(2000);
/// Leases per rank in an even division of the rest.
constexpr std::int64_t kSharesPerRank = 4;

// Kinds of messages to rank 0 …
constexpr std::int64_t kTake = 1;
constexpr std::int64_t kStop = 2;
constexpr std::int64_t kLeave = 3;
// … and back; kStop goes both ways.
constexpr std::int64_t kLease = 4;
constexpr std::int64_t kAllLeft = 5;
}  // namespace

struct WorkQueue::Message {
  std::int64_t kind = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t finished = 0;  ///< To rank 0: since the last message; from it: by all ranks.

  using Bytes = std::array<std::byte, 4 * sizeof(std::int64_t)>;

  [[nodiscard]] Bytes encode() const {
    return std::bit_cast<Bytes>(std::array{kind, begin, end, finished});
  }
  [[nodiscard]] static Message decode(std::span<const std::byte> bytes) {
    Bytes copy{};
    if (bytes.size() != copy.size()) {
      throw CommError("evaluation's work queue received a message of another length");
    }
    std::ranges::copy(bytes, copy.begin());
    const auto values = std::bit_cast<std::array<std::int64_t, 4>>(copy);
    return {values[0], values[1], values[2], values[3]};
  }
};

WorkCounter::WorkCounter(std::vector<std::int64_t> ends, int ranks, std::int64_t most)
    : ends_(std::move(ends)), ranks_(ranks), most_(most) {
  expect(ranks >= 1 && most >= 1 && std::ranges::is_sorted(ends_) &&
             (ends_.empty() || ends_.front() >= 0),
         "a work queue of these sizes");
}

WorkLease WorkCounter::grant() {
  const auto end = std::ranges::upper_bound(ends_, next_);
  if (stopped_ || end == ends_.end()) {
    return {next_, next_};
  }
  const std::int64_t size =
      std::clamp<std::int64_t>((*end - next_) / (kSharesPerRank * ranks_), 1, most_);
  next_ += size;
  return {next_ - size, next_};
}

/// Counts on rank 0; its thread serves the other ranks until all have left.
class WorkQueue::Server {
 public:
  Server(const Communicator& requests, const Communicator& replies, WorkCounter counter)
      : requests_(requests),
        replies_(replies),
        counter_(std::move(counter)),
        thread_([this] { run(); }) {}
  ~Server() {
    {
      const std::lock_guard lock(mutex_);
      abandoned_ = true;
    }
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns the reply, if any.
  [[nodiscard]] std::optional<Message> handle(const Message& message) {
    const std::lock_guard lock(mutex_);
    counter_.add_finished(message.finished);
    if (message.kind == kTake) {
      const WorkLease lease = counter_.grant();
      return Message{kLease, lease.begin, lease.end, counter_.finished()};
    }
    if (message.kind == kStop) {
      counter_.stop();
    } else {
      counter_.leave();
    }
    return std::nullopt;
  }
  /// With kStop or kAllLeft as kind, if so.
  [[nodiscard]] Message state() const {
    const std::lock_guard lock(mutex_);
    const std::int64_t kind = counter_.all_left() ? kAllLeft : counter_.stopped() ? kStop : 0;
    return {kind, 0, 0, counter_.finished()};
  }

 private:
  void run() {
    try {
      bool told_stop = false;
      for (;;) {
        bool worked = false;
        while (const auto received = requests_.try_receive()) {
          worked = true;
          if (const auto answer = handle(Message::decode(received->payload))) {
            replies_.send(received->source, kQueueTag, answer->encode());
          }
        }
        const Message now = state();
        if (now.kind == kStop && !std::exchange(told_stop, true)) {
          tell_all(now);
        }
        if (now.kind == kAllLeft) {
          tell_all(now);
          return;
        }
        {
          const std::lock_guard lock(mutex_);
          // If all have left, they must be told.
          if (abandoned_ && !counter_.all_left()) {
            return;
          }
        }
        if (!worked) {
          std::this_thread::sleep_for(kPollInterval);
        }
      }
    } catch (const std::exception& error) {
      // The ranks wait for replies that never come: end the job.
      log_critical("evaluation's work queue failed: {}", error.what());
      close_log();
      MpiSession::abort(static_cast<int>(ExitCode::internal));
    }
  }

  void tell_all(const Message& message) const {
    for (Rank rank = 1; rank < replies_.size(); ++rank) {
      replies_.send(rank, kQueueTag, message.encode());
    }
  }

  const Communicator& requests_;
  const Communicator& replies_;
  mutable std::mutex mutex_;  // guards counter_, abandoned_
  WorkCounter counter_;
  bool abandoned_ = false;
  std::thread thread_;
};

WorkQueue::WorkQueue(const Communicator& comm, std::vector<std::int64_t> ends,
                     std::int64_t most_per_lease)
    : requests_(comm.duplicate()), replies_(comm.duplicate()) {
  if (comm.rank() == kServerRank) {
    server_ = std::make_unique<Server>(requests_, replies_,
                                       WorkCounter(std::move(ends), comm.size(), most_per_lease));
  }
}

WorkQueue::~WorkQueue() = default;

WorkQueue::Message WorkQueue::message(std::int64_t kind) {
  return {kind, 0, 0, std::exchange(unreported_, 0)};
}

void WorkQueue::send(const Message& message) {
  if (!server_) {
    requests_.send(kServerRank, kQueueTag, message.encode());
  } else if (const auto answer = server_->handle(message)) {
    take(*answer);
  }
}

void WorkQueue::take(const Message& message) {
  finished_by_all_ = std::max(finished_by_all_, message.finished);
  if (message.kind == kLease) {
    asked_ = false;
    next_ = WorkLease{message.begin, message.end};
    drained_ = message.begin == message.end;
  } else if (message.kind == kStop) {
    stopped_ = true;
  } else if (message.kind == kAllLeft) {
    all_left_ = true;
  }
}

void WorkQueue::receive() {
  if (server_) {
    take(server_->state());
    return;
  }
  while (const auto received = replies_.try_receive()) {
    take(Message::decode(received->payload));
  }
}

void WorkQueue::request() {
  if (!asked_ && !next_ && !drained_ && !stopped_) {
    asked_ = true;
    send(message(kTake));
  }
}

std::optional<std::int64_t> WorkQueue::peek(bool wait) {
  receive();
  if (lease_.begin == lease_.end) {
    request();
    if (wait && asked_ && !stopped_) {
      const WaitingForOthers waiting;
      poll_until([&] { return receive(), !asked_ || stopped_; }, kPollInterval / 16, kPollInterval);
    }
    if (next_) {
      lease_ = *std::exchange(next_, std::nullopt);
    }
  }
  if (stopped_ || lease_.begin == lease_.end) {
    return std::nullopt;
  }
  return lease_.begin;
}

void WorkQueue::pop() {
  expect(lease_.begin < lease_.end, "nothing to take out of the work queue");
  lease_.begin += 1;
  if (lease_.begin == lease_.end) {
    request();
  }
}

void WorkQueue::finished() { unreported_ += 1; }

void WorkQueue::stop() {
  if (!std::exchange(stopped_, true)) {
    send(message(kStop));
  }
}

bool WorkQueue::stopped() {
  receive();
  return stopped_;
}

std::int64_t WorkQueue::finished_by_all() const { return finished_by_all_ + unreported_; }

void WorkQueue::leave() {
  send(message(kLeave));
  const WaitingForOthers waiting;
  poll_until([&] { return receive(), all_left_; }, kPollInterval / 16, kPollInterval);
}

void WorkQueue::close() {
  server_.reset();
  requests_.close();
  replies_.close();
}

bool work_together(const Communicator& comm, WorkQueue& queue, const std::function<void()>& work,
                   const std::function<void()>& waiting) {
  bool stopped = false;
  const auto leave = [&] {
    try {
      waiting();
    } catch (...) {
      queue.stop();
      queue.leave();  // the others wait for it
      throw;
    }
    queue.leave();
  };
  together(comm, [&] {
    try {
      work();
    } catch (...) {
      queue.stop();
      try {
        leave();
      } catch (...) {
        // Reports the first failure.
      }
      throw;
    }
    leave();
    stopped = queue.stopped();
  });
  return stopped;
}

}  // namespace jforge
