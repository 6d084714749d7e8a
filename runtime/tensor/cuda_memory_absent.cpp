/// cuda_memory.h in CPU-only builds.

#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

namespace {
[[noreturn]] void refuse() {
  throw EnvironmentError(
      "this build has no CUDA kernels: configure it with -DJFORGE_CUDA=ON on a machine with nvcc, "
      "or use the CPU (model.device = \"cpu\")");
}
}  // namespace

bool built_with_cuda() noexcept { return false; }

CudaDevices find_cuda_devices() { return {}; }

int cuda_device_count() { return 0; }

std::string cuda_device_uuid() { return {}; }

std::string cuda_device_place() { return {}; }

std::string cuda_device_name(int /*index*/) { refuse(); }

void expect_cuda_device() { refuse(); }

void select_cuda_device(int /*index*/) { refuse(); }

std::byte* cuda_memory::allocate(std::size_t /*bytes*/) { refuse(); }

std::byte* cuda_memory::allocate_pinned(std::size_t /*bytes*/) { refuse(); }

void cuda_memory::free(std::byte* /*data*/) noexcept {}

void cuda_memory::free_pinned(std::byte* /*data*/) noexcept {}

void cuda_memory::zero(void* /*data*/, std::size_t /*bytes*/) { refuse(); }

void cuda_memory::copy(void* /*to*/, Device /*to_device*/, const void* /*from*/,
                       Device /*from_device*/, std::size_t /*bytes*/) {
  refuse();
}

std::optional<std::uint64_t> cuda_memory::available() { return {}; }

void cuda_memory::give_back_unused() noexcept {}

std::string cuda_memory::free_memory_note() { return {}; }

std::uint64_t cuda_memory::peak() noexcept { return 0; }

void cuda_memory::forget_peak() noexcept {}

}  // namespace jforge
