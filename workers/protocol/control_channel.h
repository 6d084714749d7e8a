#pragma once

/// A rank's side of the control plane. Only the control thread uses the rank's control
/// communicators; the worker calls blocking functions. Rank 0 talks to its coordinator in process.

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

/// Connection to the coordinator. send() may be called from the control thread only.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  virtual void send(const RankMessage& message) = 0;
  /// Returns a reply that has arrived, or nothing; never blocks.
  virtual std::optional<CoordinatorMessage> try_receive() = 0;
};

/// Link over MPI: requests and replies use separate communicators, which must outlive the link.
[[nodiscard]] std::unique_ptr<CoordinatorLink> make_mpi_link(const Communicator& requests,
                                                             const Communicator& replies,
                                                             Rank coordinator);

/// Thread-safe queue pair between rank 0's control thread and the coordinator thread.
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

/// Owns the control thread. Sends a heartbeat every second, carries the worker's lease traffic, and
/// ends the job if the coordinator is silent, so that a hang of rank 0 is detected too.
class ControlChannel {
 public:
  struct Silence {
    /// Maximum silence of the coordinator, counted only while this thread itself was running.
    double limit_seconds = 60;
    /// Called once on the control thread with a one-line description. Default: log it and abort the
    /// MPI world with exit code 70.
    std::function<void(const std::string&)> on_lost;
  };

  /// Heartbeats report `clock`, and `clock` learns whether any other rank makes progress.
  ControlChannel(std::unique_ptr<CoordinatorLink> link, PhaseClock& clock, Silence silence);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Sends a lease request at once. At most one request may be open; take_lease() gets the reply.
  void request_lease(LeaseRequest request);
  /// Waits for the reply to the open request. Rethrows a failure of the control thread.
  [[nodiscard]] LeaseReply take_lease();
  /// Asks whether a finished shard may be committed, and waits for the answer.
  [[nodiscard]] bool request_commit(const Lease& lease);
  /// Tells the coordinator that the shard has been renamed to its final name.
  void commit_done(const Lease& lease, std::int64_t tokens, std::int64_t forwards);
  /// Sends queued messages, receives outstanding replies, ends the thread and rethrows its failure.
  /// The destructor only stops the thread.
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
  AwakeClock awake_;          // this and the next four: control thread only
  double heard_seconds_ = 0;  // last message, by awake_
  std::int64_t unanswered_ = 0;
  std::uint64_t job_progress_ = 0;
  std::string coordinator_;  // "host H, pid P" once it has answered
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
