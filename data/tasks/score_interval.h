#pragma once

/// Confidence intervals: for shares of solved problems, that do not collapse where all or none are
/// solved, and Student's of a mean.

#include <cstdint>

namespace jforge {

/// Both ends in [0, 1] for a share, in [-1, 1] for a difference of shares.
struct ScoreInterval {
  double low = 0;
  double high = 0;
};

/// Wilson's score interval at 95 % of a share of `n` ≥ 1 independent problems (Wilson, "Probable
/// inference, the law of succession, and statistical inference", 1927): the p for which |share − p|
/// ≤ z √(p (1 − p) / n). Where problems have several samples `share` is the mean of theirs and `n`
/// still the number of problems; the interval is then wider than need be. Throws InternalError for
/// n < 1 or a share outside [0, 1].
[[nodiscard]] ScoreInterval wilson_interval(double share, std::int64_t n);

/// Counts of problems that were put to two sides.
struct PairedCounts {
  std::int64_t both = 0;
  std::int64_t only_first = 0;
  std::int64_t only_second = 0;
  std::int64_t neither = 0;
};

/// Interval at 95 % of the second's share minus the first's, from both sides' Wilson intervals and
/// their correlation (Newcombe, "Improved confidence intervals for the difference between binomial
/// proportions based on paired data", 1998, method 10). Throws InternalError when nothing was
/// counted.
[[nodiscard]] ScoreInterval paired_difference_interval(const PairedCounts& counts);

/// The 97.5 % quantile of Student's t at `freedom` ≥ 1 degrees of freedom: half of a 95 % interval,
/// in standard errors. To 1e-3: from a table, beyond it by Cornish and Fisher's expansion
/// (Abramowitz and Stegun 26.7.5).
[[nodiscard]] double student_quantile(std::int64_t freedom);

}  // namespace jforge
