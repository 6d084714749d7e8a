#pragma once

/// Leaves out updates whose loss or gradient norm leaps above what it was of late (loss spikes;
/// Chowdhery et al., "PaLM", 2022, section 5.1, skipped such batches by hand). All ranks judge the
/// same sum over ranks, so all decide the same.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace jforge {

/// What is compared.
enum class SpikeMeasure : std::uint8_t {
  loss,           ///< Of the whole batch, weighted as it is trained.
  gradient_norm,  ///< Global, before clipping.
};

struct SpikeGuardConfig {
  double ratio = 0;  ///< More than this times the reference is a spike; > 1, or 0: no guard.
  SpikeMeasure measure = SpikeMeasure::loss;
  std::int64_t window = 32;   ///< Steps whose median is the reference.
  std::int64_t patience = 8;  ///< Updates left out in a row, at most.

  /// Throws ConfigError naming the key ("train.spike_guard_ratio …").
  void validate() const;
};

/// What a resumed run needs to decide as the run before would have.
struct SpikeGuardState {
  std::vector<double> recent;  ///< Of steps that were not left out, oldest first; ≤ window.
  std::int64_t skipped = 0;    ///< Updates left out in this round …
  std::int64_t in_a_row = 0;   ///< … and of them since the last that was made.

  bool operator==(const SpikeGuardState&) const = default;
};

/// The reference is the median of the last `window` steps that were not left out; until there are
/// so many, no step is a spike.
class SpikeGuard {
 public:
  /// Throws ConfigError.
  explicit SpikeGuard(const SpikeGuardConfig& config);

  [[nodiscard]] bool active() const noexcept { return config_.ratio > 0; }
  [[nodiscard]] const SpikeGuardConfig& config() const noexcept { return config_; }
  /// Whether the update of a step with this measure is to be left out. Takes note of it. `value` is
  /// finite and not negative, equal on all ranks.
  [[nodiscard]] bool is_spike(double value);
  /// What the last value was compared with; empty while the window fills.
  [[nodiscard]] std::optional<double> reference() const noexcept { return reference_; }
  /// One line on the last value: "loss 9.1 is more than 4 times 2.0, the median of 32 steps".
  [[nodiscard]] std::string describe() const;
  /// Throws NumericalError, marked as everybody's, when more than `patience` updates in a row were
  /// left out, `step` the last of them.
  void expect_patience(std::int64_t step) const;

  [[nodiscard]] const SpikeGuardState& state() const noexcept { return state_; }
  /// Of a checkpoint; the newest values that fit the window are kept, without a guard none.
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
