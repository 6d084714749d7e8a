#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace jforge {

/// Returns when `done()` holds; passes on its exceptions. Yields a few times, then sleeps `first`,
/// doubled each time up to `longest`.
template <class Done>
void poll_until(const Done& done, std::chrono::microseconds first = std::chrono::microseconds(10),
                std::chrono::microseconds longest = std::chrono::microseconds(200)) {
  constexpr int kTriesWithoutSleep = 20;
  std::chrono::microseconds sleep = std::min(first, longest);
  for (int tries = 0; !done(); ++tries) {
    if (tries < kTriesWithoutSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(longest, sleep * 2);
    }
  }
}

}  // namespace jforge
