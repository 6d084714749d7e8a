#include "coordinator/lease_queue.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <unordered_set>

#include "runtime/error.h"

namespace jforge {

namespace {
/// Weight of the newest lease in lease_takes_seconds_.
constexpr double kNewest = 0.05;
}  // namespace

LeaseQueue::LeaseQueue(std::vector<PendingPrompt> prompts, const LeaseSizes& sizes,
                       LeaseId first_id)
    : first_id_(first_id), sizes_(sizes), prompts_(std::move(prompts)) {
  expect(sizes.most >= 1, "a lease holds at least one prompt");
  expect(sizes.first >= 1 && sizes.ranks >= 1 && sizes.seconds > 0, "sizes of leases");
  std::ranges::sort(prompts_, [](const PendingPrompt& a, const PendingPrompt& b) {
    return a.tokens != b.tokens ? a.tokens > b.tokens : a.id < b.id;
  });
}

LeaseQueue::Entry& LeaseQueue::entry(LeaseId id) {
  if (id < first_id_ || id >= first_id_ + static_cast<LeaseId>(leases_.size())) {
    throw CommError("lease " + std::to_string(id) + " was never given out in this round");
  }
  return leases_[static_cast<std::size_t>(id - first_id_)];
}

/// A rank of unknown speed counts as average and starts with a small lease.
std::size_t LeaseQueue::next_size(const Worker& worker) const {
  const double mean = known_ranks_ == 0 ? 1 : known_speed_ / known_ranks_;
  const bool known = worker.prompts_per_second > 0;
  const double own = known ? worker.prompts_per_second : mean;
  const double all = known_speed_ + mean * std::max(0, sizes_.ranks - known_ranks_);
  const auto left = static_cast<double>(prompts_.size() - next_);
  const double most = known ? sizes_.seconds * own : static_cast<double>(sizes_.first);
  const double part = std::min(most, kShareOfLeft * left * own / std::max(all, own));
  const auto size =
      static_cast<std::size_t>(std::clamp(std::ceil(part), 1.0, static_cast<double>(sizes_.most)));
  return std::min(size, prompts_.size() - next_);
}

std::optional<Lease> LeaseQueue::grant(Rank rank, double now_seconds, double lease_seconds) {
  const auto [place, is_new] = workers_.try_emplace(rank);
  if (is_new) {
    place->second.first_grant_seconds = now_seconds;
  }
  if (!free_.empty()) {
    const std::size_t index = free_.front();
    free_.pop_front();
    return give(index, rank, now_seconds, lease_seconds);
  }
  if (next_ < prompts_.size()) {
    const std::size_t size = next_size(place->second);
    Entry lease;
    lease.begin = next_;
    lease.end = next_ + size;
    next_ = lease.end;
    leases_.push_back(lease);
    return give(leases_.size() - 1, rank, now_seconds, lease_seconds);
  }
  if (const auto late = late_lease(rank, now_seconds)) {
    leases_[*late].backed_up = true;
    take_from_holder(*late);
    return give(*late, rank, now_seconds, lease_seconds);
  }
  return std::nullopt;
}

/// Returns the overdue lease of another rank that was granted first.
std::optional<std::size_t> LeaseQueue::late_lease(Rank rank, double now_seconds) {
  while (oldest_open_ < leases_.size() && leases_[oldest_open_].state == State::committed) {
    ++oldest_open_;
  }
  std::optional<std::size_t> latest;
  if (lease_takes_seconds_ <= 0) {
    return latest;
  }
  double granted = now_seconds - kLate * lease_takes_seconds_;
  for (std::size_t index = oldest_open_; index < leases_.size(); ++index) {
    const Entry& lease = leases_[index];
    if (lease.state == State::leased && !lease.backed_up && lease.holder != rank &&
        lease.granted_seconds < granted) {
      granted = lease.granted_seconds;
      latest = index;
    }
  }
  return latest;
}

Lease LeaseQueue::give(std::size_t index, Rank rank, double now_seconds, double lease_seconds) {
  Entry& lease = leases_[index];
  lease.state = State::leased;
  lease.holder = rank;
  lease.granted_seconds = now_seconds;
  lease.deadline_seconds = now_seconds + lease_seconds;
  earliest_deadline_ = std::min(earliest_deadline_, lease.deadline_seconds);
  workers_[rank].leases.push_back(index);
  repeats_ += lease.next_attempt > 0 ? 1 : 0;
  Lease given{first_id_ + static_cast<LeaseId>(index), lease.next_attempt++, {}};
  given.prompts.reserve(lease.end - lease.begin);
  for (std::size_t i = lease.begin; i < lease.end; ++i) {
    given.prompts.push_back(prompts_[i].id);
  }
  return given;
}

void LeaseQueue::take_from_holder(std::size_t index) {
  std::erase(workers_[leases_[index].holder].leases, index);
}

Lease LeaseQueue::request_commit(const Lease& finished) {
  Entry& lease = entry(finished.id);
  Lease granted{finished.id, finished.attempt, {}};
  if (lease.state == State::granted || lease.state == State::committed) {
    return granted;
  }
  const std::unordered_set<PromptId> done(finished.prompts.begin(), finished.prompts.end());
  const auto open = std::span(prompts_).subspan(lease.begin, lease.end - lease.begin);
  std::stable_partition(open.begin(), open.end(), [&](const PendingPrompt& prompt) {
    const bool is_done = done.contains(prompt.id);
    if (is_done) {
      granted.prompts.push_back(prompt.id);
    }
    return is_done;
  });
  if (granted.prompts.empty()) {
    return granted;
  }
  if (granted.prompts.size() < open.size()) {
    granted.id = first_id_ + static_cast<LeaseId>(leases_.size());
    Entry part = lease;
    lease.begin += granted.prompts.size();
    part.end = lease.begin;
    part.state = State::granted;
    part.granted_attempt = finished.attempt;
    part.is_part = true;
    leases_.push_back(part);
    return granted;
  }
  const auto index = static_cast<std::size_t>(finished.id - first_id_);
  // An expired attempt may still commit if it finishes before its successor.
  if (lease.state == State::free) {
    std::erase(free_, index);
  } else {
    take_from_holder(index);
  }
  lease.state = State::granted;
  lease.granted_attempt = finished.attempt;
  return granted;
}

void LeaseQueue::committed(LeaseId id, std::int32_t attempt, double now_seconds) {
  Entry& lease = entry(id);
  expect(lease.state == State::granted && lease.granted_attempt == attempt,
         "commit of a lease that was not granted");
  lease.state = State::committed;
  const auto prompts = static_cast<std::int64_t>(lease.end - lease.begin);
  prompts_committed_ += prompts;
  if (lease.next_attempt > 1) {
    return;  // The committing rank may not be the last holder.
  }
  if (!lease.is_part) {
    const double took = now_seconds - lease.granted_seconds;
    lease_takes_seconds_ =
        lease_takes_seconds_ <= 0 ? took : (1 - kNewest) * lease_takes_seconds_ + kNewest * took;
  }
  Worker& worker = workers_[lease.holder];
  worker.prompts += prompts;
  const double worked = now_seconds - worker.first_grant_seconds;
  if (worked > 0) {
    known_ranks_ += worker.prompts_per_second > 0 ? 0 : 1;
    known_speed_ -= worker.prompts_per_second;
    worker.prompts_per_second = static_cast<double>(worker.prompts) / worked;
    known_speed_ += worker.prompts_per_second;
  }
}

std::size_t LeaseQueue::expire(double now_seconds) {
  if (now_seconds < earliest_deadline_) {
    return 0;
  }
  std::size_t expired = 0;
  earliest_deadline_ = std::numeric_limits<double>::infinity();
  for (auto& [rank, worker] : workers_) {
    std::erase_if(worker.leases, [&](std::size_t index) {
      Entry& lease = leases_[index];
      if (lease.deadline_seconds > now_seconds) {
        earliest_deadline_ = std::min(earliest_deadline_, lease.deadline_seconds);
        return false;
      }
      lease.state = State::free;
      lease.backed_up = false;
      free_.push_front(index);
      ++expired;
      return true;
    });
  }
  return expired;
}

void LeaseQueue::extend(Rank rank, double now_seconds, double lease_seconds) {
  const auto worker = workers_.find(rank);
  if (worker == workers_.end()) {
    return;
  }
  for (const std::size_t index : worker->second.leases) {
    leases_[index].deadline_seconds = now_seconds + lease_seconds;
  }
}

}  // namespace jforge
