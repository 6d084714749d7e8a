#pragma once

/// Reads files, also on network file systems that show them late or interrupt an open.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

namespace jforge {

/// Returns whether an error says nothing of the file (EIO, ESTALE, EMFILE, …), which then must not
/// be discarded; false if the path names no file (ENOENT, ENOTDIR, …).
[[nodiscard]] bool is_systems_fault(int error_number) noexcept;

/// Throws EnvironmentError if is_systems_fault(), else DataError.
[[noreturn]] void throw_read_failure(int error_number, const std::string& message);

/// Returns all bytes. Retries ENOENT and ESTALE for `retry_seconds` (network file systems). Throws
/// DataError if there is no such regular file, EnvironmentError if the system cannot read it.
[[nodiscard]] std::string read_file(const std::filesystem::path& path, double retry_seconds = 0);

/// Calls open(2) with O_CLOEXEC, again after every EINTR. Returns -1 and sets errno on failure.
[[nodiscard]] int open_retrying(const std::filesystem::path& path, int flags, unsigned mode = 0);
/// Opens a binary stream likewise; test it before use. Throws DataError for a special file.
[[nodiscard]] std::ifstream open_input(const std::filesystem::path& path);

/// Reads ranges straight into their targets.
class RangeReader {
 public:
  /// Throws as read_file().
  explicit RangeReader(std::filesystem::path path);
  ~RangeReader();
  RangeReader(const RangeReader&) = delete;
  RangeReader& operator=(const RangeReader&) = delete;
  /// Fills `target` from `offset` on. Throws as read_file(), and DataError at the file's end.
  void read(std::uint64_t offset, std::span<std::byte> target) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
};

/// NFS may show another host's file up to 60 s late (acdirmax, unless mounted otherwise).
inline constexpr double kPublicationWaitSeconds = 75;
/// 0 on a local file system (ext, xfs, btrfs, tmpfs, …), else kPublicationWaitSeconds.
[[nodiscard]] double publication_wait_seconds(const std::filesystem::path& path);
/// Waits until `path` opens: `wait_seconds` while it is absent, at least kPublicationWaitSeconds on
/// ESTALE (the server dropped a handle). Throws as read_file().
void await_file(const std::filesystem::path& path, double wait_seconds);
/// Waits publication_wait_seconds(path).
void await_file(const std::filesystem::path& path);

}  // namespace jforge
