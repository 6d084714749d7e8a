#pragma once

/// Ends a round when held-out problems stop improving.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace jforge {

struct EarlyStopConfig {
  std::int64_t every = 0;           ///< 0: never.
  std::string task = {};            ///< See evaluate.tasks.
  std::filesystem::path data = {};  ///< Held-out problems; empty: evaluate.data.
  std::int64_t problems = 32;       ///< The first ones.
  std::int64_t patience = 3;        ///< Consecutive checks without a gain.

  /// Throws ConfigError naming the key.
  void validate() const;
  [[nodiscard]] bool due(std::int64_t step) const { return every > 0 && step % every == 0; }
};

/// The least gain: relative for tokens per forward, absolute for accuracy.
inline constexpr double kMinGain = 0.01;

/// Stored in checkpoints.
struct EarlyStopState {
  std::optional<double> best_tpf = {};
  std::optional<double> best_accuracy = {};
  std::int64_t without_gain = 0;
  /// Hash of the checks' problems; empty in old checkpoints.
  std::string problems = {};

  bool operator==(const EarlyStopState&) const = default;
};

class EarlyStop {
 public:
  /// `problems`: hash of the checks' problems.
  explicit EarlyStop(const EarlyStopConfig& config, std::string problems = {}) : config_(config) {
    state_.problems = std::move(problems);
  }

  /// Adds a check; the first is a gain, and so is one in either figure. True ends the round.
  [[nodiscard]] bool add(std::optional<double> tpf, std::optional<double> accuracy);
  [[nodiscard]] const EarlyStopState& state() const noexcept { return state_; }
  /// Returns false, restoring nothing, if the state was measured on other problems.
  [[nodiscard]] bool restore(const EarlyStopState& state);

 private:
  EarlyStopConfig config_;
  EarlyStopState state_;
};

}  // namespace jforge
