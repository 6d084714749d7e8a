#include "workers/model_state.h"

#include "checkpoints/hf_model.h"
#include "model/transformer/weight_init.h"

namespace jforge {

ModelState::ModelState(const std::filesystem::path& hf_directory, int shard_count,
                       MemoryAccount& account)
    : ModelState(read_hf_config(hf_directory), shard_count, account) {}

ModelState::ModelState(TransformerConfig config, int shard_count, MemoryAccount& account)
    : config_(std::move(config)),
      table_(config_, shard_count),
      weights_(static_cast<std::size_t>(table_.flat_size()) * sizeof(float), account,
               MemoryUse::weights) {}

void ModelState::take_weights(MemoryAccount& account) {
  weights_ = Buffer(static_cast<std::size_t>(table_.flat_size()) * sizeof(float), account,
                    MemoryUse::weights);
}

void ModelState::load_hf(const std::filesystem::path& directory) {
  load_hf_weights(directory, config_, table_, weights());
}

void ModelState::load_checkpoint(const Checkpoint& checkpoint) {
  read_weights(checkpoint, table_, weights());
}

void ModelState::load_hf(const Communicator& comm, const std::filesystem::path& directory) {
  load_hf_weights(comm, directory, config_, table_, weights());
}

void ModelState::load_checkpoint(const Communicator& comm, const Checkpoint& checkpoint) {
  read_weights(comm, checkpoint, table_, weights());
}

void ModelState::initialise(std::uint64_t seed) {
  initialise_weights(table_, weights(), seed, config_.num_layers);
}

}  // namespace jforge
