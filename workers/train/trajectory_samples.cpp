#include "workers/train/trajectory_samples.h"

#include <functional>
#include <span>
#include <sstream>
#include <string>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// What rank 0 has found is what all read: the others' listings may lag behind.
TrajectoryStore open_checked(const std::filesystem::path& directory,
                             std::span<const PromptId> expected, const Communicator& comm) {
  TrajectoryStore store;
  std::string names;
  const auto on_some = [&](bool my_turn, const std::function<void()>& open) {
    together(comm, my_turn ? open : std::function<void()>());
  };
  on_some(comm.rank() == 0, [&] {
    store = TrajectoryStore::open_complete(directory, expected, SealCheck::content);
    for (const ShardInfo& shard : store.shards()) {
      names += shard.path.filename().string() + '\n';
    }
  });
  std::istringstream lines(broadcast_text(comm, names, 0));
  on_some(comm.rank() != 0, [&] {
    std::vector<std::filesystem::path> shards;
    for (std::string name; std::getline(lines, name);) {
      shards.push_back(directory / name);
    }
    store = TrajectoryStore::open(shards, SealCheck::size);
    if (!store.damaged().empty()) {
      throw DataError(store.damaged().front().reason);
    }
  });
  return store;
}

}  // namespace

TrajectorySamples::TrajectorySamples(const std::filesystem::path& directory,
                                     const SampleOrderOptions& order, std::int64_t steps,
                                     const NoiseScheduleOptions& schedule, const Communicator& comm)
    : order_(order),
      steps_(steps),
      schedule_(schedule),
      store_(open_checked(directory, consumed_samples(order, steps), comm)),
      lengths_(static_cast<std::size_t>(order.num_samples), 0) {
  for (const ShardInfo& shard : store_.shards()) {
    for (std::size_t i = 0; i < shard.prompt_ids.size(); ++i) {
      if (shard.prompt_ids[i] < order.num_samples) {
        lengths_[static_cast<std::size_t>(shard.prompt_ids[i])] = shard.packed_lengths[i];
      }
    }
  }
}

std::int64_t TrajectorySamples::length(std::int64_t index) const {
  return lengths_[static_cast<std::size_t>(order_.at(index))];
}

TrainingSample TrajectorySamples::sample(std::int64_t index) {
  return make_packed_sample(store_.read(order_.at(index)), schedule_);
}

}  // namespace jforge
