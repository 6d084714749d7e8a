#pragma once

/// A model's weights on one rank: configuration, table and one flat float32 vector.

#include <filesystem>
#include <memory>

#include "checkpoints/checkpoint_reader.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// Full weights (ZeRO stages 0 to 2), cut for `shard_count` ranks.
class ModelState {
 public:
  /// Reads config.json; weights are zero until one of the loads. Throws DataError.
  ModelState(const std::filesystem::path& hf_directory, int shard_count, MemoryAccount& account);
  /// For pre-training: a model without files. Weights are zero.
  ModelState(TransformerConfig config, int shard_count, MemoryAccount& account);

  /// For one process. Both throw DataError.
  void load_hf(const std::filesystem::path& directory);
  void load_checkpoint(const Checkpoint& checkpoint);
  /// Collective over `comm`. Rank 0 reads and broadcasts. Throws DataError on all ranks if it
  /// cannot.
  void load_hf(const Communicator& comm, const std::filesystem::path& directory);
  void load_checkpoint(const Communicator& comm, const Checkpoint& checkpoint);
  void initialise(std::uint64_t seed);

  [[nodiscard]] const TransformerConfig& config() const noexcept { return config_; }
  [[nodiscard]] const ParameterTable& table() const noexcept { return table_; }
  [[nodiscard]] TensorView weights() const { return weights_.floats({table_.flat_size()}); }
  /// Frees the memory of the weights while training keeps its own.
  void drop_weights() { weights_ = Buffer(); }
  /// Allocates it again, zeroed.
  void take_weights(MemoryAccount& account);

 private:
  TransformerConfig config_;
  ParameterTable table_;
  Buffer weights_;
};

}  // namespace jforge
