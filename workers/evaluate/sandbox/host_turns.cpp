#include "workers/evaluate/sandbox/host_turns.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/error.h"

namespace jforge {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(2);
/// Byte of the process next in line; turns are the bytes before it.
constexpr off_t kGate = off_t{1} << 20;

[[noreturn]] void refuse_turn(const std::string& what) {
  throw EnvironmentError(fmt::format(
      "turns to run programs: {}: {}; TMPDIR must name a writable folder of this machine", what,
      std::strerror(errno)));
}

/// Sets or ends a lock; false if another open file holds some of the bytes.
bool lock(const OwnedDescriptor& file, short type, off_t begin, off_t count) {
  struct flock asked {};
  asked.l_type = type;
  asked.l_whence = SEEK_SET;
  asked.l_start = begin;
  asked.l_len = count;
  // Per open file, not per process as F_SETLK, so threads exclude each other too.
  while (fcntl(file.get(), F_OFD_SETLK, &asked) != 0) {
    if (errno == EAGAIN || errno == EACCES) {
      return false;
    }
    if (errno != EINTR) {
      refuse_turn("lock");
    }
  }
  return true;
}

}  // namespace

HostTurn::~HostTurn() {
  if (file_.get() >= 0) {
    // Explicitly: a child that is being started may still have the file open.
    struct flock asked {};
    asked.l_type = F_UNLCK;
    asked.l_whence = SEEK_SET;
    (void)fcntl(file_.get(), F_OFD_SETLK, &asked);
  }
}

HostTurns::HostTurns(const std::filesystem::path& path, int slots)
    : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)), slots_(slots) {
  expect(slots >= 1 && slots < kGate, "turns for at least one program");
  if (file_.get() < 0) {
    refuse_turn(path.string());
  }
  name_ = fmt::format("/proc/self/fd/{}", file_.get());
}

std::optional<HostTurn> HostTurns::wait(bool alone, const std::function<bool()>& give_up) const {
  HostTurn turn(OwnedDescriptor(open(name_.c_str(), O_RDWR | O_CLOEXEC)));
  if (turn.file_.get() < 0) {
    refuse_turn(name_);
  }
  const auto until = [&](const auto& done) {
    while (!done()) {
      if (give_up()) {
        return false;
      }
      std::this_thread::sleep_for(kPoll);
    }
    return true;
  };
  const auto take_slot = [&] {
    if (alone) {
      return lock(turn.file_, F_WRLCK, 0, kGate);
    }
    for (int slot = 0; slot < slots_; ++slot) {
      if (lock(turn.file_, F_WRLCK, slot, 1)) {
        return true;
      }
    }
    return false;
  };
  if (!until([&] { return lock(turn.file_, F_WRLCK, kGate, 1); }) || !until(take_slot)) {
    return std::nullopt;
  }
  (void)lock(turn.file_, F_UNLCK, kGate, 1);
  return turn;
}

}  // namespace jforge
