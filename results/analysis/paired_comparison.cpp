#include "results/analysis/paired_comparison.h"

#include <algorithm>
#include <cmath>

#include "data/tasks/score_interval.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// Twice the binomial tail P(X ≤ min(a, b)) for X ~ B(a + b, ½), at most 1.
double mcnemar(std::int64_t a, std::int64_t b) {
  const double n = static_cast<double>(a + b);
  double tail = 0;
  for (std::int64_t k = 0; k <= std::min(a, b); ++k) {
    const double x = static_cast<double>(k);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1) -
                     n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

}  // namespace

PairedComparison compare_paired(std::span<const std::uint8_t> first,
                                std::span<const std::uint8_t> second) {
  expect(!first.empty() && first.size() == second.size(),
         "a paired comparison needs the same problems on both sides");
  PairedComparison result;
  result.n = static_cast<std::int64_t>(first.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    result.only_first += first[i] > second[i] ? 1 : 0;
    result.only_second += first[i] < second[i] ? 1 : 0;
  }
  const auto n = static_cast<double>(result.n);
  result.difference = static_cast<double>(result.only_second - result.only_first) / n;
  const std::int64_t both = std::ranges::count(first, 1) - result.only_first;
  const ScoreInterval interval = paired_difference_interval(
      {.both = both,
       .only_first = result.only_first,
       .only_second = result.only_second,
       .neither = result.n - both - result.only_first - result.only_second});
  result.low = interval.low;
  result.high = interval.high;
  result.p_value = mcnemar(result.only_first, result.only_second);
  return result;
}

}  // namespace jforge
