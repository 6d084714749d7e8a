#pragma once

/// Generation over the leases of a round; free places are refilled across lease boundaries.

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

/// All are called on the thread of run().
struct LeaseHooks {
  /// Asks for a lease or reports a stop; one request at a time. An `idle` rank, which has nothing
  /// to decode, may get a late reply.
  std::function<void(bool stop_requested, bool idle)> request;
  /// Waits for the reply.
  std::function<LeaseReply()> take;
  /// Returns the templated prompt, at least one token.
  std::function<std::vector<TokenId>(PromptId)> prompt;
  /// Writes and commits trajectories, sorted by prompt id like the lease's prompts, which may be
  /// part of a lease; may do so asynchronously.
  std::function<void(Lease, std::vector<Trajectory>)> commit;
  /// Called before an idle rank waits for a lease. Must finish earlier commits, because other ranks
  /// may wait for them.
  std::function<void()> before_idle;
  std::function<void()> on_forward;
  /// Polled per batched forward and while an empty batch waits; true stops the run.
  std::function<bool()> stop_requested;
  /// Polled per batched forward; true commits what is finished of open leases.
  std::function<bool()> commit_due;
};

/// Requests the next lease when the last prompt of the current one starts. Takes the reply when a
/// place is free, but at least one forward later, so that decoding does not wait and ranks that
/// start together share leases evenly. Several leases may be open; each is committed when its last
/// prompt is finished, or in parts. The coordinator, which answers commit requests until all ranks
/// have left the phase, grants each prompt to one attempt only, so that two attempts of a lease
/// (one expired, or a backup) may both commit parts of it. Trajectories do not depend on the
/// leases.
///
/// On a stop of this rank or of the coordinator no prompt is started. This rank first lets the
/// coordinator know, which answers `stop` to all from then on. Then it commits the finished prompts
/// of its open leases, decodes the running ones for up to `stop_seconds`, or until the job's end
/// (seconds_to_stop()), and commits those. Fault place: generate, after each finished prompt.
class LeasedGeneration {
 public:
  /// `generator` must outlive this object; all hooks must be set.
  LeasedGeneration(TrajectoryGenerator& generator, LeaseHooks hooks, double stop_seconds);

  /// Returns true when all ranks together have committed every prompt of the round; false after a
  /// stop. Leaves no request open.
  [[nodiscard]] bool run();

 private:
  struct OpenLease {
    Lease lease;
    std::vector<Trajectory> done;  ///< Not yet committed.
    std::size_t to_finish = 0;     ///< Prompts waiting or running.
  };

  void admit_leased();
  void step();
  [[nodiscard]] std::optional<GeneratePrompt> next();
  void ask(bool stop_requested, bool idle);
  void take();
  void open(Lease lease);
  void collect(Trajectory trajectory);
  void commit_finished(OpenLease& open);
  void commit_all_finished();
  [[nodiscard]] bool over();
  void stop();

  TrajectoryGenerator& generator_;
  LeaseHooks hooks_;
  double stop_seconds_;
  std::map<LeaseId, OpenLease> open_;
  std::unordered_map<PromptId, LeaseId> lease_of_;
  std::deque<PromptId> waiting_;
  std::int64_t forwards_ = 0;
  std::int64_t asked_at_ = 0;                       ///< `forwards_` at the open request.
  std::chrono::steady_clock::time_point retry_at_;  ///< Earliest next request after `wait`.
  std::chrono::milliseconds retry_;                 ///< Delay after the next `wait`.
  bool asked_ = false;
  bool drained_ = false;
  bool stopped_ = false;
  bool coordinator_stops_ = false;
};

}  // namespace jforge
