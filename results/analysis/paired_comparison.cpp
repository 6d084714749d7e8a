#include "results/analysis/paired_comparison.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/tasks/score_interval.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// Returns twice the binomial tail P(X ≤ min(a, b)) for X ~ B(a + b, ½), at most 1.
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

void set_score_interval(PairedComparison& result, std::span<const double> first) {
  const std::int64_t both = std::ranges::count(first, 1.0) - result.only_first;
  const ScoreInterval interval = paired_difference_interval(
      {.both = both,
       .only_first = result.only_first,
       .only_second = result.only_second,
       .neither = result.n - both - result.only_first - result.only_second});
  result.low = interval.low;
  result.high = interval.high;
}

void set_student_interval(PairedComparison& result, std::span<const double> first,
                          std::span<const double> second) {
  double half = 2;
  if (result.n > 1) {
    double squares = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const double deviation = second[i] - first[i] - result.difference;
      squares += deviation * deviation;
    }
    const auto n = static_cast<double>(result.n);
    half = student_quantile(result.n - 1) * std::sqrt(squares / (n - 1) / n);
  }
  result.low = std::max(-1.0, result.difference - half);
  result.high = std::min(1.0, result.difference + half);
}

}  // namespace

PairedComparison compare_paired(std::span<const double> first, std::span<const double> second) {
  expect(!first.empty() && first.size() == second.size(),
         "a paired comparison needs the same problems on both sides");
  PairedComparison result;
  result.n = static_cast<std::int64_t>(first.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    result.only_first += first[i] > second[i] ? 1 : 0;
    result.only_second += first[i] < second[i] ? 1 : 0;
  }
  const auto n = static_cast<double>(result.n);
  result.difference =
      (std::reduce(second.begin(), second.end()) - std::reduce(first.begin(), first.end())) / n;
  const auto whole = [](double share) { return share == 0 || share == 1; };
  if (std::ranges::all_of(first, whole) && std::ranges::all_of(second, whole)) {
    set_score_interval(result, first);
  } else {
    set_student_interval(result, first, second);
  }
  result.p_value = mcnemar(result.only_first, result.only_second);
  return result;
}

}  // namespace jforge
