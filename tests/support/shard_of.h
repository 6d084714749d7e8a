#pragma once

/// Whole weights in tests: a rank's shard of them, and back.

#include <span>
#include <vector>

#include "checkpoints/shard_slices.h"
#include "runtime/comm/collectives.h"
#include "workers/train/parameter_store.h"

namespace jforge::test {

/// Returns the shard vector of `rank`. `flat`: the table's, float32.
inline std::vector<float> shard_of(const ConstTensorView& flat, const ParameterTable& table,
                                   int rank) {
  std::vector<float> shard;
  for (const ShardGroup& group : shard_groups(table, rank)) {
    const auto part = flat.rows(group.flat_begin, group.flat_begin + group.size).span<float>();
    shard.insert(shard.end(), part.begin(), part.end());
  }
  return shard;
}

/// Collective. Gathers the masters of all ranks into the table's flat vector.
inline void gather_masters(const ParameterStore& store, const ParameterTable& table,
                           const Communicator& comm, const TensorView& flat) {
  for (const ShardGroup& group : shard_groups(table, comm.rank())) {
    const TensorView own = flat.rows(group.flat_begin, group.flat_begin + group.size);
    store.copy_own(group.group, own);
    const ParameterGroup& whole = table.groups()[static_cast<std::size_t>(group.group)];
    all_gather<float>(comm, own.span<float>(),
                      flat.rows(whole.offset, whole.offset + whole.padded_size).span<float>());
  }
}

}  // namespace jforge::test
