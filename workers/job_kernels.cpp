#include "workers/job_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/kernels/kernel_arguments.h"
#include "model/transformer/layer_plan.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/cpu_placement.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

void expect_common_device(const Communicator& comm, Device device) {
  const std::int32_t own = device == Device::cuda ? 1 : 0;
  std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
  all_gather(comm, std::span(&own, 1), std::span(all));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      const auto name = [](std::int32_t cuda) { return cuda == 1 ? "a CUDA device" : "the CPU"; };
      throw EnvironmentError(
          fmt::format("rank 0 would compute on {} and rank {} on {}; mend the driver there, or set "
                      "model.device "
                      "to \"cpu\"",
                      name(all[0]), rank, name(all[rank])));
    }
  }
}

namespace {

void warn_of_unused_devices() {
  const CudaDevices found = find_cuda_devices();
  if (!found.problem.empty()) {
    log_warn("model.device = \"auto\" falls back to the CPU: {}", found.problem);
  }
}

// Keeps the rank's threads, and the pages they touch first, on its device's socket.
void stay_near_device(int rank) {
  std::string place = cuda_device_place();
  std::ranges::transform(place, place.begin(), [](unsigned char c) { return std::tolower(c); });
  if (!stay_near("/sys/bus/pci/devices/" + place + "/local_cpulist")) {
    log_warn(
        "rank {} is bound to processors of another socket than its CUDA device; start the ranks "
        "without binding (mpirun --bind-to none), and each finds its own",
        rank);
  }
}

std::string chosen_device(DeviceChoice choice, Device device, int place) {
  if (device == Device::cuda) {
    return describe_device(device, place);
  }
  const char* reason = choice == DeviceChoice::cpu ? "as asked for"
                       : built_with_cuda()         ? "no CUDA device can be used"
                                                   : "this build has no CUDA kernels";
  return fmt::format("the CPU ({})", reason);
}

}  // namespace

BFloat16Sums common_bfloat16_sums(const Communicator& comm) {
  std::int32_t own = 0;
  together(comm, [&] { own = static_cast<std::int32_t>(fastest_bfloat16_sums()); });
  std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
  all_gather(comm, std::span<const std::int32_t>(&own, 1), std::span(all));
  return static_cast<BFloat16Sums>(std::ranges::min(all));
}

namespace {
constexpr const char* kGroups = "groups";
}  // namespace

BFloat16Sums bfloat16_sums_of(const Identity& identity) {
  const auto fact = identity.find(kBFloat16SumsFact);
  return fact != identity.end() && fact->second == kGroups ? BFloat16Sums::groups
                                                           : BFloat16Sums::pairs;
}

void record_bfloat16_sums(BFloat16Sums sums, Identity& identity) {
  if (sums == BFloat16Sums::groups) {
    identity[kBFloat16SumsFact] = kGroups;
  } else {
    identity.erase(kBFloat16SumsFact);
  }
}

std::unique_ptr<KernelSet> make_job_kernels(const Communicator& comm, DeviceChoice choice,
                                            BFloat16Sums sums) {
  const int place = local_rank(comm);
  std::unique_ptr<KernelSet> kernels;
  together(comm, [&] {
    kernels = make_kernel_set(choice, place, sums);
    if (place == 0 && choice == DeviceChoice::automatic && kernels->device() == Device::cpu) {
      warn_of_unused_devices();
    }
    if (kernels->device() == Device::cuda) {
      stay_near_device(comm.rank());
    }
    if (comm.rank() == 0) {
      log_info("computing on {}", chosen_device(choice, kernels->device(), place));
    }
  });
  expect_common_device(comm, kernels->device());
  return kernels;
}

void expect_attention(Device device, const TransformerConfig& model) {
  expect_heads(device, LayerPlan(model).heads);
}

void warn_of_slow_bfloat16(const Communicator& comm, const KernelSet& kernels) {
  if (kernels.device() != Device::cpu || local_rank(comm) != 0) {
    return;
  }
  const BFloat16Sums sums = kernels.bfloat16_sums();
  const double speed = bfloat16_against_float32(sums);
  if (speed < 1) {
    log_warn(
        "products of bfloat16 have {:.2f} times the speed of float32's on this processor{}: here "
        "bfloat16 saves memory, not time",
        speed,
        sums == BFloat16Sums::groups && fastest_bfloat16_sums() != sums
            ? ", which lacks AMX, whose order of sums this run began with"
            : "");
  }
}

void warn_of_rounding(const Communicator& comm, WeightStorage decode_weights) {
  if (rounds(decode_weights) && comm.rank() == 0) {
    const bool int8 = decode_weights == WeightStorage::int8;
    log_warn(
        "model.decode_weights = \"{}\": decoding rounds every matrix{}; "
        "where two tokens are nearly equal the other one may be chosen",
        name_of(decode_weights),
        int8 ? ", row by row, to int8"
        : decode_weights == WeightStorage::bfloat16
            ? " that holds more to bfloat16"
            : " that holds more to bfloat16, and what they are multiplied with");
  }
}

}  // namespace jforge
