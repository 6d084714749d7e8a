#include "workers/job_kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "model/kernels/kernel_arguments.h"
#include "model/transformer/layer_plan.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/content_hash.h"
#include "runtime/cpu_placement.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/tensor/buffer.h"
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

namespace {

double fastest_of_eight(const auto& prepare, const auto& work) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 8; ++i) {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, taken.count());
  }
  return fastest;
}

std::vector<std::uint32_t> words_of(Rank rank, std::size_t count) {
  std::vector<std::uint32_t> words(count, static_cast<std::uint32_t>(rank));
  for (std::size_t i = 0; i < count; ++i) {
    words[i] += static_cast<std::uint32_t>(i) * 2654435761U;
  }
  return words;
}

void check_product(KernelSet& kernels, RankFigures& own) {
  const Shape shape{192, 192};
  std::vector<float> numbers;
  for (const std::uint32_t word : words_of(0, static_cast<std::size_t>(shape.elements()))) {
    numbers.push_back(static_cast<float>(word) * 0x1p-32F - 0.5F);
  }
  MemoryAccount account("check of the ranks");
  const Buffer x(numbers.size() * sizeof(float), account, kernels.device());
  const Buffer y(numbers.size() * sizeof(float), account, kernels.device());
  const ConstTensorView matrix(numbers.data(), shape);
  copy_tensor(matrix, x.floats(shape));
  const auto weight = kernels.pack_weight(matrix, WeightStorage::float32, account);
  std::vector<float> product(numbers.size());
  own.product_seconds = fastest_of_eight(
      [] {},
      [&] {
        kernels.invariant_linear(x.floats(shape), *weight, {}, y.floats(shape));
        copy_tensor(y.floats(shape), TensorView(product.data(), shape));  // waits for a device
      });
  product[0] += fault_point("check.product", 1) ? 1.0F : 0.0F;
  own.digest = hash64(std::as_bytes(std::span(product)));
}

void check_ring(const Communicator& comm, RankFigures& own) {
  constexpr std::size_t kWords = std::size_t{1} << 18;  // 1 MiB
  auto sent = words_of(comm.rank(), kWords);
  sent[0] += fault_point("check.ring", 1) ? 1 : 0;
  const auto expected = words_of((comm.rank() + comm.size() - 1) % comm.size(), kWords);
  std::vector<std::uint32_t> received(kWords);
  own.ring_seconds = fastest_of_eight([&] { comm.barrier(); },
                                      [&] {
                                        pass_to_next(comm, std::as_bytes(std::span(sent)),
                                                     std::as_writable_bytes(std::span(received)));
                                        own.received &= received == expected;
                                      });
}

double median_of(std::span<const RankFigures> ranks, double RankFigures::*seconds) {
  std::vector<double> all;
  std::ranges::transform(ranks, std::back_inserter(all), seconds);
  const auto middle = all.begin() + (std::ssize(all) - 1) / 2;
  std::ranges::nth_element(all, middle);
  return *middle;
}

}  // namespace

// run_slurm.sbatch looks for "rank R (HOST): computes" and "rank R (HOST): receives".
RankVerdict judge_ranks(std::span<const RankFigures> ranks, std::span<const std::string> hosts) {
  std::map<std::uint64_t, std::size_t> counts;
  for (const RankFigures& figures : ranks) {
    ++counts[figures.digest];
  }
  const auto most =
      std::ranges::max_element(counts, {}, &std::pair<const std::uint64_t, std::size_t>::second);
  if (2 * most->second <= ranks.size()) {
    return {
        "the ranks compute different products of the same numbers, and no result has a "
        "majority; run on fewer hosts to find the wrong one",
        ""};
  }
  const double product = median_of(ranks, &RankFigures::product_seconds);
  const double ring = median_of(ranks, &RankFigures::ring_seconds);
  const auto is_slow = [](double seconds, double median) {
    return seconds > std::max(3 * median, median + 1e-3);
  };
  std::vector<std::string> wrong;
  std::vector<std::string> slow;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankFigures& own = ranks[rank];
    const std::string name = fmt::format("rank {} ({})", rank, hosts[rank]);
    if (own.digest != most->first) {
      wrong.push_back(name + ": computes another product than most ranks");
    } else if (!own.received) {
      wrong.push_back(name + ": receives other bytes than the rank before it sends");
    }
    if (is_slow(own.product_seconds, product) || is_slow(own.ring_seconds, ring)) {
      slow.push_back(fmt::format("{}: {:.1f} and {:.1f} ms", name, 1e3 * own.product_seconds,
                                 1e3 * own.ring_seconds));
    }
  }
  return {wrong.empty() ? "" : fmt::format("{}; leave out that host", fmt::join(wrong, "; ")),
          slow.empty() ? ""
                       : fmt::format("slow ranks: a small product and 1 MiB to the next rank take "
                                     "{:.1f} and {:.1f} ms, but {}",
                                     1e3 * product, 1e3 * ring, fmt::join(slow, "; "))};
}

void check_ranks(const Communicator& comm, KernelSet& kernels) {
  if (comm.size() == 1) {
    return;  // nothing to compare with
  }
  std::vector<RankFigures> all(static_cast<std::size_t>(comm.size()));
  RankFigures& own = all[static_cast<std::size_t>(comm.rank())];
  together(comm, [&] { check_product(kernels, own); });
  check_ring(comm, own);
  const auto bytes = [](std::span<RankFigures> figures) {
    return std::span(reinterpret_cast<std::uint8_t*>(figures.data()), figures.size_bytes());
  };
  all_gather<std::uint8_t>(comm, bytes({&own, 1}), bytes(all));
  const std::vector<std::string> hosts = gather_texts(comm, host_name(), 0);
  const RankVerdict verdict = comm.rank() == 0 ? judge_ranks(all, hosts) : RankVerdict();
  if (!verdict.warning.empty()) {
    log_warn("{}", verdict.warning);
  }
  if (!verdict.error.empty()) {
    log_error("failed: {}", verdict.error);
  }
  if (EnvironmentError error(broadcast_text(comm, verdict.error, 0)); *error.what() != '\0') {
    error.set_on_all_ranks();
    throw error;
  }
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
