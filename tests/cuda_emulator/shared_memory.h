#pragma once

/// A block's shared memory with each granule's last writer and readers. A block barrier orders
/// accesses, inside a warp also a warp barrier.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/device_memory.h"

namespace jforge::emulator {

struct SharedAccess {
  unsigned thread;         ///< within the block
  std::uint32_t gathered;  ///< when its warp passed its last warp barrier
  unsigned lane;
};

class SharedMemory {
 public:
  using Use = DeviceMemory::Use;  ///< Updates need no order among themselves.
  /// `granule`: a power of two; no access is narrower.
  void begin_block(std::size_t bytes, std::size_t granule);
  void pass_block_barrier() { phase_ = ++now_; }
  [[nodiscard]] std::uint32_t pass_warp_barrier() { return ++now_; }

  /// Throw Fault if outside, misaligned, uninitialised or a race. As many `lanes` from `by` on use
  /// `bytes` each, one after the other.
  std::byte* use(Use use, const SharedAccess& by, std::uint64_t offset, std::size_t bytes,
                 unsigned lanes = 1);
  /// The lanes of `mask` do, at their offsets; `by` is lane 0. Returns shared byte 0.
  std::byte* use_each(Use use, const SharedAccess& by, const std::uint64_t* offsets,
                      std::size_t bytes, std::uint32_t mask);

  /// The range must not be accessed until finish_copy.
  void begin_copy(const SharedAccess& by, std::uint64_t offset, std::size_t bytes);
  [[nodiscard]] std::byte* finish_copy(const SharedAccess& by, std::uint64_t offset,
                                       std::size_t bytes);

 private:
  static constexpr unsigned kWarpThreads = 32;
  /// a reader: thread, kSeveralOfWarp + warp, or kSeveral
  static constexpr std::uint16_t kSeveral = 0xffff;
  static constexpr std::uint16_t kSeveralOfWarp = 0x8000;
  /// Flag in a writer.
  static constexpr std::uint16_t kAtomic = 0x8000;
  /// Written when a copy will have finished.
  static constexpr std::uint32_t kCopying = ~std::uint32_t{0};

  [[nodiscard]] bool inside(std::uint64_t offset, std::size_t bytes, unsigned lanes) const {
    return offset <= bytes_.size() && bytes * lanes <= bytes_.size() - offset &&
           (offset & (bytes - 1)) == 0;
  }
  [[noreturn, gnu::cold]] void refuse_place(const SharedAccess& by, std::uint64_t offset,
                                            std::size_t bytes, const char* access) const;
  void expect_written(std::size_t cell, const SharedAccess& by, std::uint64_t offset,
                      const char* done) const;
  void expect_after_write(std::size_t cell, const SharedAccess& by, std::uint64_t offset,
                          const char* access) const;
  void expect_after_reads(std::size_t cell, const SharedAccess& by, std::uint64_t offset) const;
  /// First and one past the last.
  [[nodiscard]] std::pair<std::size_t, std::size_t> cells_of(std::uint64_t offset,
                                                             std::size_t bytes) const {
    return {offset >> granule_shift_, ((offset + bytes - 1) >> granule_shift_) + 1};
  }
  /// Whether the record already covers `by`: several threads of its warp since the warp's barrier,
  /// or several warps since the block's. A write in between would have been a race.
  [[nodiscard]] bool read_alike(std::size_t cell, const SharedAccess& by) const {
    return read_[cell] >= phase_ && (reader_[cell] == kSeveral ||
                                     (reader_[cell] == kSeveralOfWarp + by.thread / kWarpThreads &&
                                      read_[cell] >= by.gathered));
  }
  /// false, and nothing done, unless it is the same for all and certainly no fault
  [[nodiscard]] bool use_together(Use use, const SharedAccess& by, std::uint64_t offset,
                                  std::size_t bytes, unsigned lanes);
  void use_one(Use use, const SharedAccess& by, std::uint64_t offset, std::size_t bytes);
  void note_read(std::size_t cell, const SharedAccess& by);
  void note_write(std::size_t cell, const SharedAccess& by, bool atomic);

  std::vector<std::byte> bytes_;
  /// By granule: when it was last written and read, by which threads. Every barrier is a new
  /// moment, counted from 1 through all blocks.
  std::vector<std::uint32_t> written_;
  std::vector<std::uint32_t> read_;
  std::vector<std::uint16_t> writer_;
  std::vector<std::uint16_t> reader_;
  unsigned granule_shift_ = 0;
  std::uint32_t now_ = 0;
  std::uint32_t begun_ = 0;  ///< when the block began
  std::uint32_t phase_ = 0;  ///< when it passed its last barrier
  bool copies_ = false;
};

}  // namespace jforge::emulator
