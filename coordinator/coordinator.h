#pragma once

/// Answers lease requests and watches heartbeats on a thread of rank 0, which never blocks.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "coordinator/lease_queue.h"
#include "coordinator/worker_membership.h"
#include "runtime/awake_clock.h"
#include "runtime/comm/mpi_session.h"
#include "workers/protocol/control_channel.h"

namespace jforge {

inline constexpr Rank kCoordinatorRank = 0;

struct CoordinatorConfig {
  double heartbeat_limit_seconds = 60;  ///< A longer silence ends the job (exit 70).
  double lease_seconds = 600;           ///< A lease without progress for longer is reissued.
  /// Holds idle ranks' requests, so that they neither flood rank 0 nor miss their own stop flag.
  double hold_seconds = 1;
  void validate() const;
};

struct GenerationProgress {
  std::int64_t prompts_done = 0;
  std::int64_t prompts_total = 0;
  std::int64_t tokens = 0;         ///< In committed leases.
  std::int64_t forwards = 0;       ///< Spent on those tokens.
  std::int64_t tokens_made = 0;    ///< By all ranks in this phase, committed or not.
  std::int64_t forwards_made = 0;  ///< Spent on those tokens.
};

class Coordinator {
 public:
  /// Rank 0's messages come through `mailbox`, the others' over the communicators. After a rank is
  /// lost, logs and aborts with exit 70.
  Coordinator(const Communicator& requests, const Communicator& replies, InProcessMailbox& mailbox,
              CoordinatorConfig config);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void open_round(std::int32_t round, LeaseQueue queue);
  /// Logs this thread's CPU use; returns whether every prompt was committed.
  bool close_round();
  [[nodiscard]] GenerationProgress progress() const;
  /// Ends the thread after the last pending message.
  void close();

 private:
  struct Round {
    std::int32_t number = 0;
    LeaseQueue queue;
    GenerationProgress progress;
    std::chrono::steady_clock::time_point opened;
    double busy_seconds = 0;  ///< The thread's CPU time at opening.
  };
  struct HeldRequest {
    Rank source = 0;
    LeaseRequest request;
    double until_seconds = 0;
  };
  void run();
  bool poll_once();
  void handle(Rank source, const RankMessage& message);
  void reply(Rank destination, const CoordinatorMessage& message);
  [[nodiscard]] LeaseReply answer_lease_request(Rank source, const LeaseRequest& request);
  void answer_held_requests();
  void watch();
  [[nodiscard]] double now_seconds() { return awake_.seconds(); }
  /// CPU seconds of the thread; 0 if unknown.
  [[nodiscard]] double busy_seconds();

  const Communicator& requests_;
  const Communicator& replies_;
  InProcessMailbox& mailbox_;
  CoordinatorConfig config_;
  AwakeClock awake_;          // coordinator thread only
  mutable std::mutex mutex_;  // guards membership_, round_, stopping_
  WorkerMembership membership_;
  std::optional<Round> round_;
  std::deque<HeldRequest> held_;  // coordinator thread only, like the next; by until_seconds
  double next_watch_seconds_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace jforge
