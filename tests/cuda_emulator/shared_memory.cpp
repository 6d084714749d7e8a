#include "tests/cuda_emulator/shared_memory.h"

#include <bit>
#include <string>

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
  granule_shift_ = static_cast<unsigned>(std::countr_zero(granule));
  bytes_.assign(bytes, std::byte{0xff});
  cells_.assign((bytes >> granule_shift_) + 1, Cell{});
  epoch_ = 1;
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

void SharedMemory::expect_after_write(const Cell& cell, const SharedAccess& by,
                                      std::uint64_t offset, const char* access) const {
  if (cell.copying) [[unlikely]] {
    race(by, offset, access,
         "cp.async that thread " + std::to_string(cell.writer) + " has not waited for");
  }
  if (cell.write_epoch != epoch_ || cell.writer == by.thread) [[likely]] {
    return;
  }
  const bool same_warp = cell.writer / kWarpThreads == by.thread / kWarpThreads;
  if (!same_warp || cell.write_warp_epoch == by.warp_epoch) [[unlikely]] {
    race(by, offset, access, "write by thread " + std::to_string(cell.writer));
  }
}

void SharedMemory::expect_after_reads(const Cell& cell, const SharedAccess& by,
                                      std::uint64_t offset) const {
  if (cell.read_epoch != epoch_ || cell.reader == by.thread) [[likely]] {
    return;
  }
  const unsigned own_warp = by.thread / kWarpThreads;
  const bool several_of_warp = cell.reader != kSeveral && cell.reader >= kSeveralOfWarp;
  const unsigned warp = several_of_warp ? cell.reader - kSeveralOfWarp : cell.reader / kWarpThreads;
  if (cell.reader == kSeveral || warp != own_warp || cell.read_warp_epoch == by.warp_epoch)
      [[unlikely]] {
    race(by, offset, "write",
         cell.reader == kSeveral ? "reads by several warps"
         : several_of_warp       ? "reads by warp " + std::to_string(warp)
                                 : "read by thread " + std::to_string(cell.reader));
  }
}

void SharedMemory::note_read(Cell& cell, const SharedAccess& by) const {
  const auto thread = static_cast<std::uint16_t>(by.thread);
  const auto warp = static_cast<std::uint16_t>(by.thread / kWarpThreads);
  if (cell.read_epoch != epoch_) {
    cell.reader = thread;
  } else if (cell.reader != thread && cell.reader != kSeveral) {
    const unsigned other =
        cell.reader >= kSeveralOfWarp ? cell.reader - kSeveralOfWarp : cell.reader / kWarpThreads;
    if (other != warp) {
      cell.reader = kSeveral;
    } else {
      // Older reads are ordered before this warp's later accesses.
      cell.reader = cell.read_warp_epoch == by.warp_epoch
                        ? static_cast<std::uint16_t>(kSeveralOfWarp + warp)
                        : thread;
    }
  }
  cell.read_epoch = epoch_;
  cell.read_warp_epoch = by.warp_epoch;
}

void SharedMemory::note_write(Cell& cell, const SharedAccess& by, bool atomic) const {
  cell.write_epoch = epoch_;
  cell.write_warp_epoch = by.warp_epoch;
  cell.writer = static_cast<std::uint16_t>(by.thread);
  cell.atomic = atomic;
  cell.read_epoch = 0;
}

void SharedMemory::read_first(Cell& cell, const SharedAccess& by, std::uint64_t offset) const {
  if (cell.write_epoch == 0 && !cell.copying) [[unlikely]] {
    throw Fault(
        FaultKind::uninitialised_memory,
        "shared byte " + std::to_string(offset) + " is read before anything was written there",
        by.lane);
  }
  expect_after_write(cell, by, offset, "read");
  note_read(cell, by);
}

std::byte* SharedMemory::write(const SharedAccess& by, std::uint64_t offset, std::size_t bytes) {
  expect_inside(by, offset, bytes, "write");
  for (Cell& cell : cells_of(offset, bytes)) {
    expect_after_write(cell, by, offset, "write");
    expect_after_reads(cell, by, offset);
    note_write(cell, by, false);
  }
  return &bytes_[offset];
}

std::byte* SharedMemory::update(const SharedAccess& by, std::uint64_t offset, std::size_t bytes) {
  expect_inside(by, offset, bytes, "atomic access");
  for (Cell& cell : cells_of(offset, bytes)) {
    if (cell.write_epoch == 0 && !cell.copying) [[unlikely]] {
      throw Fault(
          FaultKind::uninitialised_memory,
          "shared byte " + std::to_string(offset) + " is updated before anything was written there",
          by.lane);
    }
    if (!cell.atomic || cell.copying) {
      expect_after_write(cell, by, offset, "atomic access");
    }
    expect_after_reads(cell, by, offset);
    note_write(cell, by, true);
  }
  return &bytes_[offset];
}

void SharedMemory::begin_copy(const SharedAccess& by, std::uint64_t offset, std::size_t bytes) {
  static_cast<void>(write(by, offset, bytes));
  for (Cell& cell : cells_of(offset, bytes)) {
    cell.copying = true;
  }
}

std::byte* SharedMemory::finish_copy(const SharedAccess& by, std::uint64_t offset,
                                     std::size_t bytes) {
  for (Cell& cell : cells_of(offset, bytes)) {
    cell.copying = false;
    note_write(cell, by, false);
  }
  return &bytes_[offset];
}

}  // namespace jforge::emulator
