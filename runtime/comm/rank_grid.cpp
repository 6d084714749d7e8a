#include "runtime/comm/rank_grid.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace jforge {

namespace {

int size_of_copy(const Communicator& comm, int per_copy) {
  if (per_copy < 0 || (per_copy > 0 && comm.size() % per_copy != 0)) {
    ConfigError error(
        fmt::format("train.shard_ranks = {} does not divide the {} ranks; set the number of ranks "
                    "on a node, or 0 for all ranks",
                    per_copy, comm.size()));
    error.set_on_all_ranks();
    throw error;
  }
  return per_copy == 0 ? comm.size() : per_copy;
}

}  // namespace

RankGrid::RankGrid(const Communicator& comm, int per_copy)
    : all(comm),
      within(comm.split(comm.rank() / size_of_copy(comm, per_copy))),
      across(comm.split(comm.rank() % size_of_copy(comm, per_copy))) {}

}  // namespace jforge
