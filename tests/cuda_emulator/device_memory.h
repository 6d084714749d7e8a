#pragma once

/// The emulated device's global memory. Device addresses lie in a reserved range that the host
/// cannot read, so that a host access crashes as it would with a device; no address is given out
/// twice, so that every use after a free is seen. Who last wrote and read what is kept, so that two
/// accesses that nothing orders, one of them writing, are seen in whatever order they come.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  enum class Use : std::uint8_t { read, write, update };
  /// Who wrote last and who read since: work, block (or several) and the place in it.
  struct Cell {
    std::uint32_t writer;
    std::uint32_t write_block;
    std::uint32_t write_place;
    std::uint32_t reader;
    std::uint32_t read_block;
    std::uint32_t read_place;
  };
  /// Whose accesses come now.
  struct Accessor {
    std::uint32_t work = 0;   ///< 0: nobody's, and not looked at.
    std::uint32_t block = 0;  ///< Of its launch.
    std::uint32_t phase = 0;  ///< Barriers that the block has passed.
    std::uint32_t warp = 0;   ///< Of the block. Within a warp all accesses count as ordered.
    std::function<bool(std::uint32_t earlier)> follows;
    std::function<std::string(std::uint32_t work)> name;
  };
  Accessor accessor;

  struct Allocation {
    std::uint64_t begin = 0;
    std::size_t bytes = 0;
    State state = State::live;
    std::unique_ptr<std::byte[]> data;  ///< Filled with 0xff, a NaN in every float, until written.
    /// Of each granule, from the first access of a work on; as narrow as the narrowest access.
    std::unique_ptr<Cell[], void (*)(void*)> cells{nullptr, nullptr};
    unsigned granule_shift = 2;
    std::uint32_t begun_by = 0;  ///< The work that began its life.
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
  [[nodiscard]] std::byte* use(Use use, std::uint64_t address, std::size_t bytes,
                               const char* access, unsigned lane = 0) {
    std::byte* const place = at(address, bytes, access, lane);
    if (accessor.work != 0) {
      note(use, allocations_[last_], address, bytes, access, lane);
    }
    return place;
  }
  /// As use(), without a look at who used it before.
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
  void note(Use use, Allocation& allocation, std::uint64_t address, std::size_t bytes,
            const char* access, unsigned lane);
  [[nodiscard]] bool follows(std::uint32_t earlier) {
    return earlier == 0 || earlier == followed_[earlier % followed_.size()] ||
           follows_slowly(earlier);
  }
  [[nodiscard]] bool follows_slowly(std::uint32_t earlier);
  static void narrow(Allocation& allocation, unsigned shift);
  [[noreturn]] void race(const Allocation& allocation, std::uint64_t offset, const char* access,
                         const char* other, std::uint32_t work, std::uint32_t block,
                         unsigned lane) const;
  [[nodiscard]] Allocation& beginning_at(std::uint64_t address, const char* call);

  std::uint64_t range_begin_ = 0;
  std::uint64_t next_ = 0;
  std::size_t live_bytes_ = 0;
  std::size_t total_bytes_ = std::size_t{80} << 30;
  std::size_t last_ = 0;
  std::array<std::uint32_t, 64> followed_{};  ///< Works that asked_by_ was seen to follow.
  std::uint32_t asked_by_ = 0;
  std::vector<Allocation> allocations_;  ///< In the order of their addresses, also the freed.
};

/// "0x7f00" of an address, for messages.
[[nodiscard]] std::string hexadecimal(std::uint64_t address);

}  // namespace jforge::emulator
