#include "data/prompts/file_patterns.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/error.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> glob_names(const std::string& pattern) {
  glob_t matches{};
  std::vector<std::string> names;
  if (glob(pattern.c_str(), GLOB_BRACE, nullptr, &matches) == 0) {
    names.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  }
  globfree(&matches);
  return names;
}

std::string escaped(std::string_view name) {
  std::string pattern;
  for (const char c : name) {
    if (std::string_view("*?[]{}\\~").find(c) != std::string_view::npos) {
      pattern += '\\';
    }
    pattern += c;
  }
  return pattern;
}

/// Splits a pattern at its first component "**".
std::optional<std::pair<std::string, std::string>> split_at_stars(const std::string& pattern) {
  for (std::size_t begin = 0; begin < pattern.size();) {
    const std::size_t end = std::min(pattern.find('/', begin), pattern.size());
    if (std::string_view(pattern).substr(begin, end - begin) == "**") {
      const std::size_t behind = std::min(pattern.find_first_not_of('/', end), pattern.size());
      return std::pair(pattern.substr(0, begin), pattern.substr(behind));
    }
    begin = end + 1;
  }
  return std::nullopt;
}

/// Collects matching files, not directories.
class Walk {
 public:
  void match(const std::string& pattern) {
    const auto split = split_at_stars(pattern);
    if (!split) {
      for (std::string& name : glob_names(pattern)) {
        if (!fs::is_directory(name)) {
          found_.insert(std::move(name));
        }
      }
      return;
    }
    const auto& [before, behind] = *split;
    for (const std::string& directory :
         before.empty() ? std::vector<std::string>{""} : glob_names(before)) {
      descend(directory, behind.empty() ? "*" : behind, {});
    }
  }

  [[nodiscard]] const std::set<std::string>& found() const { return found_; }

 private:
  /// Matches in all directories below. `directory` is empty (the working directory) or ends in "/";
  /// `above` holds its parents.
  void descend(const std::string& directory, const std::string& behind,
               std::vector<fs::path> above) {
    std::error_code error;
    const fs::path place = directory.empty() ? "." : directory;
    above.push_back(fs::canonical(place, error));
    if (!error && std::ranges::count(above, above.back()) > 1) {
      return;
    }
    match(escaped(directory) + behind);
    for (fs::directory_iterator entry(place, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      std::error_code gone;
      if (!name.starts_with('.') && fs::is_directory(entry->path(), gone)) {
        descend(directory + name + "/", behind, above);
      }
    }
    if (error) {
      throw DataError(fmt::format("prompts.files: the directory '{}' cannot be listed: {}",
                                  place.string(), error.message()));
    }
  }

  std::set<std::string> found_;
};

std::vector<std::string> names_of(const std::string& pattern) {
  std::error_code ignored;
  // A name may contain pattern characters.
  if (fs::exists(pattern, ignored)) {
    return {pattern};
  }
  if (!split_at_stars(pattern)) {
    return glob_names(pattern);
  }
  Walk walk;
  walk.match(pattern);
  return {walk.found().begin(), walk.found().end()};
}

}  // namespace

std::vector<fs::path> match_files(const std::vector<std::string>& patterns) {
  std::vector<fs::path> files;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    std::vector<std::string> found = names_of(pattern);
    if (found.empty()) {
      throw DataError(fmt::format("prompts.files: '{}' matches no file", pattern));
    }
    for (std::string& path : found) {
      if (fs::is_directory(path)) {
        throw DataError(fmt::format("prompts.files: {0} is a directory; use \"{1}/*.jsonl\"", path,
                                    path.substr(0, path.find_last_not_of('/') + 1)));
      }
      if (seen.insert(path).second) {
        files.emplace_back(std::move(path));
      }
    }
  }
  return files;
}

}  // namespace jforge
