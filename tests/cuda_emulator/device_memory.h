#pragma once

/// The emulated device's global memory. Device addresses lie in a reserved range that the host
/// cannot read, so that a host access crashes as it would with a device; no address is given out
/// twice, so that every use after a free is seen.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jforge::emulator {

class DeviceMemory {
 public:
  enum class State : std::uint8_t {
    pending,  ///< cudaMallocAsync was called; its place in the stream is not reached yet.
    live,
    freed,
  };
  struct Allocation {
    std::uint64_t begin = 0;
    std::size_t bytes = 0;
    State state = State::live;
    std::unique_ptr<std::byte[]> data;  ///< Filled with 0xff, a NaN in every float, until written.
  };

  DeviceMemory();
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// A new address, aligned to 256 bytes; 0 when total_bytes() would be passed.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes, State state = State::live);
  /// Both throw Fault unless `address` begins an allocation in the state that they end.
  void begin_life(std::uint64_t address);
  void free(std::uint64_t address);

  /// Whether an address belongs to the device at all, allocated or not.
  [[nodiscard]] bool owns(const void* address) const;
  [[nodiscard]] std::size_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::size_t total_bytes() const { return total_bytes_; }
  void limit(std::size_t total_bytes) { total_bytes_ = total_bytes; }

  /// Where the host keeps [address, address + bytes). Throws Fault, naming the nearest allocation,
  /// unless all of it is inside one that is live.
  [[nodiscard]] std::byte* at(std::uint64_t address, std::size_t bytes, const char* access,
                              unsigned lane = 0) {
    const Allocation& last = allocations_.empty() ? kNothing : allocations_[last_];
    const std::uint64_t offset = address - last.begin;
    if (last.state == State::live && offset < last.bytes && bytes <= last.bytes - offset)
        [[likely]] {
      return last.data.get() + offset;
    }
    return find(address, bytes, access, lane);
  }

 private:
  static const Allocation kNothing;
  /// Index of the last allocation that begins at or before `address`, or the number of them.
  [[nodiscard]] std::size_t before(std::uint64_t address) const;
  [[nodiscard]] std::byte* find(std::uint64_t address, std::size_t bytes, const char* access,
                                unsigned lane);
  [[nodiscard]] Allocation& beginning_at(std::uint64_t address, const char* call);

  std::uint64_t range_begin_ = 0;
  std::uint64_t next_ = 0;
  std::size_t live_bytes_ = 0;
  std::size_t total_bytes_ = std::size_t{80} << 30;
  std::size_t last_ = 0;
  std::vector<Allocation> allocations_;  ///< In the order of their addresses, also the freed.
};

/// "0x7f00" of an address, for messages.
[[nodiscard]] std::string hexadecimal(std::uint64_t address);

}  // namespace jforge::emulator
