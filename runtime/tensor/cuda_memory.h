#pragma once

/// Device memory for buffers and copies, without CUDA's headers: a CPU-only build has the same
/// functions, and those that need a device throw EnvironmentError saying how to get one.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Whether this binary was built with -DJFORGE_CUDA=ON.
[[nodiscard]] bool built_with_cuda() noexcept;

/// What a look for CUDA devices finds.
struct CudaDevices {
  int count = 0;  ///< Devices this process may use.
  /// Why there is none although this machine seems to have some, on one line; empty when there are
  /// devices, and where there simply is no driver or no device.
  std::string problem;
};
[[nodiscard]] CudaDevices find_cuda_devices();

/// find_cuda_devices().count: 0 in a CPU-only build, without a driver and without a device.
[[nodiscard]] int cuda_device_count();

/// What the driver calls device `index`: "NVIDIA H200". Throws EnvironmentError when there is no
/// such device.
[[nodiscard]] std::string cuda_device_name(int index);

/// Tells the selected device from every other, a part of a divided one from its other parts: its
/// UUID.
[[nodiscard]] std::string cuda_device_uuid();

/// Tells the selected device from the others of its host as NCCL does: its place on the bus, which
/// parts of a divided device share.
[[nodiscard]] std::string cuda_device_place();

/// Throws EnvironmentError, naming the reason and how to mend it, unless cuda_device_count() > 0.
void expect_cuda_device();

/// Makes `index` the calling thread's device; the thread that uses buffers and kernels calls it.
/// Throws EnvironmentError when there is no such device.
void select_cuda_device(int index);

/// The calls under Buffer and copy_tensor. All are ordered after the work issued before them by
/// this process on the selected device, and have ended when they return. None may be made while a
/// stream is being captured.
namespace cuda_memory {
/// Zeroed memory of the selected device. Null when the device has not enough of it; other failures
/// throw.
[[nodiscard]] std::byte* allocate(std::size_t bytes);
/// Page-locked memory of the host, of any contents; null when there is not enough.
[[nodiscard]] std::byte* allocate_pinned(std::size_t bytes);
/// Ends the memory's life once all work issued before has; does not wait for that. Never throws: it
/// runs in destructors, also after the device failed.
void free(std::byte* data) noexcept;
/// Waits for the selected device. Never throws, as free().
void free_pinned(std::byte* data) noexcept;
void zero(void* data, std::size_t bytes);
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);
/// Bytes that the selected device can still give; empty where it does not tell.
[[nodiscard]] std::optional<std::uint64_t> available();
/// Gives freed memory that is kept for later buffers back, to whoever takes some without us: the
/// driver, libraries. Waits for what is being freed. Never throws.
void give_back_unused() noexcept;
/// " (1.2 GiB of 80.0 GiB free on the device)", for messages; empty when unknown.
[[nodiscard]] std::string free_memory_note();
/// Bytes that were allocated at once, at most, since the process began or forget_peak(); of this
/// process alone, and without what libraries take for themselves.
[[nodiscard]] std::uint64_t peak() noexcept;
void forget_peak() noexcept;
}  // namespace cuda_memory

}  // namespace jforge
