#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

namespace {

/// Why a device's tensors cannot travel by NCCL.
struct Obstacle {
  std::string reason;
  bool shared_device = false;  ///< Ranks share a device.
};

/// Collective; the same on every rank.
Obstacle find_obstacle(const Communicator& comm) {
  std::string device;
  std::string problem;
  together(comm, [&] {
    device = host_name() + "/" + cuda_device_place();
    problem = nccl_problem();
  });
  const std::vector<std::string> devices = gather_texts(comm, device, 0);
  const std::vector<std::string> problems = gather_texts(comm, problem, 0);
  std::string shared;
  std::string found;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    found = found.empty() ? problems[rank] : found;
    const auto other = std::find(devices.begin(), devices.end(), devices[rank]) - devices.begin();
    if (shared.empty() && std::cmp_less(other, rank)) {
      shared = fmt::format("ranks {} and {} share a device", other, rank);
    }
  }
  shared = broadcast_text(comm, shared, 0);
  found = broadcast_text(comm, found, 0);
  return shared.empty() ? Obstacle{found} : Obstacle{shared, true};
}

[[noreturn]] void refuse_collectives(const std::string& message) {
  EnvironmentError error(message);
  error.set_on_all_ranks();
  throw error;
}

/// Collective. Empty if NCCL works. Throws EnvironmentError if `choice` forbids host memory.
std::string reason_for_host_memory(const Communicator& comm, CollectivesChoice choice) {
  const Obstacle obstacle = find_obstacle(comm);
  if (obstacle.reason.empty()) {
    return {};
  }
  if (choice == CollectivesChoice::nccl) {
    refuse_collectives("train.collectives = \"nccl\": " + obstacle.reason + "; set \"auto\"");
  }
  if (!obstacle.shared_device) {
    refuse_collectives(
        "each rank has a device of its own, but NCCL cannot be used: " + obstacle.reason +
        "; mend that, or set train.collectives = \"mpi\" (through host memory, far slower)");
  }
  return obstacle.reason;
}

}  // namespace

void expect_collectives(const Communicator& comm, Device device, CollectivesChoice choice) {
  if (device != Device::cpu && comm.size() > 1 && choice != CollectivesChoice::mpi) {
    static_cast<void>(reason_for_host_memory(comm, choice));
  }
}

std::unique_ptr<Collectives> make_collectives(const Communicator& comm, Device device,
                                              Device kernels, MemoryAccount& account,
                                              CollectivesChoice choice) {
  if (device == Device::cpu) {
    return make_host_collectives(comm, kernels);
  }
  if (comm.size() == 1 || choice == CollectivesChoice::mpi) {
    return make_staged_collectives(comm, account);
  }
  const std::string reason = reason_for_host_memory(comm, choice);
  if (reason.empty()) {
    return make_nccl_collectives(comm);
  }
  if (comm.rank() == 0) {
    log_info("collectives by MPI through host memory, not by NCCL: {}", reason);
  }
  return make_staged_collectives(comm, account);
}

}  // namespace jforge
