#include "tests/cuda_emulator/shared_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "tests/cuda_emulator/fault.h"

namespace jforge::emulator {

namespace {

std::string byte_at(std::uint64_t offset) {
  return " from shared byte " + std::to_string(offset) + " on is not ordered after the ";
}

[[noreturn, gnu::cold]] void race(const SharedAccess& by, std::uint64_t offset, const char* access,
                                  const std::string& other) {
  throw Fault(FaultKind::race, access + byte_at(offset) + other, by.lane);
}

}  // namespace

void SharedMemory::begin_block(std::size_t bytes, std::size_t granule) {
  if (begun_ == 0) {
    granule_shift_ = static_cast<unsigned>(std::countr_zero(granule));
    bytes_.resize(bytes);
    const std::size_t cells = (bytes >> granule_shift_) + 1;
    written_.resize(cells);
    read_.resize(cells);
    writer_.resize(cells);
    reader_.resize(cells);
  }
  if (std::exchange(copies_, false)) {
    std::replace(written_.begin(), written_.end(), kCopying, std::uint32_t{0});
  }
  begun_ = phase_ = ++now_;
}

void SharedMemory::refuse_place(const SharedAccess& by, std::uint64_t offset, std::size_t bytes,
                                const char* access) const {
  if (offset > bytes_.size() || bytes > bytes_.size() - offset) {
    throw Fault(FaultKind::illegal_address,
                std::string(access) + " of " + std::to_string(bytes) + " bytes at shared byte " +
                    std::to_string(static_cast<std::int64_t>(offset)) + " of " +
                    std::to_string(bytes_.size()),
                by.lane);
  }
  throw Fault(FaultKind::illegal_address,
              std::string("misaligned ") + access + " of " + std::to_string(bytes) +
                  " bytes at shared byte " + std::to_string(offset),
              by.lane);
}

void SharedMemory::expect_written(std::size_t cell, const SharedAccess& by, std::uint64_t offset,
                                  const char* done) const {
  if (written_[cell] < begun_) [[unlikely]] {
    throw Fault(FaultKind::uninitialised_memory,
                "shared byte " + std::to_string(offset) + " is " + done +
                    " before anything was written there",
                by.lane);
  }
}

void SharedMemory::expect_after_write(std::size_t cell, const SharedAccess& by,
                                      std::uint64_t offset, const char* access) const {
  const unsigned writer = writer_[cell] & ~unsigned{kAtomic};
  if (written_[cell] == kCopying) [[unlikely]] {
    race(by, offset, access,
         "cp.async that thread " + std::to_string(writer) + " has not waited for");
  }
  if (written_[cell] < phase_ || writer == by.thread) [[likely]] {
    return;
  }
  const bool same_warp = writer / kWarpThreads == by.thread / kWarpThreads;
  if (!same_warp || written_[cell] >= by.gathered) [[unlikely]] {
    race(by, offset, access, "write by thread " + std::to_string(writer));
  }
}

void SharedMemory::expect_after_reads(std::size_t cell, const SharedAccess& by,
                                      std::uint64_t offset) const {
  const std::uint16_t reader = reader_[cell];
  if (read_[cell] < phase_ || reader == by.thread) [[likely]] {
    return;
  }
  const bool several_of_warp = reader != kSeveral && reader >= kSeveralOfWarp;
  const unsigned warp = several_of_warp ? reader - kSeveralOfWarp : reader / kWarpThreads;
  if (reader == kSeveral || warp != by.thread / kWarpThreads || read_[cell] >= by.gathered)
      [[unlikely]] {
    race(by, offset, "write",
         reader == kSeveral ? "reads by several warps"
         : several_of_warp  ? "reads by warp " + std::to_string(warp)
                            : "read by thread " + std::to_string(reader));
  }
}

void SharedMemory::note_read(std::size_t cell, const SharedAccess& by) {
  const auto thread = static_cast<std::uint16_t>(by.thread);
  const auto warp = static_cast<std::uint16_t>(by.thread / kWarpThreads);
  std::uint16_t& reader = reader_[cell];
  if (read_[cell] < phase_) {
    reader = thread;
  } else if (reader != thread && reader != kSeveral) {
    const unsigned other =
        reader >= kSeveralOfWarp ? reader - kSeveralOfWarp : reader / kWarpThreads;
    if (other != warp) {
      reader = kSeveral;
    } else {
      // Older reads are ordered before this warp's later accesses.
      reader =
          read_[cell] >= by.gathered ? static_cast<std::uint16_t>(kSeveralOfWarp + warp) : thread;
    }
  }
  read_[cell] = now_;
}

void SharedMemory::note_write(std::size_t cell, const SharedAccess& by, bool atomic) {
  written_[cell] = now_;
  writer_[cell] = static_cast<std::uint16_t>(by.thread | (atomic ? kAtomic : 0U));
  read_[cell] = 0;
}

void SharedMemory::use_one(Use use, const SharedAccess& by, std::uint64_t offset,
                           std::size_t bytes) {
  constexpr std::array kNames{"read", "write", "atomic access"};
  const char* const access = kNames[static_cast<std::size_t>(use)];
  if (!inside(offset, bytes, 1)) [[unlikely]] {
    refuse_place(by, offset, bytes, access);
  }
  const auto [begin, end] = cells_of(offset, bytes);
  for (std::size_t cell = begin; cell < end; ++cell) {
    if (use != Use::read) {
      const bool atomic = use == Use::update;
      if (atomic) {
        expect_written(cell, by, offset, "updated");
      }
      if (!atomic || (writer_[cell] & kAtomic) == 0 || written_[cell] == kCopying) {
        expect_after_write(cell, by, offset, access);
      }
      expect_after_reads(cell, by, offset);
      note_write(cell, by, atomic);
    } else if (!read_alike(cell, by)) {
      expect_written(cell, by, offset, "read");
      expect_after_write(cell, by, offset, access);
      note_read(cell, by);
    }
  }
}

bool SharedMemory::use_together(Use use, const SharedAccess& by, std::uint64_t offset,
                                std::size_t bytes, unsigned lanes) {
  if (use == Use::update || !inside(offset, bytes, lanes)) {
    return false;
  }
  const auto [begin, end] = cells_of(offset, bytes * lanes);
  const bool read = use == Use::read;
  const std::uint32_t from = read ? begun_ : 0;
  unsigned unread = 0;
  unsigned right = 0;  // written before, for a read in this block
  for (std::size_t cell = begin; cell < end; ++cell) {
    unread += read_[cell] < phase_ ? 1U : 0U;
    right += written_[cell] - from < phase_ - from ? 1U : 0U;
  }
  if (read && unread == 0) {
    unsigned others = 0;
    for (std::size_t cell = begin; cell < end; ++cell) {
      others |= reader_[cell] ^ unsigned { kSeveral };
    }
    return others == 0;
  }
  if (unread != end - begin || right != end - begin) {
    return false;
  }
  const auto shift = static_cast<unsigned>(std::countr_zero(bytes)) - granule_shift_;
  const std::uint32_t now = now_;
  std::uint32_t* const times = read ? read_.data() : written_.data();
  std::uint16_t* const threads = read ? reader_.data() : writer_.data();
  for (std::size_t cell = begin; cell < end; ++cell) {
    times[cell] = now;
    threads[cell] = static_cast<std::uint16_t>(by.thread + ((cell - begin) >> shift));
  }
  return true;
}

std::byte* SharedMemory::use(Use use, const SharedAccess& by, std::uint64_t offset,
                             std::size_t bytes, unsigned lanes) {
  if (lanes == 1 || !use_together(use, by, offset, bytes, lanes)) {
    for (unsigned at = 0; at < lanes; ++at) {
      use_one(use, {by.thread + at, by.gathered, by.lane + at}, offset + at * bytes, bytes);
    }
  }
  return &bytes_[offset];
}

std::byte* SharedMemory::use_each(Use use, const SharedAccess& by, const std::uint64_t* offsets,
                                  std::size_t bytes, std::uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(mask));
    use_one(use, {by.thread + lane, by.gathered, lane}, offsets[lane], bytes);
  }
  return bytes_.data();
}

void SharedMemory::begin_copy(const SharedAccess& by, std::uint64_t offset, std::size_t bytes) {
  use_one(Use::write, by, offset, bytes);
  const auto [begin, end] = cells_of(offset, bytes);
  std::fill(&written_[begin], &written_[end], kCopying);
  copies_ = true;
}

std::byte* SharedMemory::finish_copy(const SharedAccess& by, std::uint64_t offset,
                                     std::size_t bytes) {
  const auto [begin, end] = cells_of(offset, bytes);
  for (std::size_t cell = begin; cell < end; ++cell) {
    note_write(cell, by, false);
  }
  return &bytes_[offset];
}

}  // namespace jforge::emulator
