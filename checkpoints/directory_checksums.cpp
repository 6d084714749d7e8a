#include "checkpoints/directory_checksums.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "checkpoints/jacobi_decoding.h"
#include "runtime/bounded_json.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kChecksumFormat = "jforge-checksums";
constexpr int kChecksumVersion = 2;  // Written; version 1 is read too.

struct FileChecksum {
  std::string file;
  std::uint64_t bytes = 0;
  std::string hash;
};

/// Accepts NAME and FOLDER/NAME inside the directory.
bool names_a_file_within(const std::string& name) {
  const auto plain = [](const fs::path& part) {
    return !part.empty() && part != "." && part != ".." && part.filename() == part;
  };
  const fs::path path(name);
  const fs::path folder = path.parent_path();
  return plain(path.filename()) && (folder.empty() || plain(folder)) &&
         name == (folder / path.filename()).string();
}

std::vector<FileChecksum> parse_checksums(const fs::path& path) {
  try {
    const OrderedJson document =
        parse_bounded_json<OrderedJson>(verify_sealed(path), path.string());
    const OrderedJson& version = document.at("version");
    if (document.at("format") != kChecksumFormat || (version != 1 && version != kChecksumVersion)) {
      throw DataError(fmt::format("{}: it is not a {} document of version 1 or {}", path.string(),
                                  kChecksumFormat, kChecksumVersion));
    }
    std::vector<FileChecksum> files;
    for (const OrderedJson& entry : document.at("files")) {
      files.push_back({entry.at("file").get<std::string>(),
                       json_integer<std::uint64_t>(entry.at("bytes")),
                       entry.at("xxh3").get<std::string>()});
      const std::string& name = files.back().file;
      if (!names_a_file_within(name)) {
        throw DataError(
            fmt::format("{}: \"{}\" is not the name of a file beside it or one folder below",
                        path.string(), name));
      }
    }
    return files;
  } catch (const OrderedJson::exception& error) {
    throw DataError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

/// Empty if the file matches.
std::string difference(const fs::path& directory, const FileChecksum& expected) {
  std::error_code reason;
  const std::uint64_t bytes = fs::file_size(directory / expected.file, reason);
  if (reason) {
    return fmt::format("{}: {}", expected.file, reason.message());
  }
  if (bytes != expected.bytes) {
    return fmt::format("{} has {} bytes instead of {}", expected.file, bytes, expected.bytes);
  }
  return hash_hex(hash_file(directory / expected.file)) == expected.hash
             ? std::string()
             : expected.file + " does not match its checksum";
}

bool decoding_is_sealed(const fs::path& directory) {
  const fs::path file = directory / kJacobiDecodingFile;
  return fs::is_regular_file(file) && examine_seal(read_file(file)) == TextSeal::holds;
}

/// Returns the files of `directory` and of its folders, sorted.
std::vector<std::string> listing_of(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const fs::path name = entry.path().filename();
    if (!entry.is_directory()) {
      names.push_back(name.string());
      continue;
    }
    for (const auto& inner : fs::directory_iterator(entry.path())) {
      names.push_back((name / inner.path().filename()).string());
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

void write_checksums(const fs::path& directory) {
  OrderedJson list = OrderedJson::array();
  const bool sealed = decoding_is_sealed(directory);
  for (const std::string& name : listing_of(directory)) {
    const fs::path file = directory / name;
    if (fs::is_regular_file(file) && name != kChecksumsName &&
        !(sealed && name == kJacobiDecodingFile)) {
      list.push_back(
          {{"file", name}, {"bytes", fs::file_size(file)}, {"xxh3", hash_hex(hash_file(file))}});
    }
  }
  const OrderedJson document{
      {"format", kChecksumFormat}, {"version", kChecksumVersion}, {"files", std::move(list)}};
  publish_file(directory / kChecksumsName, seal_json(document.dump(1) + "\n"));
}

std::vector<std::string> unlisted_files(const fs::path& directory) {
  std::vector<std::string> names = listing_of(directory);
  const fs::path path = directory / kChecksumsName;
  if (!fs::exists(path)) {
    return names;
  }
  try {
    const std::vector<FileChecksum> files = parse_checksums(path);
    std::erase_if(names, [&](const std::string& name) {
      return name == kChecksumsName || name == kJacobiDecodingFile ||
             std::ranges::find(files, name, &FileChecksum::file) != files.end();
    });
  } catch (const DataError&) {
    // All files are unlisted.
  }
  return names;
}

FileShare share_of(const Communicator& comm) {
  return {static_cast<std::size_t>(comm.rank()), static_cast<std::size_t>(comm.size())};
}

bool check_checksums(const fs::path& directory, FileShare share) {
  const fs::path path = directory / kChecksumsName;
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) {
    return false;
  }
  std::vector<std::string> wrong;
  const std::vector<FileChecksum> files = parse_checksums(path);
  const bool sealed = decoding_is_sealed(directory);
  if (!sealed && fs::exists(directory / kJacobiDecodingFile) &&
      std::ranges::find(files, kJacobiDecodingFile, &FileChecksum::file) == files.end()) {
    wrong.push_back(fmt::format("{} does not match its checksum", kJacobiDecodingFile));
  }
  for (std::size_t i = share.first; i < files.size(); i += share.of) {
    const FileChecksum& file = files[i];
    if (sealed && file.file == kJacobiDecodingFile) {
      continue;
    }
    if (std::string what = difference(directory, file); !what.empty()) {
      wrong.push_back(std::move(what));
    }
  }
  if (!wrong.empty()) {
    throw DataError(fmt::format(
        "{} is damaged: {}; make it again (a run's own model: run again), or delete its {} if "
        "the files were changed on purpose",
        directory.string(), fmt::join(wrong, ", "), kChecksumsName));
  }
  return true;
}

}  // namespace jforge
