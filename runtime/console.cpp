#include "runtime/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>

namespace jforge {

namespace {
constexpr std::string_view kClearLine = "\r\033[K";
std::atomic<bool> bar_open{false};

void write_to(std::FILE* stream, std::string_view text) noexcept {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stream));
  static_cast<void>(std::fflush(stream));
  std::clearerr(stream);
}
}  // namespace

void open_standard_streams() noexcept {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) {
      // open() returns the lowest free number, which is this one.
      static_cast<void>(::open("/dev/null", O_RDWR));
    }
  }
}

void tell(std::FILE* stream, std::string_view text) noexcept {
  if (stream == stderr) {
    write_to(stream, clear_bar());
  }
  write_to(stream, text);
}

void tell_bar(const std::string& line, bool last) {
  // In one write, because mpirun shares the terminal between processes.
  write_to(stderr, std::string(kClearLine) + line + (last ? "\n" : ""));
  bar_open = !last;
}

void end_bar() noexcept {
  if (bar_open.exchange(false)) {
    write_to(stderr, "\n");
  }
}

std::string_view clear_bar() noexcept {
  return bar_open.exchange(false) ? kClearLine : std::string_view();
}

}  // namespace jforge
