#include "runtime/comm/rank_grid.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace jforge {

int ranks_of_copy(int ranks, int per_copy) {
  if (per_copy < 0 || (per_copy > 0 && ranks % per_copy != 0)) {
    ConfigError error(
        fmt::format("train.shard_ranks = {} does not divide the {} ranks; set the number of ranks "
                    "on a node, or 0 for all ranks",
                    per_copy, ranks));
    error.set_on_all_ranks();
    throw error;
  }
  return per_copy == 0 ? ranks : per_copy;
}

RankGrid::RankGrid(const Communicator& comm, int per_copy)
    : all(comm),
      within(comm.split(comm.rank() / ranks_of_copy(comm.size(), per_copy))),
      across(comm.split(comm.rank() % ranks_of_copy(comm.size(), per_copy))) {}

}  // namespace jforge
