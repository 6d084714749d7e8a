#pragma once

/// Ranks without MPI: threads of one process. For tests of what many ranks do, and for their
/// formulas: collectives run the code that they run over MPI and give the same bits.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// N virtual ranks. Everything that takes a Communicator works on them.
class VirtualWorld {
 public:
  /// 1 to 64 ranks.
  explicit VirtualWorld(int ranks);

  /// Runs `work` on every rank, each on a thread of its own, with a communicator over all of them,
  /// and waits for all. A rank that ends, by an exception or because its work is done, lets nobody
  /// wait: a wait for it throws CommError on the others. Throws what the lowest rank threw that did
  /// not fail because of such a wait.
  void run(const std::function<void(const Communicator&)>& work);

  /// What the ranks of the last run sent each other inside collectives.
  struct Traffic {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
    std::size_t largest_bytes = 0;
  };
  [[nodiscard]] Traffic traffic() const noexcept { return traffic_; }

 private:
  int ranks_;
  Traffic traffic_;
};

}  // namespace jforge
