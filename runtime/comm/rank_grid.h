#pragma once

/// Ranks in copies of equal size, each of consecutive ranks: training shards its state within a
/// copy (workers/train/sharding.h) and adds gradients up across copies.

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Returns the ranks of a copy if each has `per_copy`; 0: all. Throws ConfigError, naming
/// train.shard_ranks, unless that divides `ranks`.
[[nodiscard]] int ranks_of_copy(int ranks, int per_copy);

struct RankGrid {
  /// Collective. Throws as ranks_of_copy(), on all ranks.
  RankGrid(const Communicator& comm, int per_copy);

  const Communicator& all;
  Communicator within;  ///< This rank's copy.
  Communicator across;  ///< The ranks with this one's place, one of each copy.
};

}  // namespace jforge
