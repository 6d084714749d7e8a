#pragma once

/// Generation over the leases of a round. One loop serves all leases, so that a free place in the
/// batch is refilled across lease boundaries.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "data/trajectories/trajectory.h"
#include "runtime/ids.h"
#include "workers/generate/trajectory_generator.h"
#include "workers/protocol/messages.h"

namespace jforge {

/// Callbacks of leased generation, called on the thread of run().
struct LeaseHooks {
  /// Asks for a lease or reports a stop. At most one request is open at a time. The reply to an
  /// `idle` rank, which has nothing to decode, may be delayed.
  std::function<void(bool stop_requested, bool idle)> request;
  /// Waits for the reply to the open request.
  std::function<LeaseReply()> take;
  /// Returns the templated prompt: at least one token id.
  std::function<std::vector<TokenId>(PromptId)> prompt;
  /// Takes all trajectories of a lease, sorted by prompt id, to write and commit them (or drop them
  /// if the commit is refused), possibly on another thread.
  std::function<void(Lease, std::vector<Trajectory>)> commit;
  /// Called before a rank with nothing to decode waits for a lease. Must finish the work of earlier
  /// commit() calls, because other ranks may wait for it.
  std::function<void()> before_idle;
  /// Called after every finished prompt.
  std::function<void()> on_prompt;
  /// Called after every batched forward.
  std::function<void()> on_forward;
  /// Asked once per batched forward and while an empty batch waits; true ends the run.
  std::function<bool()> stop_requested;
};

/// Decodes leases until the round is drained. The next lease is requested when the last prompt of
/// the current one starts. The reply is taken when a place is free and at least one forward has
/// passed, so that decoding does not wait and ranks that start together share the leases evenly.
/// Several leases may be open; each is handed over when its last prompt is finished. Trajectories
/// do not depend on the leases.
class LeasedGeneration {
 public:
  /// `generator` must outlive this object; all hooks must be set.
  LeasedGeneration(TrajectoryGenerator& generator, LeaseHooks hooks);

  /// Returns true when all ranks together have committed every prompt of the round. Returns false
  /// after a stop requested here or by the coordinator; open leases are then dropped and the
  /// coordinator is informed. Leaves no request open. Rethrows errors of the hooks and the
  /// generator.
  [[nodiscard]] bool run();

 private:
  struct OpenLease {
    Lease lease;
    std::vector<Trajectory> done;
  };

  void admit_leased();
  [[nodiscard]] std::optional<GeneratePrompt> next();
  void ask(bool stop_requested, bool idle);
  void take();
  void open(Lease lease);
  void collect(Trajectory trajectory);
  [[nodiscard]] bool over();
  void leave();

  TrajectoryGenerator& generator_;
  LeaseHooks hooks_;
  std::map<LeaseId, OpenLease> open_;
  std::unordered_map<PromptId, LeaseId> lease_of_;
  std::deque<PromptId> waiting_;                    ///< Leased prompts not yet started.
  std::int64_t forwards_ = 0;                       ///< Batched forwards.
  std::int64_t asked_at_ = 0;                       ///< `forwards_` at the open request.
  std::chrono::steady_clock::time_point retry_at_;  ///< Earliest next request after a `wait` reply.
  std::chrono::milliseconds retry_;                 ///< Delay after the next `wait` reply.
  bool asked_ = false;
  bool drained_ = false;
  bool stopped_ = false;
  bool coordinator_stops_ = false;
};

}  // namespace jforge
