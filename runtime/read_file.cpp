#include "runtime/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/contained_file.h"
#include "runtime/error.h"
#include "runtime/file_descriptor_internal.h"
#include "runtime/phase_clock.h"

namespace jforge {

namespace {
/// Retries errors that time may heal. Throws as throw_unopened().
int open_within(const std::filesystem::path& path, double absent_seconds, double stale_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    refuse_special_file(path);
    const int descriptor = open_retrying(path, O_RDONLY);
    if (descriptor >= 0) {
      return descriptor;
    }
    const int error_number = errno;
    const double limit = error_number == ENOENT   ? absent_seconds
                         : error_number == ESTALE ? stale_seconds
                                                  : 0;
    if (Clock::now() - start >= std::chrono::duration<double>(limit)) {
      throw_unopened(path, error_number, limit);
    }
    note_progress();  // This wait has its own limit.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}
}  // namespace

bool is_systems_fault(int error_number) noexcept {
  switch (error_number) {
    // No file has this name.
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return false;
    default:
      return true;
  }
}

void throw_read_failure(int error_number, const std::string& message) {
  if (is_systems_fault(error_number)) {
    throw EnvironmentError(message);
  }
  throw DataError(message);
}

int open_retrying(const std::filesystem::path& path, int flags, unsigned mode) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

std::ifstream open_input(const std::filesystem::path& path) {
  refuse_special_file(path);
  std::ifstream file;
  do {
    file.clear();
    errno = 0;
    file.open(path, std::ios::binary);
  } while (!file && errno == EINTR);
  return file;
}

std::string read_file(const std::filesystem::path& path, double retry_seconds) {
  const Descriptor file(open_within(path, retry_seconds, retry_seconds));
  std::string bytes;
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode)) {
    bytes.reserve(static_cast<std::size_t>(status.st_size));
  }
  read_chunks(path, file.get(), [&](std::string_view chunk) { bytes += chunk; });
  return bytes;
}

double publication_wait_seconds(const std::filesystem::path& path) {
  // From statfs(2): ext2 to ext4, xfs, btrfs, zfs, tmpfs, ramfs, overlayfs, f2fs, squashfs.
  constexpr std::array<std::int64_t, 9> kLocal{0xEF53,     0x58465342, 0x9123683E,
                                               0x2FC12FC1, 0x01021994, 0x858458F6,
                                               0x794C7630, 0xF2F52010, 0x73717368};
  // The directory may not be visible yet; its nearest ancestor is on the same file system.
  std::filesystem::path directory = parent_of(path);
  struct statfs status {};
  while (::statfs(directory.c_str(), &status) != 0) {
    if (errno != ENOENT || directory == parent_of(directory)) {
      return kPublicationWaitSeconds;
    }
    directory = parent_of(directory);
  }
  const auto type = static_cast<std::int64_t>(static_cast<std::uint32_t>(status.f_type));
  return std::ranges::find(kLocal, type) != kLocal.end() ? 0 : kPublicationWaitSeconds;
}

void await_file(const std::filesystem::path& path, double wait_seconds) {
  const Descriptor file(
      open_within(path, wait_seconds, std::max(wait_seconds, kPublicationWaitSeconds)));
}

void await_file(const std::filesystem::path& path) {
  await_file(path, publication_wait_seconds(path));
}

RangeReader::RangeReader(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(open_within(path_, 0, 0)) {}

RangeReader::~RangeReader() { ::close(descriptor_); }

void RangeReader::read(std::uint64_t offset, std::span<std::byte> target) const {
  constexpr std::size_t kPieceBytes = std::size_t{16} << 20;  // Between two signs of progress.
  while (!target.empty()) {
    const ssize_t count = ::pread(descriptor_, target.data(), std::min(target.size(), kPieceBytes),
                                  static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw_unread("read", path_, errno);
    }
    if (count == 0) {
      throw DataError("cannot read " + path_.string() + ": it is too short");
    }
    offset += static_cast<std::uint64_t>(count);
    target = target.subspan(static_cast<std::size_t>(count));
    note_progress();
  }
}

}  // namespace jforge
