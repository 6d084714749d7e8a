#pragma once

/// A plain, gzip, bzip2 or Zstandard file as one stream of bytes, told apart by content.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

class Unpacker;

/// Reads a file from its beginning to its end, unpacked if it begins with the mark of a packed
/// format. A packed file may have several members of its format, one right behind the other, and
/// zero bytes at its end; anything else behind a member is refused and not taken for the end. A
/// Zstandard window beyond 128 MiB is refused. Not thread-safe.
class UnpackedFile {
 public:
  /// DataError naming the file when it is no regular file, or cannot be opened or read.
  explicit UnpackedFile(const std::filesystem::path& path);
  ~UnpackedFile();
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  /// Fills `out` (not empty) from its beginning; returns how many bytes, 0 at the end. DataError
  /// naming the file when it cannot be read further: damaged or cut data, or other bytes after it.
  [[nodiscard]] std::size_t read(std::span<char> out);

  [[nodiscard]] bool is_packed() const { return unpacker_ != nullptr; }

 private:
  [[noreturn]] void fail(std::string_view what) const;  ///< With errno.
  [[noreturn]] void refuse(std::string_view what) const;
  /// Reads on until `need` bytes lie ahead, or all that are left; returns those that lie ahead.
  std::span<const unsigned char> ahead(std::size_t need);
  std::size_t read_packed(std::span<char> out);
  /// Behind a member: goes on to the next one, or to the end.
  void next_member();

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::vector<unsigned char> packed_;
  std::size_t at_ = 0;                  ///< Of packed_, the next byte.
  std::size_t end_ = 0;                 ///< Of packed_.
  std::int64_t earlier_ = 0;            ///< Bytes of the file before packed_.
  std::unique_ptr<Unpacker> unpacker_;  ///< None for a plain file.
  bool in_member_ = false;              ///< A member has begun and not ended.
};

}  // namespace jforge
