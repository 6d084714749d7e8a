#pragma once

/// A rank's parts of tensors. A "shard vector" is its shard ranges of all groups, concatenated.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/transformer/parameter_table.h"

namespace jforge {

/// Elements [tensor_begin, tensor_end) of a tensor, flattened row-major.
struct ShardSlice {
  std::size_t entry = 0;  ///< Index into ParameterTable::entries().
  std::int64_t tensor_begin = 0;
  std::int64_t tensor_end = 0;
  std::int64_t flat_begin = 0;   ///< tensor_begin in the flat vector.
  std::int64_t shard_begin = 0;  ///< tensor_begin in the shard vector.

  [[nodiscard]] std::int64_t size() const { return tensor_end - tensor_begin; }
};

struct ShardGroup {
  std::int32_t group = 0;
  std::int64_t flat_begin = 0;
  std::int64_t shard_begin = 0;
  std::int64_t size = 0;  ///< padded_size / shard_count.
};

/// Padding included; equal for all shards of a table.
[[nodiscard]] std::int64_t shard_vector_size(const ParameterTable& table);
/// In group order.
[[nodiscard]] std::vector<ShardGroup> shard_groups(const ParameterTable& table, int shard);
/// Non-empty slices in flat order, without padding.
[[nodiscard]] std::vector<ShardSlice> shard_slices(const ParameterTable& table, int shard);

}  // namespace jforge
