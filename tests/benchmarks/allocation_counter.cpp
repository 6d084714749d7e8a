#include "tests/benchmarks/allocation_counter.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace {

std::atomic<std::int64_t> calls{0};
std::atomic<std::int64_t> bytes{0};

}  // namespace

namespace jforge {

AllocationCount allocation_count() noexcept {
  return {calls.load(std::memory_order_relaxed), bytes.load(std::memory_order_relaxed)};
}

}  // namespace jforge

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)

bool jforge::allocations_are_counted() noexcept { return false; }

#else

bool jforge::allocations_are_counted() noexcept { return true; }

namespace {

void count(std::size_t size) noexcept {
  calls.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(static_cast<std::int64_t>(size), std::memory_order_relaxed);
}

}  // namespace

// glibc's own names for its allocator; free() stays glibc's and takes back what these return.
extern "C" {
void* __libc_malloc(std::size_t size) noexcept;
void* __libc_calloc(std::size_t items, std::size_t size) noexcept;
void* __libc_realloc(void* block, std::size_t size) noexcept;
void* __libc_memalign(std::size_t alignment, std::size_t size) noexcept;

void* malloc(std::size_t size) noexcept {
  count(size);
  return __libc_malloc(size);
}

void* calloc(std::size_t items, std::size_t size) noexcept {
  count(items * size);
  return __libc_calloc(items, size);
}

void* realloc(void* block, std::size_t size) noexcept {
  count(size);
  return __libc_realloc(block, size);
}

void* memalign(std::size_t alignment, std::size_t size) noexcept {
  count(size);
  return __libc_memalign(alignment, size);
}

void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  count(size);
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** block, std::size_t alignment, std::size_t size) noexcept {
  count(size);
  void* const result = __libc_memalign(alignment, size);
  if (result == nullptr) {
    return ENOMEM;
  }
  *block = result;
  return 0;
}
}

#endif
