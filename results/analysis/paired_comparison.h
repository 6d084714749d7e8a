#pragma once

/// Tests whether two evaluations of the same problems differ by more than chance.

#include <cstdint>
#include <span>

namespace jforge {

struct PairedComparison {
  std::int64_t n = 0;
  std::int64_t only_first = 0;   ///< Solved only, or more often, by the first.
  std::int64_t only_second = 0;  ///< Solved only, or more often, by the second.
  double difference = 0;         ///< Accuracy of the second minus that of the first.
  double low = 0;                ///< 95 % interval of `difference`.
  double high = 0;
  double p_value = 1;  ///< Exact two-sided McNemar's or sign test.

  /// Returns whether the interval excludes 0 and p is below 5 %.
  [[nodiscard]] bool beyond_chance() const noexcept {
    return (low > 0 || high < 0) && p_value < 0.05;
  }
};

/// `first` and `second`: [problems] share of completions that solved the problem. With one
/// completion each the interval is a score interval (paired_difference_interval), else Student's
/// over problems, since a problem's completions are not independent (−1 to 1 for one problem).
/// Throws InternalError without problems or for different numbers.
[[nodiscard]] PairedComparison compare_paired(std::span<const double> first,
                                              std::span<const double> second);

}  // namespace jforge
