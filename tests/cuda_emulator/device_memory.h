#pragma once

/// The emulated device's global memory. The host cannot read device addresses, so its accesses
/// crash. Addresses are not reused, so every use after a free is found. Granules record their last
/// writer and readers, so unordered accesses are found in any order.

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
    pending,  ///< cudaMallocAsync was called; its stream has not reached it
    live,
    freed,
  };
  enum class Use : std::uint8_t { read, write, update };
  /// Last writer and readers since: work, block (or several), place in the block.
  struct Cell {
    std::uint32_t writer;
    std::uint32_t write_block;
    std::uint32_t write_place;
    std::uint32_t reader;
    std::uint32_t read_block;
    std::uint32_t read_place;
  };
  struct Accessor {
    std::uint32_t work = 0;   ///< 0: none, not checked
    std::uint32_t block = 0;  ///< of its launch
    std::uint32_t phase = 0;  ///< barriers that the block has passed
    std::uint32_t warp = 0;   ///< of the block; accesses of one warp count as ordered
    std::function<bool(std::uint32_t earlier)> follows;
    std::function<std::string(std::uint32_t work)> name;
  };
  Accessor accessor;

  struct Allocation {
    std::uint64_t begin = 0;
    std::size_t bytes = 0;
    State state = State::live;
    std::unique_ptr<std::byte[]> data;  ///< filled with 0xff, NaN for floats, until written
    /// One per granule, from the first access on.
    std::unique_ptr<Cell[], void (*)(void*)> cells{nullptr, nullptr};
    unsigned granule_shift = 16;  ///< log2 of its bytes, as large as accesses allow
    std::uint32_t begun_by = 0;   ///< the work that began its life
  };

  DeviceMemory();
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Aligned to 256 bytes; 0 if total_bytes() would be exceeded.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes, State state = State::live);
  /// Throw Fault unless `address` begins an allocation in the state that they end.
  void begin_life(std::uint64_t address);
  void free(std::uint64_t address);

  [[nodiscard]] bool owns(const void* address) const;
  [[nodiscard]] std::size_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::size_t total_bytes() const { return total_bytes_; }
  void limit(std::size_t total_bytes) { total_bytes_ = total_bytes; }

  /// Throws Fault, naming the nearest allocation, unless all of it is live. As many `lanes` from
  /// `lane` on share it, if covers() it.
  [[nodiscard]] std::byte* use(Use use, std::uint64_t address, std::size_t bytes,
                               const char* access, unsigned lane = 0, unsigned lanes = 1) {
    std::byte* const place = at(address, bytes, access, lane);
    if (accessor.work != 0) {
      note(use, allocations_[last_], address, bytes, access, lane, lanes);
    }
    return place;
  }
  /// Whether one live allocation has them all.
  [[nodiscard]] bool covers(std::uint64_t address, std::size_t bytes) {
    const auto inside = [&](const Allocation& last) {
      const std::uint64_t offset = address - last.begin;
      return last.state == State::live && offset <= last.bytes && bytes <= last.bytes - offset;
    };
    if (last_ < allocations_.size() && inside(allocations_[last_])) [[likely]] {
      return true;
    }
    last_ = before(address);
    return last_ < allocations_.size() && inside(allocations_[last_]);
  }
  /// Skips the check of the accesses' order.
  [[nodiscard]] std::byte* at(std::uint64_t address, std::size_t bytes, const char* access,
                              unsigned lane = 0) {
    if (!covers(address, bytes)) [[unlikely]] {
      refuse(address, bytes, access, lane);
    }
    return allocations_[last_].data.get() + (address - allocations_[last_].begin);
  }

 private:
  /// Last allocation that begins at or before `address`, or their number.
  [[nodiscard]] std::size_t before(std::uint64_t address) const;
  [[noreturn]] void refuse(std::uint64_t address, std::size_t bytes, const char* access,
                           unsigned lane) const;
  void note(Use use, Allocation& allocation, std::uint64_t address, std::size_t bytes,
            const char* access, unsigned lane, unsigned lanes);
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
  std::array<std::uint32_t, 64> followed_{};  ///< works that asked_by_ is known to follow
  std::uint32_t asked_by_ = 0;
  std::vector<Allocation> allocations_;  ///< by address, freed ones included
};

[[nodiscard]] std::string hexadecimal(std::uint64_t address);

}  // namespace jforge::emulator
