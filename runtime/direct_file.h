#pragma once

/// Large transfers between memory and the disk that cost no core: where address, offset and file
/// system allow it the bytes pass the page cache by (O_DIRECT), so nobody copies them.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace jforge {

/// An existing file, open for reading and writing at any offset. Not thread-safe.
class DirectFile {
 public:
  /// What addresses and offsets must be multiples of for a transfer past the page cache.
  static constexpr std::uint64_t kAlignment = 4096;

  /// Throws EnvironmentError.
  explicit DirectFile(std::filesystem::path path);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Writes all of `bytes`. No page of 4096 bytes may hold both these and what was written
  /// otherwise at the same time. Throws EnvironmentError.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Fills `bytes`, through the page cache. Throws EnvironmentError, also at the file's end.
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Throws EnvironmentError: network file systems may report a failed write only here.
  void close();

 private:
  std::filesystem::path path_;
  int cached_ = -1;
  int direct_ = -1;  ///< -1: the file system has no direct transfers.
};

}  // namespace jforge
