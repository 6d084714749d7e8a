#include "launch/commands/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace jforge {

namespace {

using Bytes = std::optional<std::uint64_t>;

/// The number behind the word `key` of a file of "KEY NUMBER …" lines.
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

/// A file of one number; "max", no limit, is none.
Bytes number_in(const std::filesystem::path& file) {
  std::uint64_t value = 0;
  return std::ifstream(file) >> value ? Bytes(value) : std::nullopt;
}

Bytes left_in_group(const std::filesystem::path& group) {
  const Bytes limit = number_in(group / "memory.max");
  const Bytes used = number_in(group / "memory.current");
  if (!limit || !used) {
    return std::nullopt;
  }
  const std::uint64_t cache = number_of(group / "memory.stat", "inactive_file").value_or(0);
  const std::uint64_t held = *used - std::min(*used, cache);
  return *limit - std::min(*limit, held);
}

/// Of version 1, where "no limit" is a number beyond every machine's memory.
Bytes left_in_old_group(const std::filesystem::path& group) {
  const Bytes limit = number_in(group / "memory.limit_in_bytes");
  const Bytes used = number_in(group / "memory.usage_in_bytes");
  if (!limit || !used || *limit > std::uint64_t{1} << 60) {
    return std::nullopt;
  }
  const std::uint64_t cache = number_of(group / "memory.stat", "total_inactive_file").value_or(0);
  const std::uint64_t held = *used - std::min(*used, cache);
  return *limit - std::min(*limit, held);
}

/// The line "0::/PATH" of version 2, "N:…,memory,…:/PATH" of version 1: PATH.
std::filesystem::path own_group(const std::filesystem::path& root, bool old) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (old ? controllers.find(",memory,") != std::string::npos : controllers == ",,") {
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
  // Every group above has its say; in a container its own stands at the root.
  const auto look = [&](const std::filesystem::path& groups, std::filesystem::path group,
                        Bytes (*left_in)(const std::filesystem::path&)) {
    for (;;) {
      if (const Bytes left = left_in(group.empty() ? groups : groups / group)) {
        least = std::min(least.value_or(*left), *left);
      }
      if (group.empty()) {
        return;
      }
      group = group.parent_path();
    }
  };
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  look(groups, own_group(root, false), left_in_group);
  look(groups / "memory", own_group(root, true), left_in_old_group);
  return least;
}

}  // namespace jforge
