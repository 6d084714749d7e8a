#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace jforge {

/// Time until the next look for what may come: a sixteenth of the time since start(), within
/// bounds (`least` <= `most`). The default is for the control plane.
class LookInterval {
 public:
  using Duration = std::chrono::steady_clock::duration;
  explicit LookInterval(Duration least = std::chrono::milliseconds(2),
                        Duration most = std::chrono::milliseconds(20))
      : least_(least), most_(most) {}
  void start() { start_ = std::chrono::steady_clock::now(); }
  [[nodiscard]] Duration next() const {
    return std::clamp((std::chrono::steady_clock::now() - start_) / 16, least_, most_);
  }

 private:
  Duration least_, most_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Returns when `done()` holds; passes on its exceptions. Yields, then sleeps by a LookInterval.
template <class Done>
void poll_until(const Done& done, LookInterval::Duration least = std::chrono::microseconds(10),
                LookInterval::Duration most = std::chrono::microseconds(200)) {
  const LookInterval interval(least, most);
  for (int tries = 0; !done(); ++tries) {
    if (tries < 20) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(interval.next());
    }
  }
}

}  // namespace jforge
