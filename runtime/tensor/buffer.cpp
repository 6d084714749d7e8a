#include "runtime/tensor/buffer.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace jforge {

namespace {
constexpr std::size_t kAlignment = 64;
}

void MemoryAccount::charge(std::size_t bytes) noexcept {
  const std::size_t now = live_.fetch_add(bytes) + bytes;
  std::size_t peak = peak_.load();
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
}

void MemoryAccount::release(std::size_t bytes) noexcept { live_.fetch_sub(bytes); }

Buffer::Buffer(std::size_t bytes, MemoryAccount& account) : bytes_(bytes), account_(&account) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  data_ =
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded));
  if (data_ == nullptr) {
    throw EnvironmentError("out of memory: " + std::to_string(bytes) + " bytes for " +
                           account.name() + " (" + std::to_string(account.live_bytes()) +
                           " bytes already live there)");
  }
  std::memset(data_, 0, rounded);
  account.charge(bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    std::free(data_);
    account_->release(bytes_);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      account_(std::exchange(other.account_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Buffer old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    account_ = std::exchange(other.account_, nullptr);
  }
  return *this;
}

TensorView Buffer::view(DType dtype, Shape shape) const {
  expect(static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype) <= bytes_,
         "view is larger than its buffer");
  return {data_, dtype, shape};
}

}  // namespace jforge
