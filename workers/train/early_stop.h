#pragma once

/// Ends a round when the model stops improving on held-out problems.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace jforge {

enum class EarlyStopMeasure : std::uint8_t {
  either,    ///< Tokens per forward or accuracy.
  tpf,       ///< Tokens per forward of Jacobi decoding (METHOD.md, I24).
  accuracy,  ///< Share of problems answered right.
};

struct EarlyStopConfig {
  std::int64_t every = 0;                           ///< Steps between checks; 0 = never.
  std::string task = {};                            ///< As in evaluate.tasks.
  std::filesystem::path data = {};                  ///< Held-out problems; empty: evaluate.data.
  std::int64_t problems = 32;                       ///< The first ones of the task.
  std::optional<std::int64_t> max_new_tokens = {};  ///< Default: the task's.
  EarlyStopMeasure measure = EarlyStopMeasure::either;
  std::int64_t patience = 3;  ///< Consecutive checks without a gain that end the round.
  double min_gain = 0.01;     ///< Relative for tokens per forward, absolute for accuracy.

  /// Throws ConfigError naming the key ("train.early_stop_every …").
  void validate() const;
  [[nodiscard]] bool due(std::int64_t step) const { return every > 0 && step % every == 0; }
};

/// Part of checkpoints, so that a resumed run decides the same.
struct EarlyStopState {
  std::optional<double> best_tpf = {};
  std::optional<double> best_accuracy = {};
  std::int64_t without_gain = 0;  ///< Consecutive checks.
  /// Hash of the checks' problems; empty in checkpoints of earlier versions.
  std::string problems = {};

  bool operator==(const EarlyStopState&) const = default;
};

class EarlyStop {
 public:
  /// `problems`: hash of the checks' problems.
  explicit EarlyStop(const EarlyStopConfig& config, std::string problems = {}) : config_(config) {
    state_.problems = std::move(problems);
  }

  /// Adds a check; the first is a gain. Ignores figures outside the measure. True if the round
  /// ends.
  [[nodiscard]] bool add(std::optional<double> tpf, std::optional<double> accuracy);
  [[nodiscard]] const EarlyStopState& state() const noexcept { return state_; }
  /// Restores a checkpoint's state. Returns false, and restores nothing, if it was measured on
  /// other problems, because such figures are not comparable.
  [[nodiscard]] bool restore(const EarlyStopState& state);

 private:
  EarlyStopConfig config_;
  EarlyStopState state_;
};

}  // namespace jforge
