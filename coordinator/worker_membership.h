#pragma once

/// Who is alive: the last heartbeat of every rank. Pure logic; the caller brings the clock.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "workers/protocol/messages.h"

namespace jforge {

class WorkerMembership {
 public:
  /// All `ranks` count as heard at `now_seconds`. A rank is lost when nothing was heard for
  /// `limit_seconds`.
  WorkerMembership(int ranks, double limit_seconds, double now_seconds);
  void heard(Rank rank, const Heartbeat& heartbeat, double now_seconds);
  /// The first rank whose silence exceeds the limit.
  [[nodiscard]] std::optional<Rank> lost(double now_seconds) const;
  /// What the ranks have made in their present phases, by their last heartbeats: tokens, forwards.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> made() const;
  /// Sum of the ranks' progress counters: as long as it grows, the job goes on somewhere.
  [[nodiscard]] std::uint64_t progress() const;
  /// Whether `rank` showed progress since the previous call for it: extends its leases.
  [[nodiscard]] bool progressed(Rank rank);
  /// One line per rank: host, process, phase, step, whether it works or waits for others, age: the
  /// table logged before an abort.
  [[nodiscard]] std::string table(double now_seconds) const;

 private:
  struct Member {
    Heartbeat last;
    double heard_seconds = 0;
    std::uint64_t progress_seen = 0;
  };
  std::vector<Member> members_;
  double limit_seconds_;
};

}  // namespace jforge
