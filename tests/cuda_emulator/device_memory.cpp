#include "tests/cuda_emulator/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "tests/cuda_emulator/fault.h"

namespace jforge::emulator {

namespace {
constexpr std::size_t kAddressRange = std::size_t{16} << 40;
/// Between two allocations: a write just past one is not inside the next.
constexpr std::size_t kGap = 4096;
constexpr std::size_t kAlignment = 256;

std::string described(const DeviceMemory::Allocation& allocation) {
  return std::to_string(allocation.bytes) + " bytes at " + hexadecimal(allocation.begin);
}
}  // namespace

const DeviceMemory::Allocation DeviceMemory::kNothing{};

std::string hexadecimal(std::uint64_t address) {
  char text[16];
  const auto end = std::to_chars(text, text + sizeof text, address, 16).ptr;
  return "0x" + std::string(text, end);
}

DeviceMemory::DeviceMemory() {
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
  Allocation made{next_, bytes, state, std::unique_ptr<std::byte[]>(new std::byte[bytes])};
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
  beginning_at(address, "allocation").state = State::live;
}

void DeviceMemory::free(std::uint64_t address) {
  Allocation& allocation = beginning_at(address, "free");
  if (allocation.state != State::live) {
    throw Fault(FaultKind::illegal_address,
                "free of " + described(allocation) +
                    (allocation.state == State::freed ? ", which are free already"
                                                      : " before their allocation"));
  }
  allocation.state = State::freed;
  allocation.data.reset();
  live_bytes_ -= allocation.bytes;
}

bool DeviceMemory::owns(const void* address) const {
  const auto value = reinterpret_cast<std::uint64_t>(address);
  return value >= range_begin_ && value - range_begin_ < kAddressRange;
}

std::byte* DeviceMemory::find(std::uint64_t address, std::size_t bytes, const char* access,
                              unsigned lane) {
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
  if (allocation.state != State::live) {
    throw Fault(
        FaultKind::illegal_address,
        what + ", inside the " + described(allocation) +
            (allocation.state == State::freed ? ", which were freed"
                                              : ", whose allocation comes later in its stream"),
        lane);
  }
  last_ = index;
  return allocation.data.get() + offset;
}

}  // namespace jforge::emulator
