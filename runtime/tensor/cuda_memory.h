#pragma once

/// Device memory without CUDA's headers. CPU-only builds throw EnvironmentError with advice.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

[[nodiscard]] bool built_with_cuda() noexcept;

struct CudaDevices {
  int count = 0;  ///< Usable by this process.
  /// One line why existing devices cannot be used; otherwise empty.
  std::string problem;
};
[[nodiscard]] CudaDevices find_cuda_devices();

/// 0 in a CPU-only build, without a driver and without a device.
[[nodiscard]] int cuda_device_count();

/// The driver's name, "NVIDIA H200". Throws EnvironmentError if there is no such device.
[[nodiscard]] std::string cuda_device_name(int index);

/// UUID of the selected device; parts of a divided device have their own.
[[nodiscard]] std::string cuda_device_uuid();

/// Bus address, by which NCCL identifies devices; parts of a divided device share it.
[[nodiscard]] std::string cuda_device_place();

/// Throws EnvironmentError, with reason and advice, unless cuda_device_count() > 0.
void expect_cuda_device();

/// Selects the calling thread's device. Throws EnvironmentError if there is none of that index.
void select_cuda_device(int index);

/// Each call follows all work that this process issued before on the selected device, and has ended
/// when it returns. Not allowed during a stream's capture.
namespace cuda_memory {
/// Zeroed memory of the selected device; null if there is not enough. Other failures throw.
[[nodiscard]] std::byte* allocate(std::size_t bytes);
/// Uninitialised page-locked host memory; null if there is not enough.
[[nodiscard]] std::byte* allocate_pinned(std::size_t bytes);
/// Frees after all earlier work, without waiting. Never throws: destructors call it after failures.
void free(std::byte* data) noexcept;
/// Waits for the selected device. Never throws.
void free_pinned(std::byte* data) noexcept;
void zero(void* data, std::size_t bytes);
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);
/// Bytes that the selected device can still give, if known.
[[nodiscard]] std::optional<std::uint64_t> available();
/// Returns unused pooled memory to the driver. Waits for pending frees. Never throws.
void give_back_unused() noexcept;
/// " (1.2 GiB of 80.0 GiB free on the device)"; empty if unknown.
[[nodiscard]] std::string free_memory_note();
/// Peak bytes of this process since it began or forget_peak(), without libraries' own memory.
[[nodiscard]] std::uint64_t peak() noexcept;
void forget_peak() noexcept;
}  // namespace cuda_memory

}  // namespace jforge
