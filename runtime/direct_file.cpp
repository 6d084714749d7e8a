#include "runtime/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <utility>

#include "runtime/file_descriptor_internal.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

bool aligned(std::uint64_t number) { return number % DirectFile::kAlignment == 0; }

}  // namespace

DirectFile::DirectFile(std::filesystem::path path) : path_(std::move(path)) {
  cached_ = open_retrying(path_, O_RDWR);
  if (cached_ < 0) {
    throw_environment("open", path_, errno);
  }
  direct_ = open_retrying(path_, O_WRONLY | O_DIRECT);
}

DirectFile::~DirectFile() {
  for (const int descriptor : {cached_, direct_}) {
    if (descriptor >= 0) {
      ::close(descriptor);
    }
  }
}

void DirectFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t whole = bytes.size() - bytes.size() % kAlignment;
    const bool direct = direct_ >= 0 && whole > 0 && aligned(offset) &&
                        aligned(std::bit_cast<std::uintptr_t>(bytes.data()));
    const ssize_t count = ::pwrite(direct ? direct_ : cached_, bytes.data(),
                                   direct ? whole : bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && direct && errno == EINVAL) {
      // The file system cannot write this way, or needs a larger alignment.
      ::close(std::exchange(direct_, -1));
      continue;
    }
    if (count <= 0) {
      throw_environment("write", path_, count < 0 ? errno : ENOSPC);
    }
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    note_progress();
  }
}

void DirectFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(cached_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw_environment("read", path_, count < 0 ? errno : EIO);
    }
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    note_progress();
  }
}

void DirectFile::close() {
  for (int* descriptor : {&direct_, &cached_}) {
    // Linux frees the descriptor even if close() fails.
    if (*descriptor >= 0 && ::close(std::exchange(*descriptor, -1)) != 0 && errno != EINTR) {
      throw_environment("close", path_, errno);
    }
  }
}

}  // namespace jforge
