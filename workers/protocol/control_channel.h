#pragma once

/// A rank's side of the control plane. Only its control thread uses the control communicators.

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
#include "runtime/poll_until.h"
#include "workers/protocol/messages.h"

namespace jforge {

class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  virtual void send(const RankMessage& message) = 0;
  /// Never blocks.
  virtual std::optional<CoordinatorMessage> try_receive() = 0;
};

/// Both communicators must outlive the link.
[[nodiscard]] std::unique_ptr<CoordinatorLink> make_mpi_link(const Communicator& requests,
                                                             const Communicator& replies,
                                                             Rank coordinator);

/// Thread-safe queues between rank 0's control thread and its coordinator thread.
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

/// Owns the control thread, which sends a heartbeat every second, carries lease traffic, and ends
/// the job if the coordinator is silent, so that a hang of rank 0 is detected too.
class ControlChannel {
 public:
  struct Silence {
    /// Limit on silence while this thread itself was running.
    double limit_seconds = 60;
    /// Called once on the control thread. Default: log the message and abort MPI with exit code 70.
    std::function<void(const std::string&)> on_lost;
  };

  /// Heartbeats report `clock`; progress of other ranks is reported to it.
  ControlChannel(std::unique_ptr<CoordinatorLink> link, PhaseClock& clock, Silence silence);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Requests a lease; take_lease() gets the reply. At most one request may be open.
  void request_lease(LeaseRequest request);
  /// Rethrows a failure of the control thread.
  [[nodiscard]] LeaseReply take_lease();
  /// Asks for leave to commit finished prompts; waits for the lease to commit (CommitReply).
  [[nodiscard]] Lease request_commit(Lease finished);
  /// Reports that the shard has its final name.
  void commit_done(const Lease& lease, std::int64_t tokens, std::int64_t forwards);
  /// Sends queued messages, receives open replies, ends the thread and rethrows its failure. The
  /// destructor only stops the thread.
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
  AwakeClock awake_;  // this and the next five: control thread only
  LookInterval interval_;
  double heard_seconds_ = 0;  // by awake_
  std::int64_t unanswered_ = 0;
  std::uint64_t job_progress_ = 0;
  std::string coordinator_;  // "host H, pid P" once it has answered
  std::mutex mutex_;
  std::condition_variable wake_;    // a reply came
  std::condition_variable posted_;  // for the control thread
  std::deque<RankMessage> outgoing_;
  std::deque<LeaseReply> leases_;
  std::deque<CommitReply> commits_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace jforge
