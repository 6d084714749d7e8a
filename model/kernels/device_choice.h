#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// Values of model.device, pretrain.device and --device.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// automatic: CUDA if built in and a device responds, else the CPU. Throws EnvironmentError.
[[nodiscard]] Device resolve_device(DeviceChoice choice);

/// Throws EnvironmentError, naming the setting, if the device does not exist.
void expect_device(std::string_view name, DeviceChoice choice);

/// Throws ConfigError if kernels of `device` do not hold decoding weights so.
void expect_storage(WeightStorage storage, Device device);

/// Returns "CPU" or, say, "CUDA device 0 (NVIDIA H200)". Throws EnvironmentError if missing.
[[nodiscard]] std::string describe_device(Device device, int local_rank);

/// Rank `local_rank` takes CUDA device local_rank mod their number. Throws EnvironmentError.
[[nodiscard]] std::unique_ptr<KernelSet> make_kernel_set(
    DeviceChoice choice, int local_rank, BFloat16Sums sums = fastest_bfloat16_sums());

}  // namespace jforge
