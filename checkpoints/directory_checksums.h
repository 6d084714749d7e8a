#pragma once

/// checksums.json of a directory that was published whole (an exported model): size and XXH3-64 of
/// every file beside it and one folder below.
///
///   {"format": "jforge-checksums", "version": 2,
///    "files": [{"file": NAME, "bytes": N, "xxh3": 16 hex digits}, …], "checksum": …}
///
/// NAME is a file's, or FOLDER/NAME; version 1 had no folders. Sorted by name; "checksum" is the
/// record's own seal (runtime/text_seal.h). Programs that know nothing of it ignore the file.

#include <filesystem>
#include <string>
#include <vector>

namespace jforge {

inline constexpr const char* kChecksumsName = "checksums.json";

/// Publishes the checksums of the files that lie in `directory` now. Throws EnvironmentError,
/// and std::filesystem::filesystem_error where the directory cannot be listed.
void write_checksums(const std::filesystem::path& directory);

/// What lies in `directory` and is not listed in its checksums.json, sorted, as NAME or
/// FOLDER/NAME; everything where there is no such file or it does not hold. Throws
/// std::filesystem::filesystem_error where the directory cannot be listed.
[[nodiscard]] std::vector<std::string> unlisted_files(const std::filesystem::path& directory);

/// Compares every file with checksums.json, byte by byte. False when there is no such file (a model
/// that others have made): there is nothing to compare with. Throws DataError naming the files that
/// are damaged or missing, or checksums.json when itself does not hold. Files that it does not list
/// were added later and are none of its business.
[[nodiscard]] bool check_checksums(const std::filesystem::path& directory);

}  // namespace jforge
