#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/kernels/kernel_set.h"

namespace jforge {

/// model.device and pretrain.device of a configuration, --device of a command line.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// The device that `choice` means here: automatic is CUDA where the build has it and at least one
/// device answers, else the CPU. Throws EnvironmentError for cuda where there is none.
[[nodiscard]] Device resolve_device(DeviceChoice choice);

/// Throws EnvironmentError, naming the setting `name`, when it asks for a device that is not there.
void expect_device(std::string_view name, DeviceChoice choice);

/// "CUDA device 0 (NVIDIA H200)", the one that rank `local_rank` of a host takes, or "CPU". Throws
/// EnvironmentError for a device that is not there.
[[nodiscard]] std::string describe_device(Device device, int local_rank);

/// The kernels of resolve_device(choice). Rank `local_rank` of a host takes CUDA device local_rank
/// mod the number of devices: several ranks may share one. Throws EnvironmentError.
[[nodiscard]] std::unique_ptr<KernelSet> make_kernel_set(DeviceChoice choice, int local_rank);

}  // namespace jforge
