#pragma once

/// The parts of tensors that a rank owns: each tensor's overlap with the rank's shard ranges. A
/// "shard vector", as of optimizer state, is a rank's shard ranges of all groups, concatenated.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/transformer/parameter_table.h"

namespace jforge {

/// Elements [tensor_begin, tensor_end) of one tensor, flattened row-major.
struct ShardSlice {
  std::size_t entry = 0;  ///< Index into ParameterTable::entries().
  std::int64_t tensor_begin = 0;
  std::int64_t tensor_end = 0;
  std::int64_t flat_begin = 0;   ///< Position of tensor_begin in the flat vector.
  std::int64_t shard_begin = 0;  ///< Position of tensor_begin in the shard vector.

  [[nodiscard]] std::int64_t size() const { return tensor_end - tensor_begin; }
};

/// A group's shard range in the flat and the shard vector.
struct ShardGroup {
  std::int32_t group = 0;
  std::int64_t flat_begin = 0;
  std::int64_t shard_begin = 0;
  std::int64_t size = 0;  ///< padded_size / shard_count.
};

/// Returns the elements of a shard vector, padding included; equal for all shards of a table.
[[nodiscard]] std::int64_t shard_vector_size(const ParameterTable& table);
/// Returns every group's range for shard `shard`, in group order.
[[nodiscard]] std::vector<ShardGroup> shard_groups(const ParameterTable& table, int shard);
/// Returns the non-empty slices of shard `shard` in flat order, without padding.
[[nodiscard]] std::vector<ShardSlice> shard_slices(const ParameterTable& table, int shard);

}  // namespace jforge
