#include "workers/evaluate/sandbox/harness_channel.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "runtime/error.h"

namespace jforge {
namespace {

constexpr std::size_t kHeaderBytes = 5;
constexpr std::size_t kTransferBytes = 1 << 20;
constexpr std::int64_t kPollMilliseconds = 200;

}  // namespace

/// Returns false after the deadline.
bool HarnessChannel::wait_for(std::span<pollfd> polls, Clock::time_point deadline) const {
  while (true) {
    if (waiting_) {
      waiting_();
    }
    if (cancelled_ && cancelled_()) {
      throw Interrupted("code sandbox: the program was ended because a stop was asked for");
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now_());
    const auto timeout = std::clamp<std::int64_t>(left.count(), 0, kPollMilliseconds);
    const int ready = poll(polls.data(), polls.size(), static_cast<int>(timeout));
    if (ready > 0) {
      return true;
    }
    // now_() may have stood still.
    if (ready == 0 && left.count() <= timeout && now_() >= deadline) {
      return false;
    }
  }
}

ChannelOutcome HarnessChannel::send_bytes(std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    std::array<pollfd, 2> polls{{{command_, POLLOUT, 0}, {reply_, POLLIN, 0}}};
    if (!wait_for(polls, deadline)) {
      return ChannelOutcome::timed_out;
    }
    if (polls[1].revents != 0) {
      char unasked = 0;
      return read(reply_, &unasked, 1) > 0 ? ChannelOutcome::broken : ChannelOutcome::closed;
    }
    const ssize_t written = write(command_, bytes.data(), std::min(bytes.size(), kTransferBytes));
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EAGAIN && errno != EINTR) {
      return ChannelOutcome::closed;
    }
  }
  return ChannelOutcome::ok;
}

ChannelOutcome HarnessChannel::send(char kind, std::string_view first, std::string_view second,
                                    Clock::time_point deadline) {
  const std::size_t size = first.size() + second.size();
  std::string bytes(kHeaderBytes, kind);
  for (std::size_t index = 0; index < 4; ++index) {
    bytes[index + 1] = static_cast<char>((size >> (8 * index)) & 0xffU);
  }
  bytes.append(first).append(second);
  return send_bytes(bytes, deadline);
}

ChannelOutcome HarnessChannel::receive_bytes(char* bytes, std::size_t size,
                                             Clock::time_point deadline) {
  while (size > 0) {
    pollfd polled{reply_, POLLIN, 0};
    if (!wait_for(std::span(&polled, 1), deadline)) {
      return ChannelOutcome::timed_out;
    }
    const ssize_t got = read(reply_, bytes, size);
    if (got > 0) {
      bytes += got;
      size -= static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return ChannelOutcome::closed;
    } else if (now_() >= deadline) {
      return ChannelOutcome::timed_out;
    }
  }
  return ChannelOutcome::ok;
}

ChannelOutcome HarnessChannel::receive(HarnessFrame& frame, Clock::time_point deadline) {
  std::array<char, kHeaderBytes> header{};
  if (const ChannelOutcome outcome = receive_bytes(header.data(), header.size(), deadline);
      outcome != ChannelOutcome::ok) {
    return outcome;
  }
  std::size_t size = 0;
  for (std::size_t index = 0; index < 4; ++index) {
    size |= static_cast<std::size_t>(static_cast<unsigned char>(header[index + 1])) << (8 * index);
  }
  if (size > payload_limit_) {
    return ChannelOutcome::broken;
  }
  frame.kind = header[0];
  frame.payload.clear();
  // Grows as bytes arrive, because the length cannot be trusted.
  while (frame.payload.size() < size) {
    const std::size_t begin = frame.payload.size();
    frame.payload.resize(begin + std::min(size - begin, kTransferBytes));
    if (const ChannelOutcome outcome =
            receive_bytes(frame.payload.data() + begin, frame.payload.size() - begin, deadline);
        outcome != ChannelOutcome::ok) {
      return outcome;
    }
  }
  return ChannelOutcome::ok;
}

}  // namespace jforge
