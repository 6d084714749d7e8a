#include "launch/commands/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace jforge {

namespace {
bool is_pipe(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode);
}
}  // namespace

Terminal Terminal::of_standard_error() {
  if (::isatty(STDERR_FILENO) == 0 && is_pipe(STDERR_FILENO) &&
      std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    // Opened anew, never as this process's controlling terminal.
    const std::string path = "/proc/" + std::to_string(::getppid()) + "/fd/2";
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && S_ISCHR(status.st_mode)) {
      return Terminal(::open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    }
    return {};
  }
  return Terminal(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
}

Terminal Terminal::of_standard_output() {
  return Terminal(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
}

Terminal::Terminal(int descriptor) noexcept : descriptor_(descriptor) {
  if (descriptor_ >= 0 && ::isatty(descriptor_) == 0) {
    ::close(std::exchange(descriptor_, -1));
  }
}

Terminal::Terminal(Terminal&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Terminal& Terminal::operator=(Terminal&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Terminal::~Terminal() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

int Terminal::columns() const noexcept {
  constexpr int kUsual = 80;
  struct winsize size {};
  return ::ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace jforge
