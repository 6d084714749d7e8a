#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "model/kernels/token_sampler.h"

namespace jforge::test {

inline std::vector<double> sampling_law(const SamplingOptions& options,
                                        std::span<const float> logits,
                                        std::span<const TokenId> before) {
  std::vector<double> scores(logits.begin(), logits.end());
  for (const TokenId token : std::set<TokenId>(before.begin(), before.end())) {
    double& score = scores[static_cast<std::size_t>(token)];
    score = score > 0 ? score / options.repetition_penalty : score * options.repetition_penalty;
  }
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) { return scores[a] > scores[b]; });
  std::vector<double> weights(scores.size());
  const auto k = static_cast<std::size_t>(options.top_k);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool kept = k == 0 || i < k || scores[order[i]] == scores[order[k - 1]];
    const double below = (scores[order[i]] - scores[order[0]]) / options.temperature;
    weights[order[i]] = kept ? std::exp(below) : 0;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before_it = 0;
  double nucleus = 0;
  for (const std::size_t token : order) {
    const double p = weights[token] / sum;
    // The token that crosses top_p is kept.
    weights[token] = options.top_p == 1 || before_it < options.top_p ? p : 0;
    before_it += p;
    nucleus += weights[token];
  }
  for (double& weight : weights) {
    weight /= nucleus;
  }
  return weights;
}

/// Chi-square test of draws from `law` at a level of 1 in 10,000; impossible tokens must not occur.
/// Merges cells of fewer than five expected draws.
inline bool follows(std::span<const std::int64_t> counts, std::span<const double> law) {
  const auto total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  double statistic = 0;
  double rare_expected = 0;
  double rare_count = 0;
  int cells = 0;
  const auto add = [&](double expected, double count) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = law[i] * total;
    if (law[i] == 0 && counts[i] > 0) {
      return false;
    }
    if (expected >= 5) {
      add(expected, static_cast<double>(counts[i]));
    } else {
      rare_expected += expected;
      rare_count += static_cast<double>(counts[i]);
    }
  }
  if (rare_expected >= 1) {
    add(rare_expected, rare_count);
  }
  if (cells < 2) {
    return true;
  }
  // Wilson and Hilferty's approximation of the quantile.
  const double freedom = cells - 1;
  const double part = 2 / (9 * freedom);
  const double limit = freedom * std::pow(1 - part + 3.719 * std::sqrt(part), 3);
  return statistic < limit;
}

}  // namespace jforge::test
