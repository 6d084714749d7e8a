#include "runtime/cpu_placement.h"

#include <sched.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace jforge {

namespace {

std::optional<int> number(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  const bool whole = error == std::errc() && end == text.end();
  return whole && value >= 0 ? std::optional(value) : std::nullopt;
}

// Ignores processors beyond CPU_SETSIZE.
std::optional<cpu_set_t> read_processors(const std::filesystem::path& list) {
  std::ifstream file(list);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (std::string range; std::getline(file, range, ',');) {
    const std::string_view text =
        std::string_view(range).substr(0, range.find_last_not_of('\n') + 1);
    const std::size_t dash = text.find('-');
    const auto first = number(text.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
    if (!first || !last) {
      return std::nullopt;
    }
    for (int i = *first; i <= *last && i < CPU_SETSIZE; ++i) {
      CPU_SET(i, &set);
    }
  }
  return CPU_COUNT(&set) > 0 ? std::optional(set) : std::nullopt;
}

}  // namespace

bool stay_near(const std::filesystem::path& list) {
  const std::optional<cpu_set_t> near = read_processors(list);
  cpu_set_t now;
  if (!near || sched_getaffinity(0, sizeof now, &now) != 0) {
    return true;
  }
  cpu_set_t both;
  CPU_AND(&both, &now, &*near);
  if (CPU_COUNT(&both) == 0) {
    return false;
  }
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    if (const auto id = number(thread.path().filename().string())) {
      sched_setaffinity(*id, sizeof both, &both);  // Fails for a thread that has just ended.
    }
  }
  return true;
}

}  // namespace jforge
