#pragma once

/// Owned memory with accounting: a phase's buffers charge its MemoryAccount, and the phase switch
/// checks that every byte came back (ARCHITECTURE.md, "phase switch").

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Rows of memory plans and measurements.
enum class MemoryUse : std::uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  key_value,
  communication,
  staging,
  teacher,
  other
};
inline constexpr std::size_t kMemoryUses = 9;
/// "weights", "key/value", …
[[nodiscard]] const char* memory_use_name(MemoryUse use) noexcept;

/// Counts its buffers' live and peak bytes. Thread-safe. Must outlive its buffers.
class MemoryAccount {
 public:
  /// `count_only`: inaccessible addresses, to count what a shape takes without the memory for it.
  enum class Backing : std::uint8_t { memory, count_only };
  explicit MemoryAccount(std::string name, Backing backing = Backing::memory)
      : name_(std::move(name)), backing_(backing) {}
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] Backing backing() const noexcept { return backing_; }
  [[nodiscard]] std::size_t live_bytes() const noexcept { return total_.live.load(); }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return total_.peak.load(); }
  [[nodiscard]] std::size_t live_bytes(MemoryUse use) const noexcept {
    return uses_[static_cast<std::size_t>(use)].live.load();
  }
  [[nodiscard]] std::size_t peak_bytes(MemoryUse use) const noexcept {
    return uses_[static_cast<std::size_t>(use)].peak.load();
  }
  void charge(std::size_t bytes, MemoryUse use = MemoryUse::other) noexcept;
  void release(std::size_t bytes, MemoryUse use = MemoryUse::other) noexcept;

 private:
  struct Count {
    std::atomic<std::size_t> live{0};
    std::atomic<std::size_t> peak{0};
    void charge(std::size_t bytes) noexcept;
  };
  std::string name_;
  Backing backing_;
  Count total_;
  std::array<Count, kMemoryUses> uses_;
};

/// Copies from and to page-locked memory run concurrently with the host.
enum class HostMemory : std::uint8_t { pageable, page_locked };

/// Move-only zeroed memory of the host or of the selected CUDA device (cuda_memory.h), aligned to
/// at least 64 bytes. Throws EnvironmentError with the size if memory is exhausted, and for
/// Device::cuda without CUDA.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::size_t bytes, MemoryAccount& account, Device device = Device::cpu,
         MemoryUse use = MemoryUse::other);
  Buffer(std::size_t bytes, MemoryAccount& account, MemoryUse use)
      : Buffer(bytes, account, Device::cpu, use) {}
  /// Host memory; page_locked requires a device.
  Buffer(std::size_t bytes, MemoryAccount& account, HostMemory kind, MemoryUse use);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] Device device() const noexcept { return device_; }
  /// View of the first `shape.elements()` elements.
  [[nodiscard]] TensorView view(DType dtype, Shape shape) const;
  [[nodiscard]] TensorView floats(Shape shape) const { return view(DType::float32, shape); }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryAccount* account_ = nullptr;
  Device device_ = Device::cpu;
  HostMemory kind_ = HostMemory::pageable;
  MemoryUse use_ = MemoryUse::other;
};

/// Copies between any devices; returns when the host may use either side. Throws InternalError if
/// shapes or types differ, or if the two overlap on the host.
void copy_tensor(const ConstTensorView& from, const TensorView& to);

void zero_tensor(const TensorView& view);

}  // namespace jforge
