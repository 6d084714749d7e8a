#include "runtime/file_descriptor_internal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

std::string reason_text(int error_number) {
  std::string reason = std::generic_category().message(error_number);
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "disk full (" + reason + "); free space or raise the quota, then run again";
    default:
      return reason;
  }
}
}  // namespace

[[noreturn]] void throw_environment(const std::string& action, const std::filesystem::path& path,
                                    int error_number, const std::string& note) {
  throw EnvironmentError("cannot " + action + " " + path.string() + ": " +
                         reason_text(error_number) + note);
}

[[noreturn]] void throw_unread(const std::string& action, const std::filesystem::path& path,
                               int error_number, const std::string& note) {
  throw_read_failure(error_number, "cannot " + action + " " + path.string() + ": " +
                                       reason_text(error_number) + note);
}

[[noreturn]] void throw_unopened(const std::filesystem::path& path, int error_number,
                                 double waited_seconds) {
  throw_unread("open", path, error_number,
               waited_seconds > 0 ? fmt::format(" (waited {:.0f} s for it)", waited_seconds)
                                  : std::string());
}

Descriptor::~Descriptor() {
  if (value_ >= 0) {
    ::close(value_);
  }
}

void Descriptor::close_checked(const std::filesystem::path& path) {
  // Linux frees the descriptor even if close() fails with EINTR.
  if (::close(std::exchange(value_, -1)) != 0 && errno != EINTR) {
    throw_environment("close", path, errno);
  }
}

int write_all(int descriptor, std::string_view bytes, std::size_t& done) {
  done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::write(descriptor, bytes.data() + done, bytes.size() - done);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      return errno;
    }
    // A zero-byte write makes no progress; treated as a full device.
    if (count == 0) {
      return ENOSPC;
    }
    done += static_cast<std::size_t>(count);
    note_progress();
  }
  return 0;
}

int sync_descriptor(int descriptor) {
  while (::fsync(descriptor) != 0) {
    if (errno != EINTR) {
      return errno;
    }
  }
  note_progress();
  return 0;
}

void read_chunks(const std::filesystem::path& path, int descriptor,
                 const std::function<void(std::string_view)>& consume) {
  const auto buffer = std::make_unique<std::array<char, kChunkBytes>>();
  for (;;) {
    const ssize_t count = ::read(descriptor, buffer->data(), buffer->size());
    if (count == 0) {
      return;
    }
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw_unread("read", path, errno);
    }
    consume({buffer->data(), static_cast<std::size_t>(count)});
    note_progress();
  }
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  const auto parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

}  // namespace jforge
