#include "runtime/tensor/cuda_memory.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/tensor/cuda_handles.h"

namespace jforge {

namespace {

/// cudaGetDeviceCount leaves its output untouched when it fails (no driver: error 35).
cudaError_t count_devices(int& count) {
  count = 0;
  int found = 0;
  const cudaError_t status = cudaGetDeviceCount(&found);
  if (status == cudaSuccess) {
    count = found;
  } else {
    static_cast<void>(cudaGetLastError());
  }
  return status;
}

constexpr const char* kLook = "look for devices";

std::string gibibytes(std::size_t bytes) {
  const auto tenths = bytes / ((std::size_t{1} << 30) / 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GiB";
}

}  // namespace

bool built_with_cuda() noexcept { return true; }

CudaDevices find_cuda_devices() {
  CudaDevices found;
  const cudaError_t status = count_devices(found.count);
  // The runtime calls a machine without any driver one whose driver is too old.
  const bool nothing_there =
      status == cudaErrorNoDevice ||
      (status == cudaErrorInsufficientDriver && access("/dev/nvidiactl", F_OK) != 0);
  if (status != cudaSuccess && !nothing_there) {
    found.problem = cuda_failure(status, kLook);
  }
  return found;
}

int cuda_device_count() { return find_cuda_devices().count; }

void expect_cuda_device() {
  int count = 0;
  const cudaError_t status = count_devices(count);
  if (status != cudaSuccess || count == 0) {
    throw EnvironmentError(cuda_failure(status == cudaSuccess ? cudaErrorNoDevice : status, kLook));
  }
}

std::string cuda_device_name(int index) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "read a device's name");
  return properties.name;
}

void select_cuda_device(int index) { cuda_check(cudaSetDevice(index), "select a device"); }

std::byte* cuda_memory::allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  cuda_check(status, "allocate device memory");
  const cudaError_t zeroed = cudaMemset(data, 0, bytes);
  if (zeroed != cudaSuccess) {
    static_cast<void>(cudaFree(data));
    cuda_check(zeroed, "zero device memory");
  }
  return static_cast<std::byte*>(data);
}

void cuda_memory::free(std::byte* data) noexcept {
  static_cast<void>(cudaFree(data));
  // At process exit the driver may be gone before a buffer; nobody may be blamed for it later.
  static_cast<void>(cudaGetLastError());
}

void cuda_memory::zero(void* data, std::size_t bytes) {
  cuda_check(cudaMemset(data, 0, bytes), "zero device memory");
}

void cuda_memory::copy(void* to, Device to_device, const void* from, Device from_device,
                       std::size_t bytes) {
  const bool to_cuda = to_device == Device::cuda;
  const bool from_cuda = from_device == Device::cuda;
  const cudaMemcpyKind kind = to_cuda
                                  ? (from_cuda ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                  : (from_cuda ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  cuda_check(cudaMemcpy(to, from, bytes, kind), "copy a tensor");
}

std::string cuda_memory::free_memory_note() {
  std::size_t available = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return " (" + gibibytes(available) + " of " + gibibytes(total) + " free on the device)";
}

}  // namespace jforge
