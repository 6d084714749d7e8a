#pragma once

/// The coordinator: a thread on rank 0 that answers lease traffic and watches heartbeats. It polls
/// and never blocks.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
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

/// The rank whose process runs the coordinator.
inline constexpr Rank kCoordinatorRank = 0;

struct CoordinatorConfig {
  double heartbeat_limit_seconds = 60;  ///< A rank silent for longer ends the job (exit 70).
  double lease_seconds = 600;           ///< A lease without progress for longer is given out again.
  /// How long an idle rank's request may lie here: many ranks that ask again and again would flood
  /// rank 0, and a rank that waits looks at its own stop flag between two requests.
  double hold_seconds = 1;
  void validate() const;
};

/// Progress of the generating round, for bars and lines.
struct GenerationProgress {
  std::int64_t prompts_done = 0;
  std::int64_t prompts_total = 0;
  std::int64_t tokens = 0;         ///< Of committed leases.
  std::int64_t forwards = 0;       ///< Spent on them.
  std::int64_t tokens_made = 0;    ///< By all ranks in this phase, committed or not.
  std::int64_t forwards_made = 0;  ///< Spent on those.
};

class Coordinator {
 public:
  /// Messages of ranks ≥ 1 come over the communicators, rank 0's through `mailbox`. `on_lost` is
  /// called with the lost rank and the membership table (default: log and abort the world with exit
  /// 70).
  Coordinator(const Communicator& requests, const Communicator& replies, InProcessMailbox& mailbox,
              CoordinatorConfig config, std::function<void(Rank, const std::string&)> on_lost = {});
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Starts answering lease requests of `round` from `queue`.
  void open_round(std::int32_t round, LeaseQueue queue);
  /// Ends the round, and logs how much of a core this thread has taken; returns whether every
  /// prompt was committed.
  bool close_round();
  [[nodiscard]] GenerationProgress progress() const;
  /// Ends the thread after the last message is handled.
  void close();

 private:
  struct Round {
    std::int32_t number = 0;
    LeaseQueue queue;
    GenerationProgress progress;
    std::chrono::steady_clock::time_point opened;
    double busy_seconds = 0;  ///< Of this thread, when the round was opened.
  };
  /// An idle rank's request that has no answer but to wait.
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
  /// Seconds of a core that the thread has taken so far; 0 where the system does not say.
  [[nodiscard]] double busy_seconds();

  const Communicator& requests_;
  const Communicator& replies_;
  InProcessMailbox& mailbox_;
  CoordinatorConfig config_;
  std::function<void(Rank, const std::string&)> on_lost_;
  AwakeClock awake_;          // coordinator thread only
  mutable std::mutex mutex_;  // guards membership_, round_, stopping_
  WorkerMembership membership_;
  std::optional<Round> round_;
  std::deque<HeldRequest> held_;  // coordinator thread only, as the next; in order of their ends
  double next_watch_seconds_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace jforge
