#include "runtime/contained_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

const char* kind_name(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory:
      return "a directory";
    case fs::file_type::fifo:
      return "a FIFO";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::character:
    case fs::file_type::block:
      return "a device";
    default:
      return "something else";
  }
}

/// Returns the directory that links of `directory` (canonical) must not leave.
fs::path home_of(const fs::path& directory) {
  const fs::path snapshots = directory.parent_path();
  const fs::path repository = snapshots.parent_path();
  const bool cached =
      snapshots.filename() == "snapshots" && repository.filename().string().starts_with("models--");
  return cached ? repository : directory;
}

bool is_within(const fs::path& path, const fs::path& directory) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first ==
         directory.end();
}

}  // namespace

void refuse_special_file(const fs::path& path) {
  std::error_code ignored;
  const fs::file_type type = fs::status(path, ignored).type();
  if (type != fs::file_type::regular && type != fs::file_type::not_found &&
      type != fs::file_type::none && type != fs::file_type::unknown) {
    throw DataError(fmt::format("{}: is {}, not a regular file", path.string(), kind_name(type)));
  }
}

fs::path contained_file(const fs::path& directory, std::string_view name) {
  fs::path path = directory / name;
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    const fs::path target = fs::canonical(path, error);
    const fs::path home = error ? fs::path() : fs::canonical(directory, error);
    if (error && is_systems_fault(error.value())) {
      throw EnvironmentError(
          fmt::format("cannot follow the link {}: {}", path.string(), error.message()));
    }
    if (error) {
      throw DataError(
          fmt::format("{}: is a link that leads nowhere ({}); put the file itself there",
                      path.string(), error.message()));
    }
    if (!is_within(target, home_of(home))) {
      throw DataError(
          fmt::format("{}: is a link out of its directory, to {}; put the file itself "
                      "(or a hard link) there",
                      path.string(), target.string()));
    }
  }
  refuse_special_file(path);
  return path;
}

bool holds_contained_file(const fs::path& directory, std::string_view name) {
  std::error_code ignored;
  return fs::exists(contained_file(directory, name), ignored);
}

}  // namespace jforge
