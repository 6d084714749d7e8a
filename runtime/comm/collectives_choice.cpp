#include <fmt/format.h>

#include <string>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/tensor_collectives.h"
#include "runtime/error.h"
#include "runtime/log.h"

namespace jforge {

namespace {

/// What a rank says of itself: why it cannot use NCCL, or which device is its.
constexpr char kCannot = '!';
constexpr char kDevice = '=';

std::string own_report() {
  const std::string problem = nccl_problem();
  return problem.empty() ? kDevice + host_name() + "/" + cuda_device_identity() : kCannot + problem;
}

/// Collective. Why these ranks cannot use NCCL; empty where they can. The same on every rank.
std::string obstacle(const Communicator& comm) {
  std::string own;
  together(comm, [&] { own = own_report(); });
  const std::vector<std::string> all = gather_texts(comm, own, 0);
  std::string found;
  for (std::size_t rank = 0; rank < all.size() && found.empty(); ++rank) {
    if (all[rank].front() == kCannot) {
      found = all[rank].substr(1);
    }
    for (std::size_t other = 0; other < rank && found.empty(); ++other) {
      if (all[other] == all[rank]) {
        found = fmt::format("ranks {} and {} share a device", other, rank);
      }
    }
  }
  return broadcast_text(comm, found, 0);
}

[[noreturn]] void refuse_nccl(const std::string& reason) {
  EnvironmentError error("train.collectives = \"nccl\": " + reason + "; set \"auto\"");
  error.set_on_all_ranks();
  throw error;
}

}  // namespace

void expect_collectives(const Communicator& comm, Device device, CollectivesChoice choice) {
  if (device == Device::cpu || comm.size() == 1 || choice != CollectivesChoice::nccl) {
    return;
  }
  if (const std::string reason = obstacle(comm); !reason.empty()) {
    refuse_nccl(reason);
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
  const std::string reason = obstacle(comm);
  if (reason.empty()) {
    return make_nccl_collectives(comm);
  }
  if (choice == CollectivesChoice::nccl) {
    refuse_nccl(reason);
  }
  if (comm.rank() == 0) {
    spdlog::info("collectives by MPI through host memory, not by NCCL: {}", reason);
  }
  return make_staged_collectives(comm, account);
}

}  // namespace jforge
