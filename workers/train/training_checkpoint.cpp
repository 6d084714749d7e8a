#include "workers/train/training_checkpoint.h"

#include <optional>
#include <span>
#include <utility>

#include "runtime/comm/failure_agreement.h"

namespace jforge {

void save_training(CheckpointWriter& writer, CheckpointState state, const ParameterTable& table,
                   const ShardedAdamW& optimizer) {
  state.optimizer_updates = optimizer.updates();
  optimizer.store().home().queue().synchronize();
  writer.save(state, {table, optimizer.store().masters(), optimizer.first_moment(),
                      optimizer.second_moment()});
}

void resume_training(const Communicator& comm, const Checkpoint& checkpoint,
                     const ParameterTable& table, ShardedAdamW& optimizer, MemoryAccount& account) {
  // One vector at a time, in the same memory or, for sharded state on the host, in place. Weights
  // come last: they change only after all ranks have read everything.
  Buffer memory;
  std::optional<SliceReader> reader;
  together(comm, [&] {
    const std::int64_t size = shard_vector_size(table);
    memory = Buffer(static_cast<std::size_t>(size) * sizeof(float), account, MemoryUse::staging);
    reader.emplace(checkpoint, table);
  });
  const std::span<float> staged = memory.floats({shard_vector_size(table)}).span<float>();
  const bool in_place = optimizer.store().sharding().shards_state() &&
                        optimizer.store().home().device() == Device::cpu;
  const auto read = [&](ShardVector vector, std::span<float> target) {
    together(comm, [&] { reader->read_shard(vector, comm.rank() % table.shard_count(), target); });
  };
  const auto resume_moment = [&](ShardVector vector, const TensorView& state) {
    const std::span<float> target = in_place ? state.span<float>() : staged;
    read(vector, target);
    optimizer.load_moment(target, state);
  };
  resume_moment(ShardVector::first_moment, optimizer.first_moment());
  resume_moment(ShardVector::second_moment, optimizer.second_moment());
  read(ShardVector::parameter, staged);
  optimizer.load_weights(staged, checkpoint.manifest.state.optimizer_updates);
}

}  // namespace jforge
