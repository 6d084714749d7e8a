#pragma once

/// Parent's end of the dialogue with harness.py over two pipes. Frame: type byte, little-endian
/// 32-bit length, payload. The other end may be hostile.

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace jforge {

enum class ChannelOutcome {
  ok,
  timed_out,
  closed,  ///< The other end closed or died.
  broken   ///< Unexpected bytes, or a frame larger than allowed.
};

struct HarnessFrame {
  char kind = 0;
  std::string payload;
};

class HarnessChannel {
 public:
  using Clock = std::chrono::steady_clock;

  using Now = std::function<Clock::time_point()>;

  /// Descriptors are non-blocking and not owned. `payload_limit`: bytes of a received frame.
  /// `cancelled` and `waiting` are called several times a second in send() and receive(), which
  /// throw Interrupted once `cancelled` is true.
  HarnessChannel(int command, int reply, std::size_t payload_limit,
                 std::function<bool()> cancelled = {}, std::function<void()> waiting = {},
                 Now now = Clock::now)
      : command_(command),
        reply_(reply),
        payload_limit_(payload_limit),
        cancelled_(std::move(cancelled)),
        waiting_(std::move(waiting)),
        now_(std::move(now)) {}

  /// Payload: `first` + `second`, below 4 GiB. Bytes that arrive meanwhile are `broken`, because
  /// the harness only answers.
  [[nodiscard]] ChannelOutcome send(char kind, std::string_view first, std::string_view second,
                                    Clock::time_point deadline);
  [[nodiscard]] ChannelOutcome receive(HarnessFrame& frame, Clock::time_point deadline);

 private:
  [[nodiscard]] ChannelOutcome send_bytes(std::string_view bytes, Clock::time_point deadline);
  [[nodiscard]] ChannelOutcome receive_bytes(char* bytes, std::size_t size,
                                             Clock::time_point deadline);
  [[nodiscard]] bool wait_for(std::span<pollfd> polls, Clock::time_point deadline) const;

  int command_;
  int reply_;
  std::size_t payload_limit_;
  std::function<bool()> cancelled_;
  std::function<void()> waiting_;
  Now now_;
};

}  // namespace jforge
