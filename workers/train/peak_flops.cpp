#include "workers/train/peak_flops.h"

#include <fmt/format.h>
#include <omp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "runtime/bounded_json.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/local_rank.h"
#include "runtime/device/known_devices.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/tensor/cuda_memory.h"
#include "runtime/text_seal.h"

namespace fs = std::filesystem;

namespace jforge {

namespace {

/// Fastest of several products of size × size matrices.
struct BestCall {
  double flops = 0;
  double seconds = 0;
};

BestCall time_product(KernelSet& kernels, MemoryAccount& account, DType operands,
                      std::int64_t size) {
  const Buffer x(storage_bytes(size * size, operands), account, kernels.device());
  const Buffer weight(storage_bytes(size * size, operands), account, kernels.device());
  const Buffer y(storage_bytes(size * size, DType::float32), account, kernels.device());
  const Shape shape{size, size};
  float first = 0;
  constexpr double kEnough = 0.04;
  const auto call = [&] {
    const auto start = std::chrono::steady_clock::now();
    kernels.linear(x.view(operands, shape), weight.view(operands, shape), {}, y.floats(shape));
    // Waits for the result: a device returns before it has finished.
    copy_tensor(y.floats(shape).rows(0, 1).reshaped({size}).rows(0, 1), TensorView(&first, {1}));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // The first call loads kernels and raises the clock.
  static_cast<void>(call());
  double fastest = std::numeric_limits<double>::infinity();
  for (double spent = 0, seconds = 0; spent < kEnough; spent += seconds) {
    seconds = call();
    fastest = std::min(fastest, seconds);
  }
  return {2.0 * static_cast<double>(size * size * size) / fastest, fastest};
}

constexpr int kVersion = 1;

/// All that affects a rank's speed.
std::string kind_with(const KernelSet& kernels, const Communicator& comm, DType operands) {
  return fmt::format("{}, {}", kind_of_rank(comm, kernels.device(), omp_get_max_threads()),
                     dtype_name(operands));
}

void write_rank_peaks(const fs::path& file, const RankPeaks& added) {
  RankPeaks peaks = read_rank_peaks(file);
  for (const auto& [kind, flops] : added) {
    peaks[kind] = flops;
  }
  try {
    const nlohmann::ordered_json json = {{"version", kVersion}, {"flops_per_rank", peaks}};
    publish_file(file, seal_json(json.dump(2) + "\n"));
  } catch (const EnvironmentError& error) {
    log_warn("cannot save the measured peak: {}", error.what());
  }
}

/// Collective. FLOP/s of this rank in large products of `operands` (float32 or bfloat16) while all
/// ranks run: the best call of about 40 ms.
double measure_peak_flops(KernelSet& kernels, const Communicator& comm, DType operands) {
  constexpr std::int64_t kSize = 512;
  constexpr std::int64_t kDeviceSize = 4096;
  // A fast device shows its speed only in a larger product.
  constexpr double kAtOnce = 2e-3;
  MemoryAccount account("peak measurement");
  comm.barrier();
  BestCall best = time_product(kernels, account, operands, kSize);
  if (kernels.device() != Device::cpu && best.seconds < kAtOnce) {
    const BestCall large = time_product(kernels, account, operands, kDeviceSize);
    best = large.flops > best.flops ? large : best;
  }
  return best.flops;
}

}  // namespace

RankPeaks read_rank_peaks(const fs::path& file) {
  RankPeaks peaks;
  std::error_code none;
  if (!fs::exists(file, none)) {
    return peaks;
  }
  try {
    const nlohmann::json json = parse_bounded_json(read_sealed(file), file.string());
    if (json.at("version") != kVersion) {
      throw DataError(file.string() + ": another version");
    }
    for (const auto& [kind, flops] : json.at("flops_per_rank").items()) {
      const double value = flops.get<double>();
      if (!(value > 0) || !std::isfinite(value)) {
        throw DataError(file.string() + ": a peak that is no rate");
      }
      peaks[kind] = value;
    }
  } catch (const std::exception& error) {
    log_warn("{}; the machine's peak is measured again", error.what());
    peaks.clear();
  }
  return peaks;
}

PeakFlops::PeakFlops(KernelSet& kernels, const Communicator& comm, DType operands, fs::path file,
                     bool keep) {
  const bool first = comm.rank() == 0;
  const std::string kind = kind_with(kernels, comm, operands);
  const std::string read =
      broadcast_text(comm, first ? nlohmann::json(read_rank_peaks(file)).dump() : std::string(), 0);
  const auto known = parse_bounded_json(read, "peaks of rank 0").get<RankPeaks>();
  const auto found = known.find(kind);
  std::array<std::int64_t, 1> missing = {found == known.end() ? 1 : 0};
  all_reduce_sum<std::int64_t>(comm, missing);
  // All measure if one kind is unknown, because a peak assumes busy neighbours.
  double own = found == known.end() ? 0 : found->second;
  if (missing[0] != 0) {
    own = std::max(own, measure_peak_flops(kernels, comm, operands));
  }
  const std::vector<std::string> kinds = gather_texts(comm, kind, 0);
  std::vector<double> flops(static_cast<std::size_t>(comm.size()));
  all_gather<double>(comm, std::span(&own, 1), flops);
  if (first) {
    for (std::size_t rank = 0; rank < flops.size(); ++rank) {
      double& highest = in_use_[kinds[rank]];
      highest = std::max(highest, flops[rank]);
    }
    for (const std::string& each : kinds) {
      total_ += in_use_.at(each);
    }
  }
  broadcast<double>(comm, std::span(&total_, 1), 0);
  if (first && keep) {
    file_ = std::move(file);
    if (missing[0] != 0) {
      write_rank_peaks(file_, in_use_);
    }
  }
}

double data_sheet_flops(std::span<const RankDevice> devices, DType operands) {
  double sum = 0;
  std::set<std::string> seen;
  for (const RankDevice& device : devices) {
    const KnownDevice* const known = find_known_device(device.name);
    if (known == nullptr) {
      return 0;
    }
    sum += seen.insert(device.uuid).second ? known->flops(operands) : 0;
  }
  return sum;
}

PeakFlops PeakFlops::for_shares(KernelSet& kernels, const Communicator& comm, DType operands,
                                fs::path file) {
  if (kernels.device() != Device::cpu) {
    const std::vector<std::string> uuids =
        gather_texts(comm, host_name() + "/" + cuda_device_uuid(), 0);
    const std::vector<std::string> names =
        gather_texts(comm, cuda_device_name(local_rank(comm) % cuda_device_count()), 0);
    std::vector<RankDevice> devices;
    for (std::size_t rank = 0; rank < names.size(); ++rank) {
      devices.push_back({uuids[rank], names[rank]});
    }
    double peak = data_sheet_flops(devices, operands);
    broadcast<double>(comm, std::span(&peak, 1), 0);
    if (peak > 0) {
      return PeakFlops(peak);
    }
  }
  return {kernels, comm, operands, std::move(file)};
}

std::optional<double> PeakFlops::share_of(double rate) {
  if (total_ <= 0) {
    return std::nullopt;
  }
  if (rate > total_) {
    log_info(
        "the machine's peak was measured as {:.3g} GFLOP/s and a step reached {:.3g}: that is the "
        "peak from now on, and shares of it (MFU) shown so far were too high",
        total_ / 1e9, rate / 1e9);
    for (auto& [kind, flops] : in_use_) {
      flops *= rate / total_;
    }
    total_ = rate;
    if (!file_.empty()) {
      write_rank_peaks(file_, in_use_);
    }
  }
  return rate / total_;
}

}  // namespace jforge
