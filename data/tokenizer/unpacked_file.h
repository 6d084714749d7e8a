#pragma once

/// Reads a plain, gzip, bzip2 or Zstandard file, distinguished by content, as one stream of bytes.

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

/// A packed file may consist of several members and end in zero bytes; other bytes after a member
/// are refused, as are Zstandard windows over 128 MiB. Not thread-safe.
class UnpackedFile {
 public:
  /// Throws DataError if the file is not a regular file or cannot be opened or read.
  explicit UnpackedFile(const std::filesystem::path& path);
  ~UnpackedFile();
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  /// Reads up to out.size() ≥ 1 bytes and returns their count, 0 at the end. Throws DataError if
  /// the data are damaged, cut short or followed by other bytes.
  [[nodiscard]] std::size_t read(std::span<char> out);

  [[nodiscard]] bool is_packed() const { return unpacker_ != nullptr; }

 private:
  [[noreturn]] void fail(std::string_view what) const;  ///< Adds errno's text.
  [[noreturn]] void refuse(std::string_view what) const;
  /// Reads until `need` bytes or all that remain are ahead; returns the bytes ahead.
  std::span<const unsigned char> ahead(std::size_t need);
  std::size_t read_packed(std::span<char> out);
  /// Moves from the end of a member to the next one or the end of the file.
  void next_member();

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::vector<unsigned char> packed_;
  std::size_t at_ = 0;                  ///< Next byte in packed_.
  std::size_t end_ = 0;                 ///< End of the bytes in packed_.
  std::int64_t earlier_ = 0;            ///< Bytes of the file before packed_.
  std::unique_ptr<Unpacker> unpacker_;  ///< Null for a plain file.
  bool in_member_ = false;              ///< Inside a member.
};

}  // namespace jforge
