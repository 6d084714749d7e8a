#pragma once

/// checksums.json of an exported model: size and XXH3-64 of every file in it and one folder below.
///
///   {"format": "jforge-checksums", "version": 2,
///    "files": [{"file": NAME, "bytes": N, "xxh3": 16 hex digits}, …], "checksum": …}
///
/// NAME may be FOLDER/NAME since version 2. Sorted by name; "checksum" is the record's own seal
/// (runtime/text_seal.h). jacobi_decoding.json, which changes later, has a seal of its own instead.

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/comm/mpi_session.h"

namespace jforge {

inline constexpr const char* kChecksumsName = "checksums.json";

/// Publishes checksums of the present files. Throws EnvironmentError, or
/// std::filesystem::filesystem_error if the directory cannot be listed.
void write_checksums(const std::filesystem::path& directory);

/// Returns the files that checksums.json does not list, sorted, as NAME or FOLDER/NAME; all files
/// if it is missing or invalid. Throws std::filesystem::filesystem_error if the directory cannot be
/// listed.
[[nodiscard]] std::vector<std::string> unlisted_files(const std::filesystem::path& directory);

/// A process's part of some files: every `of`-th from `first` on.
struct FileShare {
  std::size_t first = 0;
  std::size_t of = 1;
};
[[nodiscard]] FileShare share_of(const Communicator& comm);
/// Returns false without checksums.json (a foreign model). Throws DataError naming files of `share`
/// that are damaged or missing. Ignores unlisted files.
[[nodiscard]] bool check_checksums(const std::filesystem::path& directory, FileShare share = {});

}  // namespace jforge
