#include "runtime/tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "runtime/tensor/cuda_memory.h"

namespace jforge {

namespace {
constexpr std::size_t kAlignment = 64;
/// From here on fresh zero pages of the kernel cost less than filling memory by hand. (The address
/// sanitizer sees the bounds of heap blocks alone.)
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kMappedBytes = SIZE_MAX;
#else
constexpr std::size_t kMappedBytes = std::size_t{1} << 20;
#endif

bool is_mapped(std::size_t bytes, MemoryAccount::Backing backing) {
  return bytes >= kMappedBytes || backing == MemoryAccount::Backing::count_only;
}

std::byte* map_pages(std::size_t bytes, int protection, int flags) {
  void* const data = ::mmap(nullptr, std::max<std::size_t>(bytes, 1), protection,
                            MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

std::byte* allocate_host(std::size_t bytes, MemoryAccount::Backing backing) {
  if (backing == MemoryAccount::Backing::count_only) {
    return map_pages(bytes, PROT_NONE, MAP_NORESERVE);
  }
  if (is_mapped(bytes, backing)) {
    return map_pages(bytes, PROT_READ | PROT_WRITE, 0);
  }
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const data =
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded));
  if (data != nullptr) {
    std::memset(data, 0, rounded);
  }
  return data;
}

void free_host(std::byte* data, std::size_t bytes, MemoryAccount::Backing backing) {
  if (is_mapped(bytes, backing)) {
    ::munmap(data, std::max<std::size_t>(bytes, 1));
  } else {
    std::free(data);
  }
}
}  // namespace

const char* memory_use_name(MemoryUse use) noexcept {
  switch (use) {
    case MemoryUse::weights:
      return "weights";
    case MemoryUse::gradients:
      return "gradients";
    case MemoryUse::optimizer:
      return "optimizer";
    case MemoryUse::activations:
      return "activations";
    case MemoryUse::key_value:
      return "key/value";
    case MemoryUse::communication:
      return "communication";
    case MemoryUse::staging:
      return "staging";
    case MemoryUse::teacher:
      return "teacher";
    case MemoryUse::other:
      break;
  }
  return "other";
}

void MemoryAccount::Count::charge(std::size_t bytes) noexcept {
  const std::size_t now = live.fetch_add(bytes) + bytes;
  std::size_t highest = peak.load();
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
}

void MemoryAccount::charge(std::size_t bytes, MemoryUse use) noexcept {
  total_.charge(bytes);
  uses_[static_cast<std::size_t>(use)].charge(bytes);
}

void MemoryAccount::release(std::size_t bytes, MemoryUse use) noexcept {
  total_.live.fetch_sub(bytes);
  uses_[static_cast<std::size_t>(use)].live.fetch_sub(bytes);
}

Buffer::Buffer(std::size_t bytes, MemoryAccount& account, Device device, MemoryUse use)
    : data_(device == Device::cuda ? cuda_memory::allocate(bytes)
                                   : allocate_host(bytes, account.backing())),
      bytes_(bytes),
      account_(&account),
      device_(device),
      use_(use) {
  if (data_ == nullptr) {
    throw EnvironmentError("out of memory: " + std::to_string(bytes) + " bytes for " +
                           account.name() + " (" + std::to_string(account.live_bytes()) +
                           " bytes already live there)" +
                           (device == Device::cuda ? cuda_memory::free_memory_note() : ""));
  }
  account.charge(bytes, use);
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    if (device_ == Device::cuda) {
      cuda_memory::free(data_);
    } else {
      free_host(data_, bytes_, account_->backing());
    }
    account_->release(bytes_, use_);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      account_(std::exchange(other.account_, nullptr)),
      device_(other.device_),
      use_(other.use_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Buffer old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    account_ = std::exchange(other.account_, nullptr);
    device_ = other.device_;
    use_ = other.use_;
  }
  return *this;
}

TensorView Buffer::view(DType dtype, Shape shape) const {
  expect(static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype) <= bytes_,
         "view is larger than its buffer");
  return {data_, dtype, shape, device_};
}

void copy_tensor(const ConstTensorView& from, const TensorView& to) {
  expect_shape(from, to.shape(), "copy_tensor source");
  expect(from.dtype() == to.dtype(), "copy_tensor: element types differ");
  const std::size_t bytes = from.bytes();
  if (bytes == 0) {
    return;
  }
  if (from.device() == Device::cpu && to.device() == Device::cpu) {
    const auto* const source = static_cast<const std::byte*>(from.raw());
    const auto* const target = static_cast<const std::byte*>(to.raw());
    const std::less_equal<const std::byte*> before;
    expect(before(source + bytes, target) || before(target + bytes, source),
           "copy_tensor: the tensors overlap");
    std::memcpy(to.raw(), from.raw(), bytes);
    return;
  }
  cuda_memory::copy(to.raw(), to.device(), from.raw(), from.device(), bytes);
}

void zero_tensor(const TensorView& view) {
  if (view.bytes() == 0) {
    return;
  }
  if (view.device() == Device::cuda) {
    cuda_memory::zero(view.raw(), view.bytes());
  } else {
    std::memset(view.raw(), 0, view.bytes());
  }
}

}  // namespace jforge
