#pragma once

/// Confidence intervals.

#include <cstdint>

namespace jforge {

/// Bounds in [0, 1] for a share, in [−1, 1] for a difference.
struct ScoreInterval {
  double low = 0;
  double high = 0;
};

/// Returns Wilson's 95 % score interval of a share of `n` independent problems (Wilson, "Probable
/// inference, the law of succession, and statistical inference", 1927): all p with |share − p| ≤ z
/// √(p (1 − p) / n). With several samples per problem use their mean share and the number of
/// problems; the interval is then conservative. Throws InternalError if n < 1 or the share is
/// outside [0, 1].
[[nodiscard]] ScoreInterval wilson_interval(double share, std::int64_t n);

struct PairedCounts {
  std::int64_t both = 0;
  std::int64_t only_first = 0;
  std::int64_t only_second = 0;
  std::int64_t neither = 0;
};

/// Returns the 95 % interval of the second's share minus the first's, from both Wilson intervals
/// and their correlation (Newcombe, "Improved confidence intervals for the difference between
/// binomial proportions based on paired data", 1998, method 10). Throws InternalError if all counts
/// are 0.
[[nodiscard]] ScoreInterval paired_difference_interval(const PairedCounts& counts);

/// Returns the 97.5 % quantile of Student's t for `freedom` ≥ 1, to 1e-3: from a table, then by
/// Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5).
[[nodiscard]] double student_quantile(std::int64_t freedom);

}  // namespace jforge
