#pragma once

/// A whole model's float32 values in tests: to and from files.

#include <algorithm>
#include <span>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/hf_model.h"

namespace jforge::test {

/// Views the table's flat vector.
inline TensorValues values_in(const ConstTensorView& flat) {
  return [flat](const ParameterEntry& entry) {
    return flat.rows(entry.offset, entry.offset + entry.shape.elements()).span<float>();
  };
}

/// Padding becomes zero.
inline void load_hf_weights(const std::filesystem::path& directory, const TransformerConfig& config,
                            const ParameterTable& table, const TensorView& flat) {
  HfTensors tensors(directory, config, table);
  std::ranges::fill(flat.span<float>(), 0.0F);  // Padding.
  for (const ParameterEntry& entry : table.entries()) {
    tensors.read(entry, 0, tensor_in_group(flat, 0, entry).span<float>());
  }
}

inline void read_slices(const Checkpoint& checkpoint, const ParameterTable& table,
                        ShardVector vector, std::span<const ParameterTable::Range> ranges,
                        std::span<float> target) {
  SliceReader(checkpoint, table).read(vector, ranges, target);
}

inline void read_weights(const Checkpoint& checkpoint, const ParameterTable& table,
                         const TensorView& flat) {
  const ParameterTable::Range all{0, table.flat_size()};
  read_slices(checkpoint, table, ShardVector::parameter, {&all, 1}, flat.span<float>());
}

/// Fills a shard's vectors. Empty moments are skipped.
inline void read_shard_vectors(const Checkpoint& checkpoint, const ParameterTable& table, int shard,
                               std::span<float> weights, std::span<float> first_moment,
                               std::span<float> second_moment) {
  SliceReader reader(checkpoint, table);
  reader.read_shard(ShardVector::parameter, shard, weights);
  if (!first_moment.empty() || !second_moment.empty()) {
    reader.read_shard(ShardVector::first_moment, shard, first_moment);
    reader.read_shard(ShardVector::second_moment, shard, second_moment);
  }
}

}  // namespace jforge::test
