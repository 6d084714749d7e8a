#include "runtime/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace jforge {

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> known) {
  std::optional<std::string> nearest;
  std::size_t least = (name.size() + 2) / 3 + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> known) {
  const std::optional<std::string> nearest = nearest_name(name, known);
  return nearest ? "; did you mean " + *nearest + "?" : "";
}

}  // namespace jforge
