#pragma once

/// Seals a file with its size and checksum, kept in the first 512 bytes (HDF5's user block). A
/// damaged file can make HDF5 loop for ever, so a sealed file is checked byte by byte before HDF5
/// opens it.
///
/// Layout, little endian: 8 bytes "JFSEAL1\n"; u64 file size in bytes; u64 XXH3-64 of all bytes
/// after the seal; u64 XXH3-64 of the first 24 bytes; zeros up to byte 512.

#include <cstdint>
#include <filesystem>

namespace jforge {

inline constexpr std::uint64_t kSealBytes = 512;

/// How much of a seal is checked.
enum class SealCheck : std::uint8_t {
  none,     ///< Nothing, because a manifest holds the checksum.
  size,     ///< The seal and the file's size: finds truncation, reads 512 bytes.
  content,  ///< Every byte.
};

/// Writes the seal of a finished, closed file. Throws EnvironmentError naming the file if it cannot
/// be read or written.
void seal_file(const std::filesystem::path& path);

/// Returns true if the file begins with the seal's magic; false also if it cannot be read.
[[nodiscard]] bool begins_with_seal(const std::filesystem::path& path);

/// Throws DataError naming the file if it is missing, unsealed, damaged, or has another size or
/// (SealCheck::content) content than sealed. Throws EnvironmentError if the system cannot open or
/// read it, because the file may be intact.
void check_seal(const std::filesystem::path& path, SealCheck check);

}  // namespace jforge
