#pragma once

/// A plain or gzip file as one stream of bytes, told apart by content.

#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// Reads a file from its beginning to its end, unpacked where it begins with gzip's mark. A gzip
/// file may have several members, one right behind the other, and zero bytes at its end; anything
/// else behind a member is refused and not taken for the end. Not thread-safe.
class UnpackedFile {
 public:
  /// DataError naming the file when it is no regular file, or cannot be opened or read.
  explicit UnpackedFile(const std::filesystem::path& path);
  ~UnpackedFile();
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  /// Fills `out` (not empty) from its beginning; returns how many bytes, 0 at the end. DataError
  /// naming the file when it cannot be read further: damaged or cut gzip data, or other bytes
  /// behind it.
  [[nodiscard]] std::size_t read(std::span<char> out);

  [[nodiscard]] bool is_gzip() const { return gzip_; }

 private:
  [[noreturn]] void fail(std::string_view what) const;  ///< With errno.
  [[noreturn]] void refuse(std::string_view what) const;
  /// Reads on until `need` bytes lie ahead; false when the file ends before.
  bool fill(std::size_t need);
  /// Whether gzip's mark lies ahead.
  bool begins_member();
  std::size_t read_gzip(std::span<char> out);
  /// Behind a member: goes on to the next one, or to the end.
  void next_member();

  std::string path_;
  std::FILE* file_ = nullptr;
  std::vector<unsigned char> packed_;
  std::size_t at_ = 0;        ///< Of packed_, the next byte.
  std::size_t end_ = 0;       ///< Of packed_.
  std::int64_t earlier_ = 0;  ///< Bytes of the file before packed_.
  bool gzip_ = false;
  bool in_member_ = false;  ///< A member has begun and not ended.
  z_stream stream_{};
};

}  // namespace jforge
