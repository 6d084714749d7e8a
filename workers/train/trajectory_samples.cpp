#include "workers/train/trajectory_samples.h"

#include <string>

#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"

namespace jforge {

namespace {

TrajectoryStore open_checked(const std::filesystem::path& directory, const Communicator& comm) {
  TrajectoryStore store;
  const auto open_as = [&](bool my_turn, SealCheck check) {
    const bool ignored = agree(comm, false, [&] {
      if (my_turn) {
        store = TrajectoryStore::open(directory, check);
      }
    });
    (void)ignored;
  };
  open_as(comm.rank() == 0, SealCheck::content);
  open_as(comm.rank() != 0, SealCheck::size);
  return store;
}

}  // namespace

TrajectorySamples::TrajectorySamples(const std::filesystem::path& directory,
                                     const SampleOrderOptions& order, std::int64_t steps,
                                     const NoiseScheduleOptions& schedule, const Communicator& comm)
    : order_(order),
      steps_(steps),
      schedule_(schedule),
      store_(open_checked(directory, comm)),
      lengths_(static_cast<std::size_t>(order.num_samples), 0) {
  for (const ShardInfo& shard : store_.shards()) {
    for (std::size_t i = 0; i < shard.prompt_ids.size(); ++i) {
      if (shard.prompt_ids[i] < order.num_samples) {
        lengths_[static_cast<std::size_t>(shard.prompt_ids[i])] = shard.packed_lengths[i];
      }
    }
  }
  for (const PromptId prompt : consumed_samples(order, steps)) {
    if (lengths_[static_cast<std::size_t>(prompt)] == 0) {
      throw DataError("prompt " + std::to_string(prompt) + " has no trajectory in " +
                      directory.string() + "; run the generating phase of the round again");
    }
  }
}

PromptId TrajectorySamples::prompt_at(std::int64_t index) const {
  const std::int64_t epoch = index / order_.num_samples;
  if (epoch != epoch_) {
    permutation_ = epoch_permutation(order_.seed, order_.round, epoch, order_.num_samples);
    epoch_ = epoch;
  }
  return permutation_[static_cast<std::size_t>(index % order_.num_samples)];
}

std::int64_t TrajectorySamples::length(std::int64_t index) const {
  return lengths_[static_cast<std::size_t>(prompt_at(index))];
}

TrainingSample TrajectorySamples::sample(std::int64_t index) {
  return make_packed_sample(store_.read(prompt_at(index)), schedule_);
}

}  // namespace jforge
