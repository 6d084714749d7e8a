#pragma once

/// Reading files, on file systems that may show them late and let signals interrupt an open.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

namespace jforge {

/// Whether opening or reading failed with what says nothing of the file (EIO, ESTALE, EMFILE, …),
/// and nobody may throw it away for; not where the path names no file (ENOENT, ENOTDIR, …).
[[nodiscard]] bool is_systems_fault(int error_number) noexcept;

/// Throws EnvironmentError where is_systems_fault(), else DataError.
[[noreturn]] void throw_read_failure(int error_number, const std::string& message);

/// Whole file as bytes. Retries ENOENT and ESTALE for `retry_seconds` (network file systems).
/// Throws DataError where there is no such file, or no regular one, and EnvironmentError where the
/// system does not let it be read: that says nothing of what the file holds.
[[nodiscard]] std::string read_file(const std::filesystem::path& path, double retry_seconds = 0);

/// open(2) with O_CLOEXEC, again whenever a signal interrupts it (network file systems); -1 and
/// errno on failure.
[[nodiscard]] int open_retrying(const std::filesystem::path& path, int flags, unsigned mode = 0);
/// A binary stream for reading, opened likewise (DataError: no regular file); test it before use.
[[nodiscard]] std::ifstream open_input(const std::filesystem::path& path);

/// A file of which ranges are read, each straight into its target.
class RangeReader {
 public:
  /// Throws as read_file().
  explicit RangeReader(std::filesystem::path path);
  ~RangeReader();
  RangeReader(const RangeReader&) = delete;
  RangeReader& operator=(const RangeReader&) = delete;
  /// Fills `target` with the bytes from `offset` on. Throws as read_file(), and DataError at the
  /// file's end.
  void read(std::uint64_t offset, std::span<std::byte> target) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
};

/// A network file system may show a file that another host has published only after a while: NFS
/// may go on with what it knows of a directory for 60 s (acdirmax, unless the mount says
/// otherwise).
inline constexpr double kPublicationWaitSeconds = 75;
/// How long a reader waits for a published file at `path` to appear: kPublicationWaitSeconds, or 0
/// where its directory lies on a local file system (ext, xfs, btrfs, tmpfs, …), which shows it at
/// once.
[[nodiscard]] double publication_wait_seconds(const std::filesystem::path& path);
/// Returns once `path` can be opened for reading. ENOENT is retried for `wait_seconds`, ESTALE (a
/// handle that the server has dropped) for at least kPublicationWaitSeconds. Throws as read_file(),
/// naming the path, the system's reason and how long it waited.
void await_file(const std::filesystem::path& path, double wait_seconds);
/// With publication_wait_seconds(path).
void await_file(const std::filesystem::path& path);

}  // namespace jforge
