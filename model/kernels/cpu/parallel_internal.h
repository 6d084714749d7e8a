#pragma once

/// Regions that cost nothing if not worthwhile: `omp parallel if (false)` allocates a team of one.

#include <omp.h>

#include <cstdint>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

#include <mutex>
#endif

namespace jforge {

template <class Team>
void in_region(int threads, Team team) {
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer does not see libgomp's fork and join; races within a region are still found.
  static std::mutex one_at_a_time;
  static Team* shared = nullptr;
  static char forked = 0;
  static char joined = 0;
  const std::scoped_lock lock(one_at_a_time);
  shared = &team;
  __tsan_release(&forked);
#pragma omp parallel num_threads(threads)
  {
    __tsan_acquire(&forked);
    (*shared)();
    __tsan_release(&joined);
  }
  __tsan_acquire(&joined);
#else
#pragma omp parallel num_threads(threads)
  team();
#endif
}

inline bool opens_region(bool worthwhile, std::int64_t count) {
  return worthwhile && count > 1 && omp_get_max_threads() > 1;
}

template <class Body>
void serial_for(std::int64_t count, Body& body) {
  for (std::int64_t i = 0; i < count; ++i) {
    body(i);
  }
}

/// Calls body(i) for i in [0, count), on several threads if `worthwhile`.
template <class Body>
void parallel_for(bool worthwhile, std::int64_t count, Body body) {
  if (!opens_region(worthwhile, count)) {
    return serial_for(count, body);
  }
  in_region(omp_get_max_threads(), [count, &body] {
#pragma omp for schedule(static) nowait
    for (std::int64_t i = 0; i < count; ++i) {
      body(i);
    }
  });
}

/// For pieces of unequal size.
template <class Body>
void parallel_for_dynamic(bool worthwhile, std::int64_t count, Body body) {
  if (!opens_region(worthwhile, count)) {
    return serial_for(count, body);
  }
  in_region(omp_get_max_threads(), [count, &body] {
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t i = 0; i < count; ++i) {
      body(i);
    }
  });
}

/// Calls body(threads, thread) on each of at most `limit` threads.
template <class Body>
void on_threads(std::int64_t limit, Body body) {
  if (limit > 1) {
    in_region(static_cast<int>(limit), [&body] {
      body(std::int64_t{omp_get_num_threads()}, std::int64_t{omp_get_thread_num()});
    });
  } else {
    body(std::int64_t{1}, std::int64_t{0});
  }
}

}  // namespace jforge
