#pragma once

/// Who is alive: the last heartbeat of every rank. Pure logic; the caller brings the clock.

#include <optional>
#include <string>
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
  /// Whether `rank` showed progress since the previous call for it: extends its leases.
  [[nodiscard]] bool progressed(Rank rank);
  /// One line per rank: host, process, phase, step, age: the table logged before an abort.
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
