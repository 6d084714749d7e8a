/// Device memory on the host; a missing copy shows as a refused tensor.

#include <cstdlib>
#include <cstring>

#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"
#include "runtime/tensor/cuda_queue.h"

namespace jforge {

bool built_with_cuda() noexcept { return true; }

CudaDevices find_cuda_devices() { return {.count = 1, .problem = {}}; }

int cuda_device_count() { return 1; }

std::string cuda_device_name(int /*index*/) { return "emulated by the host"; }

std::string cuda_device_uuid() { return "emulated by the host"; }

std::string cuda_device_place() { return "the one"; }

void expect_cuda_device() {}

void select_cuda_device(int index) { expect(index == 0, "the emulated machine has one device"); }

std::byte* cuda_memory::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (data != nullptr) {
    std::memset(data, 0, rounded);
  }
  return data;
}

void cuda_memory::free(std::byte* data) noexcept { std::free(data); }

void cuda_memory::zero(void* data, std::size_t bytes) { std::memset(data, 0, bytes); }

void cuda_memory::copy(void* to, Device to_device, const void* from, Device from_device,
                       std::size_t bytes) {
  expect(to_device == Device::cuda || from_device == Device::cuda,
         "a copy within the host is not the device's");
  std::memcpy(to, from, bytes);
}

std::optional<std::uint64_t> cuda_memory::available() { return {}; }

void cuda_memory::give_back_unused() noexcept {}

std::string cuda_memory::free_memory_note() { return {}; }

std::uint64_t cuda_memory::peak() noexcept { return 0; }

void cuda_memory::forget_peak() noexcept {}

int selected_cuda_device() { return 0; }

std::unique_ptr<Queue> make_cuda_queue() { return make_inline_queue(); }

std::byte* cuda_memory::allocate_pinned(std::size_t bytes) { return allocate(bytes); }

void cuda_memory::free_pinned(std::byte* data) noexcept { free(data); }

}  // namespace jforge
