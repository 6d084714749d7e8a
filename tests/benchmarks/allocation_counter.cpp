#include "tests/benchmarks/allocation_counter.h"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

namespace {

struct Counters {
  std::atomic<std::int64_t> calls{0};
  std::atomic<std::int64_t> bytes{0};
  void add(std::size_t size) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(static_cast<std::int64_t>(size), std::memory_order_relaxed);
  }
  [[nodiscard]] jforge::AllocationCount read() const noexcept {
    return {calls.load(std::memory_order_relaxed), bytes.load(std::memory_order_relaxed)};
  }
};
Counters all;
Counters watched;
thread_local bool is_watched = false;

struct CallStack {
  std::array<void*, 24> frames{};
  int depth = 0;
};
constexpr int kRemembered = 8;
std::array<CallStack, kRemembered> stacks;
/// Next index in `stacks`.
std::atomic<int> remembered{kRemembered};

}  // namespace

namespace jforge {

void watch_this_thread() noexcept { is_watched = true; }

AllocationCount watched_allocation_count() noexcept { return watched.read(); }

void remember_allocations() noexcept {
  // The first call loads a library, which allocates.
  backtrace(stacks[0].frames.data(), 1);
  stacks.fill({});
  remembered = 0;
}

void forget_allocations(bool print) noexcept {
  const int count = std::min(remembered.exchange(kRemembered), kRemembered);
  for (int i = 0; print && i < count; ++i) {
    const CallStack& stack = stacks[static_cast<std::size_t>(i)];
    constexpr char kHead[] = "allocation:\n";
    (void)!write(STDERR_FILENO, kHead, sizeof(kHead) - 1);
    backtrace_symbols_fd(stack.frames.data(), stack.depth, STDERR_FILENO);
  }
}

AllocationCount allocation_count() noexcept { return all.read(); }

}  // namespace jforge

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)

bool jforge::allocations_are_counted() noexcept { return false; }

#else

bool jforge::allocations_are_counted() noexcept { return true; }

namespace {

void count(std::size_t size) noexcept {
  all.add(size);
  if (!is_watched) {
    return;
  }
  watched.add(size);
  if (remembered.load(std::memory_order_relaxed) < kRemembered) {
    const int place = remembered.fetch_add(1);
    if (place < kRemembered) {
      CallStack& stack = stacks[static_cast<std::size_t>(place)];
      stack.depth = backtrace(stack.frames.data(), static_cast<int>(stack.frames.size()));
    }
  }
}

}  // namespace

// glibc's allocator; its free() accepts blocks of these functions.
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
