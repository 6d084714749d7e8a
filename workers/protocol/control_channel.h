#pragma once

/// A rank's side of the control plane: one control thread, the only user of the control
/// communicators on this rank. The worker asks through blocking calls that poll; rank 0 talks to
/// its coordinator in process.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/awake_clock.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/protocol/messages.h"

namespace jforge {

/// Where messages to the coordinator go. `send` may be called from the control thread only.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  virtual void send(const RankMessage& message) = 0;
  /// A waiting reply, or nothing; never blocks.
  virtual std::optional<CoordinatorMessage> try_receive() = 0;
};

/// Link over MPI: requests on one communicator, replies on another.
[[nodiscard]] std::unique_ptr<CoordinatorLink> make_mpi_link(const Communicator& requests,
                                                             const Communicator& replies,
                                                             Rank coordinator);

/// Queue pair between rank 0's control thread and the coordinator thread of the same process.
/// Thread-safe.
class InProcessMailbox {
 public:
  void push_request(RankMessage message);
  [[nodiscard]] std::optional<RankMessage> pop_request();
  void push_reply(CoordinatorMessage message);
  [[nodiscard]] std::optional<CoordinatorMessage> pop_reply();

 private:
  std::mutex mutex_;
  std::deque<RankMessage> requests_;
  std::deque<CoordinatorMessage> replies_;
};
/// `mailbox` must outlive the link.
[[nodiscard]] std::unique_ptr<CoordinatorLink> make_in_process_link(InProcessMailbox& mailbox);

/// Owns the control thread: sends a heartbeat every second, carries the worker's lease traffic, and
/// ends the job when the coordinator falls silent, so that a frozen rank 0 is found as soon as any
/// other.
class ControlChannel {
 public:
  /// When the coordinator counts as lost, and what to do then.
  struct Silence {
    /// Nothing heard from the coordinator for longer, while this thread itself was running.
    double limit_seconds = 60;
    /// Called once, on the control thread, with one line that names the coordinator, or says why
    /// nothing is to be heard of it any more. Default: log it and abort the world with exit 70.
    std::function<void(const std::string&)> on_lost;
  };

  /// `clock` is what heartbeats tell of; it learns whether any rank of the job makes progress.
  ControlChannel(std::unique_ptr<CoordinatorLink> link, PhaseClock& clock, Silence silence);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Sends a lease request now; the reply is fetched by take_lease(). At most one request may be
  /// open.
  void request_lease(LeaseRequest request);
  /// Waits for the reply to the open request. Throws what the control thread threw.
  [[nodiscard]] LeaseReply take_lease();
  /// Asks whether a finished shard may be committed, and waits for the answer.
  [[nodiscard]] bool request_commit(const Lease& lease);
  /// Tells the coordinator that the shard is under its final name.
  void commit_done(const Lease& lease, std::int64_t tokens, std::int64_t forwards);
  /// Sends what is queued, takes the answers that are on their way and ends the thread; rethrows
  /// its failure. The destructor only stops it.
  void close();

 private:
  void run();
  void receive();
  void drain(bool closing);
  void watch_coordinator();
  void lose(const std::string& message);
  void post(RankMessage message);
  template <class Reply>
  Reply wait_for(std::deque<Reply>& queue);

  std::unique_ptr<CoordinatorLink> link_;
  PhaseClock& clock_;
  Silence silence_;
  AwakeClock awake_;          // control thread only, as the four below
  double heard_seconds_ = 0;  // by awake_
  std::int64_t unanswered_ = 0;
  std::uint64_t job_progress_ = 0;
  std::string coordinator_;  // "host H, pid P" as soon as it has answered
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<RankMessage> outgoing_;
  std::deque<LeaseReply> leases_;
  std::deque<CommitReply> commits_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace jforge
