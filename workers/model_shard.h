#pragma once

/// A model on one rank between two phases, which holds only its shard (checkpoints/shard_slices.h).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/shard_slices.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/rank_grid.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// Copies this rank's block of a group, float32 [padded_size / ranks], to `target` in host memory.
using OwnBlock = std::function<void(std::int32_t group, const TensorView& target)>;

/// Collective over `comm`. Calls `use` with a reader of the whole model, of which every rank of
/// `within` gives its block; it charges one group's float32 memory to `account`. All ranks must
/// read the same parameters in the same order. If `use` throws on any rank, all ranks throw.
void with_gathered_weights(const Communicator& comm, const Communicator& within,
                           const ParameterTable& table, const OwnBlock& own_block,
                           MemoryAccount& account,
                           const std::function<void(const ParameterReader&)>& use);

/// Bytes of that group.
[[nodiscard]] double gathered_bytes(const ParameterTable& table);

class ModelShard {
 public:
  /// Holds no weights until one of the loads, initialise() or take(). `grid`: null if all ranks of
  /// `comm` share one copy. With `drafter`, the weights are those of a drafter for the model.
  ModelShard(TransformerConfig config, const Communicator& comm, MemoryAccount& account,
             const RankGrid* grid = nullptr, const std::optional<DrafterShape>& drafter = {});

  /// Collective. Every rank reads its own part, and compares its share of the files with their
  /// checksums. If one fails, all throw DataError.
  void load_hf(const std::filesystem::path& directory);
  void load_checkpoint(const Checkpoint& checkpoint);
  /// Local. weight_init.h's values.
  void initialise(std::uint64_t seed);

  [[nodiscard]] const TransformerConfig& config() const noexcept { return config_; }
  [[nodiscard]] const ParameterTable& table() const noexcept { return table_; }
  /// The shard vector, or nothing.
  [[nodiscard]] std::span<float> weights() const;
  /// Collective. See with_gathered_weights().
  void gather(const std::function<void(const ParameterReader&)>& use) const;
  /// Collective. Returns the flat vector, of `type`, where `kernels` compute.
  [[nodiscard]] Buffer whole(DType type, KernelSet& kernels, MemoryAccount& account) const;
  /// Frees the memory while training keeps its own.
  void drop() { weights_ = Buffer(); }
  /// Local. Takes the blocks of all groups.
  void take(const OwnBlock& own_block);

 private:
  void allocate();
  [[nodiscard]] TensorView block(const ShardGroup& group) const;

  TransformerConfig config_;
  const Communicator& comm_;
  const Communicator& within_;
  MemoryAccount& account_;
  ParameterTable table_;
  Buffer weights_;
};

}  // namespace jforge
