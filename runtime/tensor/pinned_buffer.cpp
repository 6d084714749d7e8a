#include <utility>

#include "runtime/tensor/cuda_queue.h"

namespace jforge {

PinnedBuffer::PinnedBuffer(std::size_t bytes, MemoryAccount& account)
    : data_(cuda_memory::allocate_pinned(bytes)), bytes_(bytes), account_(&account) {
  account.charge(bytes, MemoryUse::staging);
}

PinnedBuffer::~PinnedBuffer() {
  if (account_ != nullptr) {
    cuda_memory::free_pinned(data_);
    account_->release(bytes_, MemoryUse::staging);
  }
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      account_(std::exchange(other.account_, nullptr)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(account_, other.account_);
  return *this;
}

}  // namespace jforge
