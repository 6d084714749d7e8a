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

/// Of version 2: the one line "0::/PATH".
std::filesystem::path own_group(const std::filesystem::path& root) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::/")) {
      return line.substr(4);
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
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  // Every group above has its say; in a container its own stands at the root.
  std::filesystem::path group = own_group(root);
  for (;;) {
    if (const Bytes left = left_in_group(group.empty() ? groups : groups / group)) {
      least = std::min(least.value_or(*left), *left);
    }
    if (group.empty()) {
      return least;
    }
    group = group.parent_path();
  }
}

}  // namespace jforge
