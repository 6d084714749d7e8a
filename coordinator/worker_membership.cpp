#include "coordinator/worker_membership.h"

#include <fmt/format.h>

namespace jforge {

WorkerMembership::WorkerMembership(int ranks, double limit_seconds, double now_seconds)
    : members_(static_cast<std::size_t>(ranks)), limit_seconds_(limit_seconds) {
  for (Member& member : members_) {
    member.heard_seconds = now_seconds;
  }
}

void WorkerMembership::heard(Rank rank, const Heartbeat& heartbeat, double now_seconds) {
  Member& member = members_.at(static_cast<std::size_t>(rank));
  progress_ += heartbeat.progress - member.last.progress;
  member.last = heartbeat;
  member.heard_seconds = now_seconds;
}

std::optional<Rank> WorkerMembership::lost(double now_seconds) const {
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (now_seconds - members_[rank].heard_seconds > limit_seconds_) {
      return static_cast<Rank>(rank);
    }
  }
  return std::nullopt;
}

std::pair<std::int64_t, std::int64_t> WorkerMembership::made() const {
  std::pair<std::int64_t, std::int64_t> sum{0, 0};
  for (const Member& member : members_) {
    sum.first += member.last.tokens;
    sum.second += member.last.forwards;
  }
  return sum;
}

bool WorkerMembership::progressed(Rank rank) {
  Member& member = members_.at(static_cast<std::size_t>(rank));
  const bool moved = member.last.progress != member.progress_seen;
  member.progress_seen = member.last.progress;
  return moved;
}

std::string WorkerMembership::table(double now_seconds) const {
  std::string text = "rank  host  pid  phase  step  state  progress age  silent for\n";
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    text += fmt::format("{:4}  {}  {}  {}  {}  {}  {:.1f} s  {:.1f} s\n", rank,
                        member.last.host.empty() ? "?" : member.last.host, member.last.process_id,
                        member.last.phase.empty() ? "?" : member.last.phase, member.last.step,
                        member.last.waiting ? "waits" : "works", member.last.age_seconds,
                        now_seconds - member.heard_seconds);
  }
  return text;
}

}  // namespace jforge
