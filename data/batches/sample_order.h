#pragma once

/// The order in which training consumes samples: for every epoch of a round one seeded permutation
/// of 0 … num_samples − 1, chained epoch after epoch into one endless stream. Step s takes
/// positions [s·batch, (s+1)·batch) of that stream. Nothing here knows how many ranks there are: a
/// global batch is the same set of samples at any world size, and a cursor is enough to resume.

#include <array>
#include <cstdint>
#include <vector>

namespace jforge {

/// Place in the stream: epoch and position in that epoch's permutation.
struct SampleCursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  friend bool operator==(const SampleCursor&, const SampleCursor&) = default;
};

struct SampleOrderOptions {
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  std::int64_t num_samples = 0;    ///< At least 1.
  std::int64_t batch_samples = 1;  ///< Samples in a global batch, at least 1.

  /// ConfigError naming the field that is out of range.
  void validate() const;
};

/// Uniform permutation of 0 … num_samples − 1 for (seed, round, epoch): Fisher–Yates with draws
/// from the stream (seed, sample_order, round, epoch).
[[nodiscard]] std::vector<std::int64_t> epoch_permutation(std::uint64_t seed, std::uint64_t round,
                                                          std::int64_t epoch,
                                                          std::int64_t num_samples);

/// Steps of full batches that `epochs` epochs give: floor(num_samples · epochs / batch_samples).
/// ConfigError when that is none.
[[nodiscard]] std::int64_t steps_for_epochs(const SampleOrderOptions& options, double epochs);

/// Walks the stream. Holds two permutations (8 bytes a sample each). Not thread-safe.
class SampleOrder {
 public:
  /// Throws ConfigError from SampleOrderOptions::validate.
  explicit SampleOrder(const SampleOrderOptions& options);

  /// Sample ids of the next global batch, in order; the cursor moves behind them. A batch may span
  /// an epoch's end.
  [[nodiscard]] std::vector<std::int64_t> next_batch();
  /// Sample id at position `index` ≥ 0 of the stream; the cursor stays. Cheap while the epoch is
  /// one of the two last asked for, as in any order of a batch that spans an epoch's end.
  [[nodiscard]] std::int64_t at(std::int64_t index) const;

  [[nodiscard]] const SampleOrderOptions& options() const noexcept { return options_; }
  [[nodiscard]] SampleCursor cursor() const { return cursor_; }
  /// Continues from `cursor`. DataError when it is outside of this order.
  void seek(SampleCursor cursor);

 private:
  SampleOrderOptions options_;
  SampleCursor cursor_;
  struct Epoch {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> permutation;
  };
  mutable std::array<Epoch, 2> cache_;  ///< Each in the place of epoch % 2.
};

/// The samples that the first `steps` steps consume, each once, in order of first use: what a round
/// has to generate.
[[nodiscard]] std::vector<std::int64_t> consumed_samples(const SampleOrderOptions& options,
                                                         std::int64_t steps);

}  // namespace jforge
