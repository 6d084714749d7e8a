#pragma once

/// Reads plain, gzip, bzip2 and Zstandard files, distinguished by content.

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

/// Packed files may have several members and trailing zeros; other trailing bytes and Zstandard
/// windows over 128 MiB are refused. Not thread-safe.
class UnpackedFile {
 public:
  /// Throws DataError if the file is not regular or cannot be opened or read.
  explicit UnpackedFile(const std::filesystem::path& path);
  ~UnpackedFile();
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  /// Returns the number of bytes read, 0 at the end. Requires: `out` is not empty. Throws DataError
  /// if data are damaged, cut short or followed by other bytes.
  [[nodiscard]] std::size_t read(std::span<char> out);

  [[nodiscard]] bool is_packed() const { return unpacker_ != nullptr; }

 private:
  [[noreturn]] void fail(std::string_view what) const;  ///< Adds errno.
  [[noreturn]] void refuse(std::string_view what) const;
  /// Returns the bytes ahead, at least `need` unless the file ends.
  std::span<const unsigned char> ahead(std::size_t need);
  std::size_t read_packed(std::span<char> out);
  /// Moves to the next member or the end.
  void next_member();

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::vector<unsigned char> packed_;
  std::size_t at_ = 0;  ///< Next byte in packed_.
  std::size_t end_ = 0;
  std::int64_t earlier_ = 0;            ///< File bytes before packed_.
  std::unique_ptr<Unpacker> unpacker_;  ///< Null for a plain file.
  bool in_member_ = false;              ///< Inside a member.
};

}  // namespace jforge
