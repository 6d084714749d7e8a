#include "launch/commands/available_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace jforge {

namespace {

using Bytes = std::optional<std::uint64_t>;

/// Reads the number after `key` in a file of "KEY NUMBER …" lines.
Bytes number_of(const std::filesystem::path& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ' ')) {
      try {
        return std::stoull(line.substr(key.size()));
      } catch (const std::exception&) {
        return std::nullopt;
      }
    }
  }
  return std::nullopt;
}

/// Returns nothing for "max", which means no limit.
Bytes number_in(const std::filesystem::path& file) {
  std::uint64_t value = 0;
  return std::ifstream(file) >> value ? Bytes(value) : std::nullopt;
}

/// File names of a version of cgroups.
struct GroupFiles {
  const char* folder;  ///< Below sys/fs/cgroup.
  const char* limit;   ///< Without a limit: "max", or more than any machine's memory.
  const char* used;
  const char* reclaimed;  ///< Key in memory.stat: cache that is freed first.
};
constexpr GroupFiles kVersion2{"", "memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1{"memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};

Bytes left_in_group(const std::filesystem::path& group, const GroupFiles& files) {
  const Bytes limit = number_in(group / files.limit);
  const Bytes used = number_in(group / files.used);
  if (!limit || !used || *limit > std::uint64_t{1} << 60) {
    return std::nullopt;
  }
  const std::uint64_t cache = number_of(group / "memory.stat", files.reclaimed).value_or(0);
  const std::uint64_t held = *used - std::min(*used, cache);
  return *limit - std::min(*limit, held);
}

/// Returns PATH of "0::/PATH" (version 2) or "N:…,memory,…:/PATH" (version 1).
std::filesystem::path own_group(const std::filesystem::path& root, const GroupFiles& files) {
  const std::string wanted = fmt::format(",{},", files.folder);
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (files.folder[0] == '\0' ? controllers == wanted
                                : controllers.find(wanted) != std::string::npos) {
      return line.substr(second + 2);
    }
  }
  return {};
}

}  // namespace

std::optional<std::uint64_t> available_memory(const std::filesystem::path& root) {
  Bytes least = number_of(root / "proc/meminfo", "MemAvailable:");
  if (least) {
    *least *= 1024;
  }
  for (const GroupFiles& files : {kVersion2, kVersion1}) {
    const std::filesystem::path groups = root / "sys/fs/cgroup" / files.folder;
    // Every parent group may limit; a container sees its own group as the root.
    std::filesystem::path group = own_group(root, files);
    for (bool more = true; more; group = group.parent_path()) {
      if (const Bytes left = left_in_group(groups / group, files)) {
        least = std::min(least.value_or(*left), *left);
      }
      more = !group.empty();
    }
  }
  return least;
}

}  // namespace jforge
