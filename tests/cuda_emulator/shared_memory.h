#pragma once

/// A block's shared memory with each granule's last writer and readers. A block barrier orders
/// accesses, inside a warp also a warp barrier.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace jforge::emulator {

struct SharedAccess {
  unsigned thread;           ///< within the block
  std::uint32_t warp_epoch;  ///< warp barriers that its warp has passed
  unsigned lane;
};

class SharedMemory {
 public:
  /// `granule`: a power of two; no access is narrower.
  void begin_block(std::size_t bytes, std::size_t granule);
  void pass_block_barrier() { ++epoch_; }

  /// Throw Fault if outside, misaligned, uninitialised or a race.
  [[nodiscard]] const std::byte* read(const SharedAccess& by, std::uint64_t offset,
                                      std::size_t bytes) {
    expect_inside(by, offset, bytes, "read");
    for (Cell& cell : cells_of(offset, bytes)) {
      if (!read_alike(cell, by)) {
        read_first(cell, by, offset);
      }
    }
    return &bytes_[offset];
  }
  [[nodiscard]] std::byte* write(const SharedAccess& by, std::uint64_t offset, std::size_t bytes);
  /// Atomic accesses need no order among themselves.
  [[nodiscard]] std::byte* update(const SharedAccess& by, std::uint64_t offset, std::size_t bytes);

  /// The range must not be accessed until finish_copy.
  void begin_copy(const SharedAccess& by, std::uint64_t offset, std::size_t bytes);
  [[nodiscard]] std::byte* finish_copy(const SharedAccess& by, std::uint64_t offset,
                                       std::size_t bytes);

 private:
  static constexpr unsigned kWarpThreads = 32;
  /// a reader: thread, kSeveralOfWarp + warp, or kSeveral
  static constexpr std::uint16_t kSeveral = 0xffff;
  static constexpr std::uint16_t kSeveralOfWarp = 0x8000;

  /// Epochs count from 1; 0 means never in this block.
  struct Cell {
    std::uint32_t write_epoch = 0;
    std::uint32_t read_epoch = 0;
    std::uint32_t write_warp_epoch = 0;
    std::uint32_t read_warp_epoch = 0;
    std::uint16_t writer = 0;
    std::uint16_t reader = 0;
    bool atomic = false;
    bool copying = false;
  };
  void expect_inside(const SharedAccess& by, std::uint64_t offset, std::size_t bytes,
                     const char* access) const {
    if (offset > bytes_.size() || bytes > bytes_.size() - offset || (offset & (bytes - 1)) != 0)
        [[unlikely]] {
      refuse_place(by, offset, bytes, access);
    }
  }
  [[noreturn, gnu::cold]] void refuse_place(const SharedAccess& by, std::uint64_t offset,
                                            std::size_t bytes, const char* access) const;
  void expect_after_write(const Cell& cell, const SharedAccess& by, std::uint64_t offset,
                          const char* access) const;
  void expect_after_reads(const Cell& cell, const SharedAccess& by, std::uint64_t offset) const;
  [[nodiscard]] std::span<Cell> cells_of(std::uint64_t offset, std::size_t bytes) {
    return {&cells_[offset >> granule_shift_], std::max<std::size_t>(bytes >> granule_shift_, 1)};
  }
  /// Whether the record already covers `by`: several threads of its warp since the warp's barrier,
  /// or several warps since the block's. A write in between would have been a race.
  [[nodiscard]] bool read_alike(const Cell& cell, const SharedAccess& by) const {
    return cell.read_epoch == epoch_ &&
           (cell.reader == kSeveral || (cell.reader == kSeveralOfWarp + by.thread / kWarpThreads &&
                                        cell.read_warp_epoch == by.warp_epoch));
  }
  void read_first(Cell& cell, const SharedAccess& by, std::uint64_t offset) const;
  void note_read(Cell& cell, const SharedAccess& by) const;
  void note_write(Cell& cell, const SharedAccess& by, bool atomic) const;

  std::vector<std::byte> bytes_;
  std::vector<Cell> cells_;
  unsigned granule_shift_ = 0;
  std::uint32_t epoch_ = 1;
};

}  // namespace jforge::emulator
