#include "workers/train/training_checkpoint.h"

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
  const auto size = static_cast<std::size_t>(shard_vector_size(table));
  std::vector<float> weights;
  std::vector<float> first;
  std::vector<float> second;
  static_cast<void>(agree(comm, false, [&] {
    weights.resize(size);
    first.resize(size);
    second.resize(size);
    read_shard_vectors(checkpoint, table, comm.rank(), weights, first, second);
  }));
  optimizer.load(weights, first, second, checkpoint.manifest.state.optimizer_updates);
}

}  // namespace jforge
