#include "model/kernels/device_choice.h"

#include <fmt/format.h>

#include "model/kernels/cuda/cuda_kernel_set.h"
#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

Device resolve_device(DeviceChoice choice) {
  switch (choice) {
    case DeviceChoice::cpu:
      return Device::cpu;
    case DeviceChoice::cuda:
      expect_cuda_device();
      return Device::cuda;
    case DeviceChoice::automatic:
      return cuda_device_count() > 0 ? Device::cuda : Device::cpu;
  }
  throw InternalError("unknown device choice");
}

namespace {

int device_index(int local_rank) {
  expect(local_rank >= 0, "a local rank is not negative");
  return local_rank % cuda_device_count();
}

}  // namespace

void expect_device(std::string_view name, DeviceChoice choice) {
  try {
    static_cast<void>(resolve_device(choice));
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(fmt::format("{} = \"cuda\": {}", name, error.what()));
  }
}

void expect_storage(WeightStorage storage, Device device) {
  if (storage == WeightStorage::int8 && device == Device::cuda) {
    throw ConfigError(
        "model.decode_weights = \"int8\" is for the CPU alone: on CUDA use "
        "\"bfloat16_arithmetic\", or compute on the CPU (model.device or --device)");
  }
}

std::string describe_device(Device device, int local_rank) {
  if (device == Device::cpu) {
    return "CPU";
  }
  expect_cuda_device();
  const int index = device_index(local_rank);
  return "CUDA device " + std::to_string(index) + " (" + cuda_device_name(index) + ")";
}

std::unique_ptr<KernelSet> make_kernel_set(DeviceChoice choice, int local_rank, BFloat16Sums sums) {
  expect(local_rank >= 0, "a local rank is not negative");
  if (resolve_device(choice) == Device::cuda) {
    return make_cuda_kernel_set(device_index(local_rank));
  }
  return make_cpu_kernel_set(sums);
}

}  // namespace jforge
