#pragma once

/// Ranks as threads of one process, for tests: the same collectives and bits as over MPI.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "runtime/comm/mpi_session.h"

namespace jforge {

class VirtualWorld {
 public:
  /// 1 to 64 ranks.
  explicit VirtualWorld(int ranks);

  /// Runs `work` on every rank, each on an own thread with a communicator over all, and waits for
  /// all. Waiting for a rank that has ended throws CommError. Rethrows the exception of the lowest
  /// rank that did not fail because of such a wait.
  void run(const std::function<void(const Communicator&)>& work);

  /// Inside collectives, in the last run.
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
