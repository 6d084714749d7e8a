#pragma once

/// What a person sees while a job runs: a bar on a terminal, one line per interval in a pipe or
/// Slurm log. Rank 0 only.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "coordinator/coordinator.h"
#include "data/prompts/prompt_import.h"
#include "workers/evaluate/evaluator.h"
#include "workers/train/train_config.h"

namespace jforge {

class ProgressDisplay {
 public:
  /// `interval_seconds`: the least time between two lines in a pipe; a terminal is refreshed 5
  /// times a second.
  explicit ProgressDisplay(double interval_seconds = 10);

  /// A new phase: ends the old bar's line and restarts clocks.
  void begin(const std::string& phase);
  void import(const ImportProgress& progress);
  /// Counts are of committed leases; until the first one the time is shown instead.
  void generation(const GenerationProgress& progress);
  void step(const StepMetrics& metrics, std::int64_t total_steps);
  /// Over all ranks, tasks and methods; the task, method and TPF shown are those at hand, the
  /// tokens/s those of this rank since begin().
  void evaluation(const EvaluationProgress& progress);
  /// Ends the bar's line.
  void end();

 private:
  /// Whether it is time to show something; `last` forces it, once.
  [[nodiscard]] bool due(bool last);
  /// Adds what `progress` has more than the last one of its task and method.
  void count_evaluated(const EvaluationProgress& progress);
  void show(double done, const std::string& text, bool last);

  bool terminal_;
  double interval_seconds_;
  std::string phase_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point shown_;
  std::int64_t first_step_ = -1;
  std::map<std::string, std::int64_t> evaluated_;  ///< Tokens seen of each task and method.
  std::int64_t evaluated_tokens_ = 0;
  bool last_shown_ = false;
  bool bar_open_ = false;
};

/// "1 h 02 min", "3 min 20 s", "12 s".
[[nodiscard]] std::string format_duration(double seconds);

}  // namespace jforge
