#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// model.device and pretrain.device of a configuration; --device of a command line.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Returns the chosen device. automatic: CUDA if the build has it and a device responds, else the
/// CPU. Throws EnvironmentError for cuda without a device.
[[nodiscard]] Device resolve_device(DeviceChoice choice);

/// Throws EnvironmentError, naming the setting `name`, if the chosen device does not exist.
void expect_device(std::string_view name, DeviceChoice choice);

/// Returns "CPU" or, for example, "CUDA device 0 (NVIDIA H200)". Throws EnvironmentError if it is
/// missing.
[[nodiscard]] std::string describe_device(Device device, int local_rank);

/// Makes the kernels of resolve_device(choice). Rank `local_rank` of a host takes CUDA device
/// local_rank mod the number of devices. Throws EnvironmentError.
[[nodiscard]] std::unique_ptr<KernelSet> make_kernel_set(DeviceChoice choice, int local_rank);

}  // namespace jforge
