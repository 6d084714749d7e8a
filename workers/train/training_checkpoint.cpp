#include "workers/train/training_checkpoint.h"

#include <span>
#include <utility>
#include <vector>

#include "runtime/comm/failure_agreement.h"

namespace jforge {

void save_training(CheckpointWriter& writer, CheckpointState state, const ParameterTable& table,
                   const ShardedAdamW& optimizer) {
  state.optimizer_updates = optimizer.updates();
  std::vector<float> first;
  std::vector<float> second;
  writer.save(state, {table, optimizer.store().masters(),
                      optimizer.shard_vector(optimizer.first_moment(), first),
                      optimizer.shard_vector(optimizer.second_moment(), second)});
}

void resume_training(const Communicator& comm, const Checkpoint& checkpoint,
                     const ParameterTable& table, ShardedAdamW& optimizer) {
  // Sharded moments go straight to their place; the weights, which may be whole there, change when
  // all ranks have read.
  const auto size = static_cast<std::size_t>(shard_vector_size(table));
  std::vector<float> weights;
  std::vector<float> first_memory;
  std::vector<float> second_memory;
  const auto place = [&](const TensorView& state, std::vector<float>& memory) {
    if (optimizer.store().sharding().shards_state()) {
      return state.span<float>();
    }
    memory.resize(size);
    return std::span<float>(memory);
  };
  std::span<float> first;
  std::span<float> second;
  together(comm, [&] {
    weights.resize(size);
    first = place(optimizer.first_moment(), first_memory);
    second = place(optimizer.second_moment(), second_memory);
    read_shard_vectors(checkpoint, table, comm.rank(), weights, first, second);
  });
  optimizer.load(weights, first, second, checkpoint.manifest.state.optimizer_updates);
}

}  // namespace jforge
