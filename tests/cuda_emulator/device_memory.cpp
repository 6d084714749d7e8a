#include "tests/cuda_emulator/device_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_emulator/fault.h"

namespace jforge::emulator {

namespace {
constexpr std::size_t kAddressRange = std::size_t{16} << 40;
constexpr std::size_t kGap = 4096;  ///< A write just past an allocation must not reach the next.
constexpr std::size_t kAlignment = 256;
/// Kept on the heap: fresh pages for cells took a third of the tests' time.
constexpr int kKeptByTheHeap = 1 << 30;

std::string described(const DeviceMemory::Allocation& allocation) {
  return std::to_string(allocation.bytes) + " bytes at " + hexadecimal(allocation.begin);
}
}  // namespace

std::string hexadecimal(std::uint64_t address) {
  char text[16];
  const auto end = std::to_chars(text, text + sizeof text, address, 16).ptr;
  return "0x" + std::string(text, end);
}

DeviceMemory::DeviceMemory() {
  mallopt(M_MMAP_THRESHOLD, kKeptByTheHeap);
  mallopt(M_TRIM_THRESHOLD, kKeptByTheHeap);
  void* const range =
      mmap(nullptr, kAddressRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    throw Refusal("emulated device: no address space for its memory");
  }
  range_begin_ = reinterpret_cast<std::uint64_t>(range);
  next_ = (range_begin_ + kGap + kAlignment - 1) / kAlignment * kAlignment;
}

DeviceMemory::~DeviceMemory() { munmap(reinterpret_cast<void*>(range_begin_), kAddressRange); }

std::uint64_t DeviceMemory::allocate(std::size_t bytes, State state) {
  if (live_bytes_ > total_bytes_ || bytes > total_bytes_ - live_bytes_) {
    return 0;
  }
  const std::size_t step = (bytes + kGap + kAlignment - 1) / kAlignment * kAlignment;
  if (step > range_begin_ + kAddressRange - next_) {
    throw Refusal("emulated device: every device address was used once");
  }
  Allocation made;
  made.begin = next_;
  made.bytes = bytes;
  made.state = state;
  made.data.reset(new std::byte[bytes]);
  std::memset(made.data.get(), 0xff, bytes);
  allocations_.push_back(std::move(made));
  live_bytes_ += bytes;
  next_ += step;
  return allocations_.back().begin;
}

std::size_t DeviceMemory::before(std::uint64_t address) const {
  const auto after = std::upper_bound(
      allocations_.begin(), allocations_.end(), address,
      [](std::uint64_t a, const Allocation& allocation) { return a < allocation.begin; });
  return after == allocations_.begin() ? allocations_.size()
                                       : static_cast<std::size_t>(after - allocations_.begin()) - 1;
}

DeviceMemory::Allocation& DeviceMemory::beginning_at(std::uint64_t address, const char* call) {
  const std::size_t index = before(address);
  if (index == allocations_.size() || allocations_[index].begin != address) {
    throw Fault(FaultKind::illegal_address,
                std::string(call) + " of " + hexadecimal(address) + ", where no allocation begins");
  }
  return allocations_[index];
}

void DeviceMemory::begin_life(std::uint64_t address) {
  Allocation& allocation = beginning_at(address, "allocation");
  allocation.state = State::live;
  allocation.begun_by = accessor.work;
}

void DeviceMemory::free(std::uint64_t address) {
  Allocation& allocation = beginning_at(address, "free");
  if (allocation.state != State::live) {
    throw Fault(FaultKind::illegal_address,
                "free of " + described(allocation) +
                    (allocation.state == State::freed ? ", which are free already"
                                                      : " before their allocation"));
  }
  if (accessor.work != 0 && allocation.cells) {
    // A free counts as a write of all of it.
    note(Use::write, allocation, address, allocation.bytes, "free", 0, 1);
  }
  allocation.state = State::freed;
  allocation.data.reset();
  allocation.cells.reset();
  live_bytes_ -= allocation.bytes;
}

namespace {
constexpr std::uint32_t kSeveralBlocks = ~std::uint32_t{0};
/// Flag in write_block for an atomic write.
constexpr std::uint32_t kAtomic = std::uint32_t{1} << 31;
/// A place: its phase, then its warp, or several, in this many bits.
constexpr unsigned kWarpBits = 6;
constexpr std::uint32_t kSeveralWarps = (std::uint32_t{1} << kWarpBits) - 1;

bool unordered(std::uint32_t place, std::uint32_t other) {
  return place >> kWarpBits == other >> kWarpBits && place != other;
}

DeviceMemory::Cell* new_cells(std::size_t count) {
  return static_cast<DeviceMemory::Cell*>(std::calloc(count, sizeof(DeviceMemory::Cell)));
}
}  // namespace

void DeviceMemory::narrow(Allocation& allocation, unsigned shift) {
  const std::size_t count = (allocation.bytes >> shift) + 1;
  std::unique_ptr<Cell[], void (*)(void*)> cells(new_cells(count), std::free);
  const unsigned more = allocation.granule_shift - shift;
  for (std::size_t i = 0; i < count && allocation.cells; ++i) {
    cells[i] = allocation.cells[i >> more];
  }
  allocation.cells = std::move(cells);
  allocation.granule_shift = shift;
}

bool DeviceMemory::follows_slowly(std::uint32_t earlier) {
  if (earlier != accessor.work && !accessor.follows(earlier)) {
    return false;
  }
  followed_[earlier % followed_.size()] = earlier;
  return true;
}

void DeviceMemory::race(const Allocation& allocation, std::uint64_t offset, const char* access,
                        const char* other, std::uint32_t work, std::uint32_t block,
                        unsigned lane) const {
  std::string text = std::string(access) + " of byte " + std::to_string(offset) + " of the " +
                     described(allocation) + " is not ordered after the " + other;
  if (work != accessor.work) {
    text += " by " + accessor.name(work) + ", of another stream";
  } else if (block == kSeveralBlocks) {
    text += " by several blocks of this launch";
  } else if ((block & ~kAtomic) == accessor.block) {
    text += " by another warp of this block: no barrier is between";
  } else {
    text += " by block " + std::to_string(block & ~kAtomic) + " of this launch";
  }
  throw Fault(FaultKind::race, text, lane);
}

void DeviceMemory::note(Use use, Allocation& allocation, std::uint64_t address, std::size_t bytes,
                        const char* access, unsigned lane, unsigned lanes) {
  if (bytes == 0) {
    return;
  }
  const std::uint64_t offset = address - allocation.begin;
  if (asked_by_ != accessor.work) {
    asked_by_ = accessor.work;
    followed_.fill(0);
  }
  // The allocation's end may cut off the last granule.
  const bool to_end = offset + bytes == allocation.bytes;
  const std::uint64_t ends = to_end ? offset : offset | bytes;
  const auto shift =
      std::min(allocation.granule_shift, ends == 0 ? allocation.granule_shift
                                                   : static_cast<unsigned>(std::countr_zero(ends)));
  if (!allocation.cells || shift < allocation.granule_shift) [[unlikely]] {
    narrow(allocation, shift);
  }
  if (!follows(allocation.begun_by)) [[unlikely]] {
    race(allocation, offset, access, "allocation", allocation.begun_by, 0, lane);
  }
  const std::uint32_t work = accessor.work;
  const std::uint32_t block = accessor.block;
  const std::uint32_t own_write = use == Use::update ? block | kAtomic : block;
  const std::uint32_t own_place = accessor.phase << kWarpBits | accessor.warp;
  const auto ordered = [&](std::uint32_t other_work, std::uint32_t other_block,
                           std::uint32_t other_place) {
    return other_work == work ? other_block == block && !unordered(own_place, other_place)
                              : follows(other_work);
  };
  Cell* const end = &allocation.cells[(offset + bytes - 1) >> allocation.granule_shift] + 1;
  for (Cell* cell = &allocation.cells[offset >> allocation.granule_shift]; cell != end; ++cell) {
    const bool again = cell->reader == work && cell->read_block == block;
    if (use == Use::read && again && cell->read_place == own_place) {
      continue;
    }
    const auto report = [&](const char* other, std::uint32_t by, std::uint32_t by_block) {
      const auto place = static_cast<std::uint64_t>(cell - allocation.cells.get())
                         << allocation.granule_shift;
      const std::uint64_t before = std::max(place, offset) - offset;
      race(allocation, place, access, other, by, by_block,
           lane + static_cast<unsigned>(before * lanes / bytes));
    };
    const bool atomics =
        cell->writer == work && use == Use::update && (cell->write_block & kAtomic) != 0;
    if (!atomics && !ordered(cell->writer, cell->write_block & ~kAtomic, cell->write_place))
        [[unlikely]] {
      report("write", cell->writer, cell->write_block);
    }
    if (use == Use::read) {
      const bool beside = again && unordered(own_place, cell->read_place);
      cell->read_block = cell->reader == work && cell->read_block != block ? kSeveralBlocks : block;
      cell->read_place = beside ? own_place | kSeveralWarps : own_place;
      cell->reader = work;
      continue;
    }
    if (!ordered(cell->reader, cell->read_block, cell->read_place)) [[unlikely]] {
      report("read", cell->reader, cell->read_block);
    }
    cell->writer = work;
    cell->write_block = own_write;
    cell->write_place = own_place;
    cell->reader = 0;
  }
}

bool DeviceMemory::owns(const void* address) const {
  const auto value = reinterpret_cast<std::uint64_t>(address);
  return value >= range_begin_ && value - range_begin_ < kAddressRange;
}

void DeviceMemory::refuse(std::uint64_t address, std::size_t bytes, const char* access,
                          unsigned lane) const {
  const std::string what =
      std::string(access) + " of " + std::to_string(bytes) + " bytes at " + hexadecimal(address);
  const std::size_t index = before(address);
  if (index == allocations_.size()) {
    throw Fault(FaultKind::illegal_address,
                what + (owns(reinterpret_cast<void*>(address)) ? ", before every allocation"
                                                               : ", which is not device memory"),
                lane);
  }
  const Allocation& allocation = allocations_[index];
  const std::uint64_t offset = address - allocation.begin;
  if (!owns(reinterpret_cast<void*>(address))) {
    throw Fault(FaultKind::illegal_address, what + ", which is not device memory", lane);
  }
  if (offset > allocation.bytes || bytes > allocation.bytes - offset) {
    throw Fault(FaultKind::illegal_address,
                what + ", " +
                    (offset >= allocation.bytes
                         ? std::to_string(offset - allocation.bytes) + " bytes past the end of the "
                         : "across the end of the ") +
                    described(allocation),
                lane);
  }
  throw Fault(
      FaultKind::illegal_address,
      what + ", inside the " + described(allocation) +
          (allocation.state == State::freed ? ", which were freed"
                                            : ", whose allocation comes later in its stream"),
      lane);
}

}  // namespace jforge::emulator
