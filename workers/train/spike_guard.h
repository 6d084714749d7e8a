#pragma once

/// Skips updates whose loss jumps above recent values (loss spikes; Chowdhery et al., "PaLM", 2022,
/// section 5.1, skipped such batches by hand). All ranks judge the same sum, so all decide alike.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace jforge {

struct SpikeGuardConfig {
  double ratio = 0;           ///< Spike: above this times the reference; > 1, or 0: no guard.
  std::int64_t window = 32;   ///< Steps whose median is the reference.
  std::int64_t patience = 8;  ///< Maximum consecutive skipped updates.

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// Stored in checkpoints.
struct SpikeGuardState {
  std::vector<double> recent;  ///< Excludes skipped steps; oldest first; ≤ window.
  std::int64_t skipped = 0;    ///< In this round.
  std::int64_t in_a_row = 0;

  bool operator==(const SpikeGuardState&) const = default;
};

/// The reference is the median of the last `window` steps that were not skipped; with fewer, no
/// step is a spike.
class SpikeGuard {
 public:
  explicit SpikeGuard(const SpikeGuardConfig& config);

  [[nodiscard]] bool active() const noexcept { return config_.ratio > 0; }
  [[nodiscard]] const SpikeGuardConfig& config() const noexcept { return config_; }
  /// Records `value`, finite, not negative and equal on all ranks. True: skip the update.
  [[nodiscard]] bool is_spike(double value);
  /// The last value's reference; empty while the window fills.
  [[nodiscard]] std::optional<double> reference() const noexcept { return reference_; }
  /// "loss 9.1 is more than 4 times 2.0, the median of 32 steps".
  [[nodiscard]] std::string describe() const;
  /// Throws NumericalError, marked as on all ranks, after more than `patience` consecutive skips.
  void expect_patience(std::int64_t step) const;

  [[nodiscard]] const SpikeGuardState& state() const noexcept { return state_; }
  /// Keeps the newest values that fit the window; none without a guard.
  void restore(SpikeGuardState state);

 private:
  [[nodiscard]] std::optional<double> median();

  SpikeGuardConfig config_;
  SpikeGuardState state_;
  std::optional<double> reference_;
  double last_ = 0;
  std::vector<double> sorted_;
};

}  // namespace jforge
