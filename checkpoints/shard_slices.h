#pragma once

/// Which parts of which tensors a rank owns: the overlap of every named tensor with the rank's
/// shard ranges. Optimizer state lives in a compact vector, the rank's shard ranges of all groups
/// one after another ("shard vector").

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
  std::int64_t flat_begin = 0;   ///< Place of tensor_begin in the flat vector.
  std::int64_t shard_begin = 0;  ///< Place of tensor_begin in the shard vector.

  [[nodiscard]] std::int64_t size() const { return tensor_end - tensor_begin; }
};

/// Where a group's shard range lies in the shard vector.
struct ShardGroup {
  std::int32_t group = 0;
  std::int64_t flat_begin = 0;
  std::int64_t shard_begin = 0;
  std::int64_t size = 0;  ///< padded_size / shard_count.
};

/// Elements of a shard vector, padding included; equal for all shards of a table.
[[nodiscard]] std::int64_t shard_vector_size(const ParameterTable& table);
/// Every group of `table` as shard `shard` sees it, in group order.
[[nodiscard]] std::vector<ShardGroup> shard_groups(const ParameterTable& table, int shard);
/// The non-empty slices of shard `shard`, in flat order; padding belongs to no slice.
[[nodiscard]] std::vector<ShardSlice> shard_slices(const ParameterTable& table, int shard);

}  // namespace jforge
