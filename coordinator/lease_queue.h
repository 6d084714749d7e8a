#pragma once

/// Which prompts are free, leased and done: pure logic, no clock and no messages of its own, so
/// that it is tested with thousands of simulated workers.

#include <cstdint>
#include <deque>
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

class LeaseQueue {
 public:
  /// Prompts are sorted by length (ties by id) and cut into leases of `prompts_per_lease` ≥ 1;
  /// longest first, so that the last leases are short ones. Lease ids start at `first_id` (beyond
  /// every committed shard's).
  LeaseQueue(std::vector<PendingPrompt> prompts, std::int64_t prompts_per_lease, LeaseId first_id);

  /// The next free lease for `rank`, valid until `now + lease_seconds`; nothing when none is free.
  [[nodiscard]] std::optional<Lease> grant(Rank rank, double now_seconds, double lease_seconds);
  /// Whether this attempt may commit its shard. One attempt per lease is ever granted; asking twice
  /// gives the same answer.
  [[nodiscard]] bool request_commit(LeaseId id, std::int32_t attempt);
  /// The granted attempt is durable.
  void committed(LeaseId id, std::int32_t attempt);
  /// Leases whose time is over become free again (as a further attempt). An attempt already granted
  /// its commit keeps it. Returns how many expired.
  std::size_t expire(double now_seconds);
  /// Work of `rank` is still going on: its leases are extended to now + lease_seconds.
  void extend(Rank rank, double now_seconds, double lease_seconds);

  [[nodiscard]] bool drained() const noexcept { return committed_leases_ == leases_.size(); }
  [[nodiscard]] std::int64_t prompts_total() const noexcept { return prompts_total_; }
  [[nodiscard]] std::int64_t prompts_committed() const noexcept { return prompts_committed_; }
  [[nodiscard]] std::size_t leases_total() const noexcept { return leases_.size(); }

 private:
  enum class State { free, leased, granted, committed };
  struct Entry {
    std::vector<PromptId> prompts;
    State state = State::free;
    std::int32_t next_attempt = 0;
    std::int32_t granted_attempt = -1;
    Rank holder = -1;
    double deadline_seconds = 0;
  };
  [[nodiscard]] Entry& entry(LeaseId id);

  LeaseId first_id_;
  std::vector<Entry> leases_;
  std::deque<std::size_t> free_;
  std::size_t committed_leases_ = 0;
  std::int64_t prompts_total_ = 0;
  std::int64_t prompts_committed_ = 0;
};

}  // namespace jforge
