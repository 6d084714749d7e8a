#pragma once

/// Large transfers that bypass the page cache (O_DIRECT) if alignment and file system allow it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace jforge {

/// An existing file, open for reading and writing at any offset. Not thread-safe.
class DirectFile {
 public:
  /// Alignment of addresses and offsets for direct transfers, in bytes.
  static constexpr std::uint64_t kAlignment = 4096;

  /// Throws EnvironmentError.
  explicit DirectFile(std::filesystem::path path);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Requires: no concurrent writes to the same 4096-byte pages. Throws EnvironmentError.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Reads through the page cache. Throws EnvironmentError, also at the file's end.
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Throws EnvironmentError; network file systems may report failed writes only here.
  void close();

 private:
  std::filesystem::path path_;
  int cached_ = -1;
  int direct_ = -1;  ///< -1: not supported by the file system.
};

}  // namespace jforge
