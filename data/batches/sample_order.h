#pragma once

/// The order in which training consumes samples: one seeded permutation of 0 … num_samples − 1 per
/// epoch, chained into an endless stream. Step s takes positions [s·batch, (s+1)·batch). The order
/// does not depend on the world size, and a cursor is enough to resume.

#include <array>
#include <cstdint>
#include <vector>

namespace jforge {

struct SampleCursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  friend bool operator==(const SampleCursor&, const SampleCursor&) = default;
};

struct SampleOrderOptions {
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  std::int64_t num_samples = 0;    ///< At least 1.
  std::int64_t batch_samples = 1;  ///< Global batch size, at least 1.

  /// Throws ConfigError naming the field that is out of range.
  void validate() const;
};

/// Returns a uniform permutation of 0 … num_samples − 1 (Fisher–Yates, drawn from the random stream
/// (seed, sample_order, round, epoch)).
[[nodiscard]] std::vector<std::int64_t> epoch_permutation(std::uint64_t seed, std::uint64_t round,
                                                          std::int64_t epoch,
                                                          std::int64_t num_samples);

/// Returns floor(num_samples · epochs / batch_samples), the number of full batches. Throws
/// ConfigError if it is 0.
[[nodiscard]] std::int64_t steps_for_epochs(const SampleOrderOptions& options, double epochs);

/// Walks the stream. Caches two permutations (8 bytes a sample each). Not thread-safe.
class SampleOrder {
 public:
  /// Throws ConfigError if `options` are invalid.
  explicit SampleOrder(const SampleOrderOptions& options);

  /// Returns the sample ids of the next global batch and advances the cursor. A batch may span
  /// epochs.
  [[nodiscard]] std::vector<std::int64_t> next_batch();
  /// Returns the sample id at position `index` ≥ 0 of the stream. Recomputes a permutation only if
  /// its epoch is not among the cached two.
  [[nodiscard]] std::int64_t at(std::int64_t index) const;

  [[nodiscard]] const SampleOrderOptions& options() const noexcept { return options_; }
  [[nodiscard]] SampleCursor cursor() const { return cursor_; }
  /// Continues from `cursor`. Throws DataError if it lies outside of this order.
  void seek(SampleCursor cursor);

 private:
  SampleOrderOptions options_;
  SampleCursor cursor_;
  struct Epoch {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> permutation;
  };
  mutable std::array<Epoch, 2> cache_;  ///< Slot: epoch % 2.
};

/// Returns the distinct samples of the first `steps` steps in order of first use: those a round has
/// to generate.
[[nodiscard]] std::vector<std::int64_t> consumed_samples(const SampleOrderOptions& options,
                                                         std::int64_t steps);

}  // namespace jforge
