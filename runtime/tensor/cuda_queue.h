#pragma once

/// A queue and page-locked memory of a CUDA device for what runs beside its kernels, without CUDA's
/// headers: as cuda_memory.h.

#include <cstddef>
#include <memory>

#include "runtime/device/queue.h"
#include "runtime/tensor/buffer.h"

namespace jforge {

/// The calling thread's device (select_cuda_device).
[[nodiscard]] int selected_cuda_device();

/// A stream of the selected device. Copies between it and page-locked memory run beside kernels and
/// the host.
[[nodiscard]] std::unique_ptr<Queue> make_cuda_queue();

/// Move-only page-locked host memory, charged to an account as staging.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(std::size_t bytes, MemoryAccount& account);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryAccount* account_ = nullptr;
};

namespace cuda_memory {
/// The calls under PinnedBuffer. Throws EnvironmentError when there is not enough.
[[nodiscard]] std::byte* allocate_pinned(std::size_t bytes);
/// Never throws, as free().
void free_pinned(std::byte* data) noexcept;
}  // namespace cuda_memory

}  // namespace jforge
