#pragma once

/// Whether two evaluations of the same problems differ by more than chance.

#include <cstdint>
#include <span>

namespace jforge {

/// Verdicts of two evaluations, problem by problem.
struct PairedComparison {
  std::int64_t n = 0;
  std::int64_t only_first = 0;   ///< Solved by the first alone, or more often.
  std::int64_t only_second = 0;  ///< Solved by the second alone, or more often.
  double difference = 0;         ///< Accuracy of the second minus that of the first.
  double low = 0;                ///< Its 95 % interval.
  double high = 0;
  double p_value = 1;  ///< Exact two-sided test that neither is better: McNemar's, or signs'.

  /// Whether both say so: the interval leaves out 0, and p is below 5 %.
  [[nodiscard]] bool beyond_chance() const noexcept {
    return (low > 0 || high < 0) && p_value < 0.05;
  }
};

/// `first` and `second`: [problems] the share of its completions that solved it. Where each has one
/// completion the interval is a score interval (paired_difference_interval), else Student's of the
/// mean of the problems' differences, since completions of one problem are not independent; of one
/// problem it is −1 to 1 then. Throws InternalError for no problem or different numbers.
[[nodiscard]] PairedComparison compare_paired(std::span<const double> first,
                                              std::span<const double> second);

}  // namespace jforge
