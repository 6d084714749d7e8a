#include "workers/evaluate/part_files.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

constexpr std::string_view kPartSuffix = ".part";

/// Returns 0 if `name` is not a part of `stem`.
std::int64_t attempt_of(const std::string& name, const std::string& stem) {
  const std::string prefix = stem + ".attempt-";
  if (!name.starts_with(prefix) || !name.ends_with(kPartSuffix)) {
    return 0;
  }
  std::int64_t attempt = 0;
  const char* begin = name.data() + prefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), attempt);
  return error == std::errc() && *end == '.' && attempt > 0 ? attempt : 0;
}

}  // namespace

bool for_each_line_of(std::string_view text, std::string_view name, const TakeLine& take) {
  std::size_t begin = 0;
  for (std::size_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      break;
    }
    take(text.substr(begin, end - begin), fmt::format("{}:{}", name, number));
    begin = end + 1;
  }
  return begin < text.size();
}

bool for_each_line(const std::filesystem::path& path, const TakeLine& take) {
  return for_each_line_of(read_file(path), path.string(), take);
}

std::filesystem::path PartFiles::part(std::int64_t attempt, Rank rank, int ranks) const {
  return directory_ /
         fmt::format("{}.attempt-{}.rank-{}-of-{}{}", stem_, attempt, rank, ranks, kPartSuffix);
}

std::vector<std::filesystem::path> PartFiles::all() const {
  std::vector<std::pair<std::int64_t, std::filesystem::path>> found;
  if (!std::filesystem::exists(directory_)) {
    return {};
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (const std::int64_t attempt = attempt_of(entry.path().filename().string(), stem_);
        attempt > 0) {
      found.emplace_back(attempt, entry.path());
    }
  }
  std::ranges::sort(found);
  std::vector<std::filesystem::path> paths;
  paths.reserve(found.size());
  for (auto& [attempt, path] : found) {
    paths.push_back(std::move(path));
  }
  return paths;
}

std::int64_t PartFiles::next_attempt() const {
  const auto existing = all();
  return existing.empty() ? 1 : attempt_of(existing.back().filename().string(), stem_) + 1;
}

void PartFiles::read(const TakeLine& take, std::string_view lost) const {
  for (const auto& path : all()) {
    std::size_t damaged = 0;
    // Ignores a torn last line.
    (void)for_each_line(path, [&](std::string_view line, const std::string& origin) {
      try {
        take(line, origin);
      } catch (const DataError& error) {
        if (damaged++ == 0) {
          log_warn("a line is damaged and does not count: {}", error.what());
        }
      }
    });
    if (damaged > 0) {
      log_warn("{}: {} {}", path.string(), damaged, lost);
    }
  }
}

void PartFiles::remove() const {
  for (const auto& path : all()) {
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) {
      throw EnvironmentError(fmt::format("cannot remove {}: {}", path.string(), error.message()));
    }
  }
}

}  // namespace jforge
