#pragma once

/// Order of training samples: one seeded permutation of 0 … num_samples − 1 per epoch, chained into
/// an endless stream. Step s takes positions [s·batch, (s+1)·batch), independent of the world size.

#include <array>
#include <cstdint>
#include <vector>

namespace jforge {

struct SampleOrderOptions {
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  std::int64_t num_samples = 0;    ///< At least 1.
  std::int64_t batch_samples = 1;  ///< Global batch size, at least 1.

  /// Throws ConfigError.
  void validate() const;
};

/// Returns a Fisher–Yates permutation drawn from the stream (seed, sample_order, round, epoch).
[[nodiscard]] std::vector<std::int64_t> epoch_permutation(std::uint64_t seed, std::uint64_t round,
                                                          std::int64_t epoch,
                                                          std::int64_t num_samples);

/// Returns floor(num_samples · epochs / batch_samples). Throws ConfigError if it is 0.
[[nodiscard]] std::int64_t steps_for_epochs(const SampleOrderOptions& options, double epochs);

/// Walks the stream with two cached permutations (8 bytes a sample each). Not thread-safe.
class SampleOrder {
 public:
  explicit SampleOrder(const SampleOrderOptions& options);

  /// Returns the sample at position `index` ≥ 0 of the stream. Cheap within the two cached epochs.
  [[nodiscard]] std::int64_t at(std::int64_t index) const;

  [[nodiscard]] const SampleOrderOptions& options() const noexcept { return options_; }

 private:
  SampleOrderOptions options_;
  struct Epoch {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> permutation;
  };
  mutable std::array<Epoch, 2> cache_;  ///< Slot: epoch % 2.
};

/// Returns the distinct samples of the first `steps` steps in order of first use.
[[nodiscard]] std::vector<std::int64_t> consumed_samples(const SampleOrderOptions& options,
                                                         std::int64_t steps);

}  // namespace jforge
