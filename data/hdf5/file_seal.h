#pragma once

/// The seal of a file: its size and checksum, kept in the file's first 512 bytes (HDF5's user
/// block, which HDF5 itself ignores). A damaged HDF5 file can make the library loop for ever, so a
/// sealed file is checked byte by byte before HDF5 sees it: one sequential read, bounded time.
///
/// Layout, little endian: 8 bytes "JFSEAL1\n"; u64 file size in bytes; u64 XXH3-64 of everything
/// behind the block; u64 XXH3-64 of the first 24 bytes; zeros up to byte 512.

#include <cstdint>
#include <filesystem>

namespace jforge {

/// Bytes that the seal takes at the start of a file.
inline constexpr std::uint64_t kSealBytes = 512;

/// How much of a seal is checked.
enum class SealCheck : std::uint8_t {
  none,     ///< Nothing: for files that another record vouches for (a manifest).
  size,     ///< The seal itself and the file's size: finds truncation, reads 512 bytes.
  content,  ///< Every byte.
};

/// Writes the seal into the first 512 bytes of a finished, closed file. EnvironmentError naming the
/// file when it cannot be read or written.
void seal_file(const std::filesystem::path& path);

/// Whether the file's first bytes are a seal's; false for one that cannot be read.
[[nodiscard]] bool begins_with_seal(const std::filesystem::path& path);

/// DataError naming the file when it is missing, shorter than a seal, unsealed, of another size
/// than sealed, or (SealCheck::content) of other content. EnvironmentError when the system refuses
/// to open or read it: such a file may be whole.
void check_seal(const std::filesystem::path& path, SealCheck check);

}  // namespace jforge
