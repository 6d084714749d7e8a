#include "workers/train/collapse.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "runtime/error.h"

namespace jforge {

void CollapseConfig::validate() const {
  if (check_every < 0) {
    throw ConfigError(fmt::format(
        "train.collapse_check_every = {} must not be negative (0 = never)", check_every));
  }
  if (!(threshold > 0 && threshold <= 1)) {
    throw ConfigError(fmt::format("train.collapse_threshold = {} must lie in (0, 1]", threshold));
  }
}

double sequence_repetition(std::span<const TokenId> tokens, std::size_t n) {
  expect(n >= 1, "n-grams have at least one token");
  if (tokens.size() <= n) {
    return 0;
  }
  const std::size_t count = tokens.size() - n + 1;
  std::set<std::vector<TokenId>> distinct;
  for (std::size_t begin = 0; begin < count; ++begin) {
    const auto gram = tokens.subspan(begin, n);
    distinct.emplace(gram.begin(), gram.end());
  }
  return 1 - static_cast<double>(distinct.size()) / static_cast<double>(count);
}

double distinct_share(std::span<const TokenId> tokens) {
  if (tokens.empty()) {
    return 1;
  }
  const std::set<TokenId> distinct(tokens.begin(), tokens.end());
  return static_cast<double>(distinct.size()) / static_cast<double>(tokens.size());
}

}  // namespace jforge
