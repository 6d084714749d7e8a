#pragma once

/// checksums.json of a published directory (an exported model): size and XXH3-64 of every file in
/// it and one folder below.
///
///   {"format": "jforge-checksums", "version": 2,
///    "files": [{"file": NAME, "bytes": N, "xxh3": 16 hex digits}, …], "checksum": …}
///
/// NAME is a file name or FOLDER/NAME (version 1: no folders). The list is sorted by name;
/// "checksum" is the record's own seal (runtime/text_seal.h).

#include <filesystem>
#include <string>
#include <vector>

namespace jforge {

inline constexpr const char* kChecksumsName = "checksums.json";

/// Publishes checksums of the files now in `directory`. Throws EnvironmentError, and
/// std::filesystem::filesystem_error if the directory cannot be listed.
void write_checksums(const std::filesystem::path& directory);

/// Returns the files of `directory` that its checksums.json does not list, sorted, as NAME or
/// FOLDER/NAME; all files if checksums.json is missing or invalid. Throws
/// std::filesystem::filesystem_error if the directory cannot be listed.
[[nodiscard]] std::vector<std::string> unlisted_files(const std::filesystem::path& directory);

/// Compares every listed file with checksums.json, byte by byte; ignores unlisted files. Returns
/// false if there is no checksums.json (a foreign model). Throws DataError naming the damaged or
/// missing files, or an invalid checksums.json.
[[nodiscard]] bool check_checksums(const std::filesystem::path& directory);

}  // namespace jforge
