#pragma once

/// Counts heap allocations of malloc and its relatives and of operator new. Linking
/// allocation_counter.cpp replaces glibc's functions.

#include <cstdint>

namespace jforge {

struct AllocationCount {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< requested; freed bytes are not subtracted
};

/// Returns false in sanitizer builds, which replace the allocator themselves.
[[nodiscard]] bool allocations_are_counted() noexcept;

/// Adds the calling thread to watched_allocation_count(), which leaves out helper threads.
void watch_this_thread() noexcept;
/// Thread-safe.
[[nodiscard]] AllocationCount watched_allocation_count() noexcept;
/// Records the call stacks of the next few allocations of watched threads.
void remember_allocations() noexcept;
/// Stops recording; `print` writes the stacks to standard error.
void forget_allocations(bool print) noexcept;

/// Counts all threads since the process began. Thread-safe.
[[nodiscard]] AllocationCount allocation_count() noexcept;

[[nodiscard]] constexpr AllocationCount operator-(AllocationCount later,
                                                  AllocationCount earlier) noexcept {
  return {later.calls - earlier.calls, later.bytes - earlier.bytes};
}

}  // namespace jforge
