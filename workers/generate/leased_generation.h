#pragma once

/// Generation over leases: one loop over the decode engine for all leases of a round, so that a
/// place in the batch is refilled at once, over the end of a lease too.

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

/// What leased generation needs of its surroundings. All are called on the thread of run().
struct LeaseHooks {
  /// Asks for a lease, or tells that this rank stops. At most one request is open at a time. An
  /// `idle` rank has nothing else to do: its answer may come late.
  std::function<void(bool stop_requested, bool idle)> request;
  /// Waits for the answer to the open request.
  std::function<LeaseReply()> take;
  /// The templated prompt: at least one token id.
  std::function<std::vector<TokenId>(PromptId)> prompt;
  /// All trajectories of a lease, sorted by prompt id: to be written and committed, or dropped when
  /// the commit is refused; beside the decoding, if it likes.
  std::function<void(Lease, std::vector<Trajectory>)> commit;
  /// Before a rank that has nothing more to decode waits for a lease: what commit() has left
  /// behind is to be done first, since other ranks may wait for it.
  std::function<void()> before_idle;
  /// After every finished prompt.
  std::function<void()> on_prompt;
  /// After every batched forward.
  std::function<void()> on_forward;
  /// Asked once per batched forward, and while an empty batch waits; true ends the run.
  std::function<bool()> stop_requested;
};

/// Decodes leases until the round is drained. The next lease is asked for when the last prompt of
/// the lease at hand starts, and its answer is taken when a place is free and at least one forward
/// has passed: decoding does not wait for it, and ranks that start together share out the leases
/// evenly. Several leases may be open at once; each is handed over as soon as its last prompt
/// is finished. Trajectories are those of TrajectoryGenerator, whatever the leases.
class LeasedGeneration {
 public:
  /// `generator` must outlive it; all hooks must be set.
  LeasedGeneration(TrajectoryGenerator& generator, LeaseHooks hooks);

  /// True when every prompt of the round is committed, by whomever; false when a stop was asked for
  /// here or by the coordinator: the coordinator knows, and open leases are dropped. No request is
  /// open afterwards. Throws what the hooks and the generator throw.
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
  std::deque<PromptId> waiting_;                    ///< Leased prompts that have not started.
  std::int64_t forwards_ = 0;                       ///< Batched forwards.
  std::int64_t asked_at_ = 0;                       ///< `forwards_` when the open request was made.
  std::chrono::steady_clock::time_point retry_at_;  ///< No sooner, after an answer to wait.
  std::chrono::milliseconds retry_;                 ///< Between such an answer and the next.
  bool asked_ = false;
  bool drained_ = false;
  bool stopped_ = false;
  bool coordinator_stops_ = false;
};

}  // namespace jforge
