#include "workers/train/trajectory_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"
#include "runtime/phase_clock.h"

namespace jforge {

namespace {

// Only rank 0 indexes the shards: opening a file on a shared file system takes tens of
// milliseconds, and other ranks' listings may be stale.
TrajectoryStore open_checked(const std::filesystem::path& directory,
                             std::span<const PromptId> expected, const Communicator& comm) {
  TrajectoryStore store;
  std::string index;
  together(comm, [&] {
    if (comm.rank() == 0) {
      store = TrajectoryStore::open_complete(directory, expected);
      index = store.index();
    }
  });
  index = broadcast_text(comm, index, 0);
  together(comm, [&] {
    if (comm.rank() != 0) {
      store = TrajectoryStore::from_index(directory, index);
    }
  });
  return store;
}

}  // namespace

TrajectorySamples::TrajectorySamples(const std::filesystem::path& directory,
                                     const SampleOrderOptions& order, std::int64_t steps,
                                     const NoiseScheduleOptions& schedule, const Communicator& comm,
                                     const Cleaning& cleaning)
    : order_(order),
      steps_(steps),
      schedule_(schedule),
      store_(open_checked(directory, consumed_samples(order, steps), comm)),
      lengths_(static_cast<std::size_t>(order.num_samples), 0),
      ranks_(comm.size()),
      rank_(comm.rank()) {
  for (const ShardInfo& shard : store_.shards()) {
    for (std::size_t i = 0; i < shard.prompt_ids.size(); ++i) {
      if (shard.prompt_ids[i] < order.num_samples) {
        lengths_[static_cast<std::size_t>(shard.prompt_ids[i])] = shard.packed_lengths[i];
      }
    }
  }
  if (cleaning.config.active()) {
    clean(cleaning, comm);
  }
}

/// Zeros for other ranks' shards, so that the sum over ranks is complete.
void TrajectorySamples::clean(const Cleaning& cleaning, const Communicator& comm) {
  std::vector<std::int32_t> verdicts(static_cast<std::size_t>(order_.options().num_samples), 0);
  together(comm, [&] {
    for (auto shard = static_cast<std::size_t>(rank_); shard < store_.shards().size();
         shard += static_cast<std::size_t>(ranks_)) {
      for (const PromptId id : store_.shards()[shard].prompt_ids) {
        if (id < order_.options().num_samples) {
          verdicts[static_cast<std::size_t>(id)] =
              static_cast<std::int32_t>(judge(cleaning.config, store_.read(id), cleaning.means));
        }
      }
      note_progress();
    }
  });
  all_reduce_sum<std::int32_t>(comm, verdicts);
  const auto takes = [&](PromptId id) {
    return lengths_[static_cast<std::size_t>(id)] > 0 &&
           verdicts[static_cast<std::size_t>(id)] == 0;
  };
  FilterCounts& counts = cleaned_.emplace();
  for (std::size_t id = 0; id < verdicts.size(); ++id) {
    counts.at(static_cast<std::size_t>(verdicts[id])) += lengths_[id] > 0 ? 1 : 0;
  }
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (counts[0] == 0) {
    std::string reasons;
    for (std::size_t i = 1; i < counts.size(); ++i) {
      if (counts.at(i) > 0) {
        reasons += fmt::format("{}{} {}", reasons.empty() ? "" : ", ",
                               to_string(static_cast<FilterVerdict>(i)), counts.at(i));
      }
    }
    DataError error(
        fmt::format("cleaning leaves none of the round's {} trajectories to train on ({}); loosen "
                    "the train.filter_* keys",
                    all, reasons));
    error.set_on_all_ranks();  // all ranks have the same verdicts
    throw error;
  }
  if (counts[0] == all) {
    return;
  }
  kept_order_.reserve(static_cast<std::size_t>(size()));
  for (std::int64_t place = 0; std::cmp_less(kept_order_.size(), size()); ++place) {
    if (const PromptId id = order_.at(place); takes(id)) {
      kept_order_.push_back(id);
    }
  }
}

PromptId TrajectorySamples::prompt_at(std::int64_t index) const {
  return kept_order_.empty() ? order_.at(index) : kept_order_.at(static_cast<std::size_t>(index));
}

std::int64_t TrajectorySamples::length(std::int64_t index) const {
  return lengths_[static_cast<std::size_t>(prompt_at(index))];
}

TrajectorySamples::~TrajectorySamples() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

TrainingSample TrajectorySamples::sample(std::int64_t index) {
  const std::int64_t step = index / order_.options().batch_samples;
  if (current_.step != step) {
    advance_to(step);
  }
  const auto slot = std::find_if(current_.slots.begin(), current_.slots.end(),
                                 [&](const Slot& candidate) { return candidate.index == index; });
  if (slot == current_.slots.end() || (!slot->sample && !slot->failure)) {
    return make(index);  // another rank's, or taken before
  }
  if (slot->failure) {
    std::rethrow_exception(slot->failure);
  }
  TrainingSample sample = std::move(*slot->sample);
  slot->sample.reset();
  return sample;
}

std::int64_t TrajectorySamples::files_opened() const {
  const std::scoped_lock lock(store_turn_);
  return store_.files_opened();
}

TrainingSample TrajectorySamples::make(std::int64_t index) const {
  const std::scoped_lock lock(store_turn_);
  return make_packed_sample(store_.read(prompt_at(index)), schedule_);
}

// Sorted by shard, so that each shard is opened once per step.
void TrajectorySamples::plan(Batch& batch, std::int64_t step) {
  const std::int64_t first = step * order_.options().batch_samples;
  const std::int64_t count = std::min(order_.options().batch_samples, size() - first);
  batch.step = step;
  batch.slots.clear();
  batch_lengths_.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    batch_lengths_.push_back(length(first + i));
  }
  division_.assign_to_ranks(batch_lengths_, ranks_);
  for (const std::size_t member : division_.lists()[static_cast<std::size_t>(rank_)]) {
    Slot& slot = batch.slots.emplace_back();
    slot.index = first + static_cast<std::int64_t>(member);
    slot.shard = store_.shard_of(prompt_at(slot.index));
  }
  std::stable_sort(batch.slots.begin(), batch.slots.end(),
                   [](const Slot& a, const Slot& b) { return a.shard < b.shard; });
}

void TrajectorySamples::advance_to(std::int64_t step) {
  {
    std::unique_lock lock(mutex_);
    for (std::size_t seen = slots_read_; reading_; seen = slots_read_) {
      // A slow file system is no hang, but a sample that never arrives is.
      changed_.wait(lock, [&] { return !reading_ || slots_read_ != seen; });
      note_progress();
    }
  }
  // The reader thread is idle here, so this thread may use next_ and division_.
  if (next_.step != step) {
    plan(next_, step);
    for (Slot& slot : next_.slots) {
      read(slot);
    }
  }
  std::swap(current_, next_);
  if (step + 1 >= steps_) {
    return;
  }
  plan(next_, step + 1);
  {
    const std::scoped_lock lock(mutex_);
    reading_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { read_ahead(); });
  }
}

void TrajectorySamples::read(Slot& slot) {
  try {
    slot.sample.emplace(make(slot.index));
  } catch (...) {
    slot.failure = std::current_exception();
  }
}

void TrajectorySamples::read_ahead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return reading_ || ending_; });
    for (std::size_t i = 0; i < next_.slots.size() && !ending_; ++i) {
      lock.unlock();
      read(next_.slots[i]);
      lock.lock();
      ++slots_read_;
      changed_.notify_all();
    }
    if (ending_) {
      return;
    }
    reading_ = false;
    changed_.notify_all();
  }
}

}  // namespace jforge
