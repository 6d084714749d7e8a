#include "coordinator/lease_queue.h"

#include <algorithm>
#include <string>

#include "runtime/error.h"

namespace jforge {

LeaseQueue::LeaseQueue(std::vector<PendingPrompt> prompts, std::int64_t prompts_per_lease,
                       LeaseId first_id)
    : first_id_(first_id), prompts_total_(static_cast<std::int64_t>(prompts.size())) {
  expect(prompts_per_lease >= 1, "a lease holds at least one prompt");
  std::ranges::sort(prompts, [](const PendingPrompt& a, const PendingPrompt& b) {
    return a.tokens != b.tokens ? a.tokens > b.tokens : a.id < b.id;
  });
  const auto size = static_cast<std::size_t>(prompts_per_lease);
  for (std::size_t begin = 0; begin < prompts.size(); begin += size) {
    Entry lease;
    for (std::size_t i = begin; i < std::min(begin + size, prompts.size()); ++i) {
      lease.prompts.push_back(prompts[i].id);
    }
    free_.push_back(leases_.size());
    leases_.push_back(std::move(lease));
  }
}

LeaseQueue::Entry& LeaseQueue::entry(LeaseId id) {
  if (id < first_id_ || id >= first_id_ + static_cast<LeaseId>(leases_.size())) {
    throw CommError("lease " + std::to_string(id) + " was never given out in this round");
  }
  return leases_[static_cast<std::size_t>(id - first_id_)];
}

std::optional<Lease> LeaseQueue::grant(Rank rank, double now_seconds, double lease_seconds) {
  if (free_.empty()) {
    return std::nullopt;
  }
  const std::size_t index = free_.front();
  free_.pop_front();
  Entry& lease = leases_[index];
  lease.state = State::leased;
  lease.holder = rank;
  lease.deadline_seconds = now_seconds + lease_seconds;
  return Lease{first_id_ + static_cast<LeaseId>(index), lease.next_attempt++, lease.prompts};
}

bool LeaseQueue::request_commit(LeaseId id, std::int32_t attempt) {
  Entry& lease = entry(id);
  if (lease.state == State::granted || lease.state == State::committed) {
    return lease.granted_attempt == attempt;
  }
  // An expired attempt that finishes before its successor is as good as any: first commit wins.
  if (lease.state == State::free) {
    std::erase(free_, static_cast<std::size_t>(id - first_id_));
  }
  lease.state = State::granted;
  lease.granted_attempt = attempt;
  return true;
}

void LeaseQueue::committed(LeaseId id, std::int32_t attempt) {
  Entry& lease = entry(id);
  expect(lease.state == State::granted && lease.granted_attempt == attempt,
         "commit of a lease that was not granted");
  lease.state = State::committed;
  ++committed_leases_;
  prompts_committed_ += static_cast<std::int64_t>(lease.prompts.size());
}

std::size_t LeaseQueue::expire(double now_seconds) {
  std::size_t expired = 0;
  for (std::size_t index = 0; index < leases_.size(); ++index) {
    Entry& lease = leases_[index];
    if (lease.state == State::leased && lease.deadline_seconds <= now_seconds) {
      lease.state = State::free;
      free_.push_front(index);
      ++expired;
    }
  }
  return expired;
}

void LeaseQueue::extend(Rank rank, double now_seconds, double lease_seconds) {
  for (Entry& lease : leases_) {
    if (lease.state == State::leased && lease.holder == rank) {
      lease.deadline_seconds = now_seconds + lease_seconds;
    }
  }
}

}  // namespace jforge
