#pragma once

/// Tracks free, leased and committed prompts. Pure logic without clock or messages
/// (results/reference/lease_simulation.md: thousands of simulated workers).
///
/// Lease sizes follow guided self-scheduling (Polychronopoulos & Kuck 1987) weighted by speed: a
/// part of the rank's share of the remaining prompts, so that all ranks end together. When none
/// remain, an idle rank gets a copy of an overdue lease (backup tasks, Dean & Ghemawat 2004); the
/// first attempt to finish commits.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "runtime/ids.h"
#include "workers/protocol/messages.h"

namespace jforge {

struct PendingPrompt {
  PromptId id = 0;
  std::int64_t tokens = 0;
};

/// In prompts.
struct LeaseSizes {
  std::int64_t most = 256;
  std::int64_t first = 8;  ///< Limit for a rank of unknown speed.
  int ranks = 1;           ///< Sharing the work.
  /// Limits a lease to a rank's work in this time.
  double seconds = 60;
};

class LeaseQueue {
 public:
  /// Lease size as a part of a rank's share of the remaining prompts.
  static constexpr double kShareOfLeft = 0.5;
  /// A lease is overdue after this many times the recent duration.
  static constexpr double kLate = 2;

  /// Issues the longest prompts first (ties by id), so that the last leases are short. Requires:
  /// `first_id` exceeds every committed shard's lease id.
  LeaseQueue(std::vector<PendingPrompt> prompts, const LeaseSizes& sizes, LeaseId first_id);

  /// Returns a lease until `now + lease_seconds`, if prompts are free or another's lease is
  /// overdue.
  [[nodiscard]] std::optional<Lease> grant(Rank rank, double now_seconds, double lease_seconds);
  /// Grants an attempt those of its finished prompts that no attempt was granted before, so that
  /// each is committed once. If that leaves prompts of the lease, those granted become a lease of
  /// their own, and later attempts get the rest.
  [[nodiscard]] Lease request_commit(const Lease& finished);
  /// Records that the granted attempt is durable.
  void committed(LeaseId id, std::int32_t attempt, double now_seconds);
  /// Frees expired leases, except those granted a commit; returns their number.
  std::size_t expire(double now_seconds);
  /// Extends the leases of a rank that showed progress.
  void extend(Rank rank, double now_seconds, double lease_seconds);

  [[nodiscard]] bool drained() const noexcept { return prompts_committed_ == prompts_total(); }
  [[nodiscard]] std::int64_t prompts_total() const noexcept {
    return static_cast<std::int64_t>(prompts_.size());
  }
  [[nodiscard]] std::int64_t prompts_committed() const noexcept { return prompts_committed_; }
  [[nodiscard]] std::int64_t repeats() const noexcept { return repeats_; }

 private:
  enum class State { free, leased, granted, committed };
  struct Entry {
    std::size_t begin = 0;  ///< Prompts [begin, end) of prompts_.
    std::size_t end = 0;
    State state = State::free;
    std::int32_t next_attempt = 0;
    std::int32_t granted_attempt = -1;
    Rank holder = -1;
    double granted_seconds = 0;
    double deadline_seconds = 0;
    bool backed_up = false;
    bool is_part = false;  ///< Of a lease that was not finished.
  };
  struct Worker {
    double first_grant_seconds = 0;
    std::int64_t prompts = 0;       ///< Committed.
    double prompts_per_second = 0;  ///< 0: unknown.
    std::vector<std::size_t> leases;
  };

  [[nodiscard]] Entry& entry(LeaseId id);
  [[nodiscard]] std::size_t next_size(const Worker& worker) const;
  [[nodiscard]] std::optional<std::size_t> late_lease(Rank rank, double now_seconds);
  [[nodiscard]] Lease give(std::size_t index, Rank rank, double now_seconds, double lease_seconds);
  void take_from_holder(std::size_t index);

  LeaseId first_id_;
  LeaseSizes sizes_;
  std::vector<PendingPrompt> prompts_;  ///< In issuing order.
  std::size_t next_ = 0;                ///< First prompt never issued.
  std::vector<Entry> leases_;
  std::deque<std::size_t> free_;  ///< Expired.
  std::map<Rank, Worker> workers_;
  double known_speed_ = 0;  ///< Sum over known_ranks_ ranks.
  int known_ranks_ = 0;
  double lease_takes_seconds_ = 0;  ///< Recent mean from grant to commit; 0: unknown.
  double earliest_deadline_ = 0;    ///< No lease expires earlier.
  std::size_t oldest_open_ = 0;     ///< All earlier leases are committed.
  std::int64_t prompts_committed_ = 0;
  std::int64_t repeats_ = 0;
};

}  // namespace jforge
