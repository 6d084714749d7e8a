#pragma once

/// Tracks every rank's last heartbeat. Pure logic; the caller supplies the time.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "workers/protocol/messages.h"

namespace jforge {

class WorkerMembership {
 public:
  /// All ranks count as heard at `now_seconds` and as lost after `limit_seconds` of silence.
  WorkerMembership(int ranks, double limit_seconds, double now_seconds);
  void heard(Rank rank, const Heartbeat& heartbeat, double now_seconds);
  /// Returns the first lost rank.
  [[nodiscard]] std::optional<Rank> lost(double now_seconds) const;
  /// Returns the ranks' tokens and forwards in their present phases.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> made() const;
  /// Sum of the ranks' progress counters; grows while any rank works.
  [[nodiscard]] std::uint64_t progress() const noexcept { return progress_; }
  /// Returns whether `rank` progressed since the previous call.
  [[nodiscard]] bool progressed(Rank rank);
  [[nodiscard]] const std::string& host(Rank rank) const {
    return members_.at(static_cast<std::size_t>(rank)).last.host;
  }
  /// One line per rank, for the log before an abort.
  [[nodiscard]] std::string table(double now_seconds) const;

 private:
  struct Member {
    Heartbeat last;
    double heard_seconds = 0;
    std::uint64_t progress_seen = 0;
  };
  std::vector<Member> members_;
  std::uint64_t progress_ = 0;
  double limit_seconds_;
};

}  // namespace jforge
