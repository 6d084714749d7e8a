#pragma once

#include <sys/resource.h>

#include "runtime/stop_signal.h"

namespace jforge::test {

/// Makes writes beyond `bytes` of any file fail like those to a full disk, until destruction.
/// install_signal_handlers() ignores SIGXFSZ, which would end the process.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    install_signal_handlers();
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &old_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
};

}  // namespace jforge::test
