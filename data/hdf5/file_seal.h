#pragma once

/// Seals a file with size and checksum in its first 512 bytes (HDF5's user block). Damaged files
/// can make HDF5 loop for ever, so sealed files are checked before HDF5 opens them.
///
/// Layout, little endian: 8 bytes "JFSEAL1\n"; u64 file size in bytes; u64 XXH3-64 of all bytes
/// after the seal; u64 XXH3-64 of the first 24 bytes; zeros up to byte 512.

#include <cstdint>
#include <filesystem>

namespace jforge {

inline constexpr std::uint64_t kSealBytes = 512;

enum class SealCheck : std::uint8_t {
  none,     ///< Nothing, because a manifest holds the checksum.
  size,     ///< Seal and file size: finds truncation, reads 512 bytes.
  content,  ///< Every byte.
};

/// Seals a finished, closed file. Throws EnvironmentError on I/O failure.
void seal_file(const std::filesystem::path& path);

/// Returns false also if the file cannot be read.
[[nodiscard]] bool begins_with_seal(const std::filesystem::path& path);

/// Throws DataError if the file is missing, unsealed or damaged, EnvironmentError if the system
/// cannot open or read it, because it may be intact.
void check_seal(const std::filesystem::path& path, SealCheck check);

}  // namespace jforge
