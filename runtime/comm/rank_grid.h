#pragma once

/// Ranks in copies of equal size, each of consecutive ranks: training shards its state within a
/// copy (workers/train/sharding.h) and adds gradients up across copies.

#include "runtime/comm/mpi_session.h"

namespace jforge {

struct RankGrid {
  /// Collective. `per_copy` ranks make a copy; 0: all. Throws ConfigError on all ranks, naming
  /// train.shard_ranks, unless it divides their number.
  RankGrid(const Communicator& comm, int per_copy);

  const Communicator& all;
  Communicator within;  ///< This rank's copy.
  Communicator across;  ///< The ranks with this one's place, one of each copy.
};

}  // namespace jforge
