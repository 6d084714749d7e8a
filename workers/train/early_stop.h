#pragma once

/// Ends a round when its model does not get better on held-out problems any more.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace jforge {

/// What must get better.
enum class EarlyStopMeasure : std::uint8_t {
  either,    ///< Tokens per forward or accuracy.
  tpf,       ///< Tokens per forward of Jacobi decoding (METHOD.md, I24).
  accuracy,  ///< Share of problems answered right.
};

struct EarlyStopConfig {
  std::int64_t every = 0;           ///< Steps between checks; 0 = never.
  std::string task = {};            ///< As an entry of evaluate.tasks.
  std::filesystem::path data = {};  ///< Its held-out problems; empty: evaluate.data.
  std::int64_t problems = 32;       ///< The first so many of them.
  std::optional<std::int64_t> max_new_tokens = {};  ///< Default: the task's own.
  EarlyStopMeasure measure = EarlyStopMeasure::either;
  std::int64_t patience = 3;  ///< Checks in a row without a gain that end the round.
  double min_gain = 0.01;     ///< Of tokens per forward as a share of the best, of accuracy as is.

  /// Throws ConfigError naming the key ("train.early_stop_every …").
  void validate() const;
  [[nodiscard]] bool due(std::int64_t step) const { return every > 0 && step % every == 0; }
};

/// What a resumed run needs to decide as the run before would have.
struct EarlyStopState {
  std::optional<double> best_tpf = {};
  std::optional<double> best_accuracy = {};
  std::int64_t without_gain = 0;  ///< Checks in a row.
  /// Hash of what was asked; empty: not known, of an earlier version's checkpoint.
  std::string problems = {};

  bool operator==(const EarlyStopState&) const = default;
};

class EarlyStop {
 public:
  /// `problems`: hash of what the checks ask.
  explicit EarlyStop(const EarlyStopConfig& config, std::string problems = {}) : config_(config) {
    state_.problems = std::move(problems);
  }

  /// Takes a check's figures; the first is a gain. True when patience is at its end. Figures that
  /// the measure does not look at do not count.
  [[nodiscard]] bool add(std::optional<double> tpf, std::optional<double> accuracy);
  [[nodiscard]] const EarlyStopState& state() const noexcept { return state_; }
  /// Of a checkpoint. False where it was measured on other problems: nothing is restored then,
  /// since figures of different problems say nothing of a gain.
  [[nodiscard]] bool restore(const EarlyStopState& state);

 private:
  EarlyStopConfig config_;
  EarlyStopState state_;
};

}  // namespace jforge
