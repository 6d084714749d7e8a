#pragma once

/// Whether two evaluations of the same problems differ by more than chance.

#include <cstdint>
#include <span>

namespace jforge {

/// Verdicts of two evaluations, problem by problem.
struct PairedComparison {
  std::int64_t n = 0;
  std::int64_t only_first = 0;   ///< Solved by the first alone.
  std::int64_t only_second = 0;  ///< Solved by the second alone.
  double difference = 0;         ///< Accuracy of the second minus that of the first.
  double low = 0;                ///< Its 95 % score interval (paired_difference_interval).
  double high = 0;
  double p_value = 1;  ///< Exact two-sided McNemar test that neither is better.

  /// Whether the interval leaves out 0.
  [[nodiscard]] bool beyond_chance() const noexcept { return low > 0 || high < 0; }
};

/// `first` and `second`: [problems], 1 where solved, else 0. Throws InternalError for no problem or
/// different numbers.
[[nodiscard]] PairedComparison compare_paired(std::span<const std::uint8_t> first,
                                              std::span<const std::uint8_t> second);

}  // namespace jforge
