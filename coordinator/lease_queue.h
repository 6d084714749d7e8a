#pragma once

/// Which prompts are free, leased and done: pure logic, no clock and no messages of its own, so
/// that it is tested and simulated with thousands of workers (tests/benchmarks/lease_simulation).
///
/// Sizes of leases follow guided self-scheduling (Polychronopoulos & Kuck 1987), weighted by speed:
/// a rank gets a part of its share of what is left, large while there is much of it, small at the
/// end, so that all ranks end together. When nothing is left, a rank that has nothing to do gets a
/// copy of a lease that has been out for much longer than they take (backup tasks, Dean & Ghemawat
/// 2004): whichever attempt is first commits.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "runtime/ids.h"
#include "workers/protocol/messages.h"

namespace jforge {

/// A prompt that is still to be generated, with its length for bucketing.
struct PendingPrompt {
  PromptId id = 0;
  std::int64_t tokens = 0;
};

/// Prompts in a lease.
struct LeaseSizes {
  std::int64_t most = 256;
  std::int64_t first = 8;  ///< At most, for a rank whose speed is not known yet.
  int ranks = 1;           ///< That share the work.
  /// At most what a rank decodes in so long: a lease is lost whole when its rank dies.
  double seconds = 60;
};

class LeaseQueue {
 public:
  /// A lease is this part of a rank's share of the prompts that are left.
  static constexpr double kShareOfLeft = 0.5;
  /// A lease gets a backup once it has been out so many times as long as leases take of late.
  static constexpr double kLate = 2;

  /// Prompts are given out by length (ties by id), longest first, so that the last leases are short
  /// ones. Lease ids start at `first_id` (beyond every committed shard's).
  LeaseQueue(std::vector<PendingPrompt> prompts, const LeaseSizes& sizes, LeaseId first_id);

  /// The next lease for `rank`, valid until `now + lease_seconds`; nothing when none is free and no
  /// other rank's is late.
  [[nodiscard]] std::optional<Lease> grant(Rank rank, double now_seconds, double lease_seconds);
  /// Whether this attempt may commit its shard. One attempt per lease is ever granted; asking twice
  /// gives the same answer.
  [[nodiscard]] bool request_commit(LeaseId id, std::int32_t attempt);
  /// The granted attempt is durable.
  void committed(LeaseId id, std::int32_t attempt, double now_seconds);
  /// Leases whose time is over become free again (as a further attempt). An attempt already granted
  /// its commit keeps it. Returns how many expired.
  std::size_t expire(double now_seconds);
  /// Work of `rank` is still going on: its leases are extended to now + lease_seconds.
  void extend(Rank rank, double now_seconds, double lease_seconds);

  [[nodiscard]] bool drained() const noexcept {
    return next_ == prompts_.size() && committed_leases_ == leases_.size();
  }
  [[nodiscard]] std::int64_t prompts_total() const noexcept {
    return static_cast<std::int64_t>(prompts_.size());
  }
  [[nodiscard]] std::int64_t prompts_committed() const noexcept { return prompts_committed_; }
  /// Given out so far.
  [[nodiscard]] std::size_t leases() const noexcept { return leases_.size(); }
  /// Attempts beyond the first of a lease.
  [[nodiscard]] std::int64_t repeats() const noexcept { return repeats_; }

 private:
  enum class State { free, leased, granted, committed };
  struct Entry {
    std::size_t begin = 0;  ///< Its prompts: prompts_[begin … end).
    std::size_t end = 0;
    State state = State::free;
    std::int32_t next_attempt = 0;
    std::int32_t granted_attempt = -1;
    Rank holder = -1;
    double granted_seconds = 0;  ///< When its holder got it.
    double deadline_seconds = 0;
    bool backed_up = false;
  };
  /// What is known of a rank that was given work.
  struct Worker {
    double first_grant_seconds = 0;
    std::int64_t prompts = 0;         ///< Committed by it.
    double prompts_per_second = 0;    ///< 0: not known yet.
    std::vector<std::size_t> leases;  ///< That it holds.
  };

  [[nodiscard]] Entry& entry(LeaseId id);
  [[nodiscard]] std::size_t index_of(const Entry& lease) const;
  [[nodiscard]] std::size_t next_size(const Worker& worker) const;
  [[nodiscard]] std::optional<std::size_t> late_lease(Rank rank, double now_seconds);
  [[nodiscard]] Lease give(std::size_t index, Rank rank, double now_seconds, double lease_seconds);
  void take_from_holder(std::size_t index);

  LeaseId first_id_;
  LeaseSizes sizes_;
  std::vector<PendingPrompt> prompts_;  ///< In the order in which they are given out.
  std::size_t next_ = 0;                ///< The first that was never given out.
  std::vector<Entry> leases_;
  std::deque<std::size_t> free_;  ///< Expired ones.
  std::map<Rank, Worker> workers_;
  double known_speed_ = 0;          ///< Σ prompts_per_second …
  int known_ranks_ = 0;             ///< … over so many ranks.
  double lease_takes_seconds_ = 0;  ///< Of late, from grant to commit; 0: not known yet.
  double earliest_deadline_ = 0;    ///< No lease expires before.
  std::size_t oldest_open_ = 0;     ///< All leases before it are committed.
  std::size_t committed_leases_ = 0;
  std::int64_t prompts_committed_ = 0;
  std::int64_t repeats_ = 0;
};

}  // namespace jforge
