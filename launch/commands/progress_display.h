#pragma once

/// Shows a job's progress on rank 0: a bar on a terminal, lines in a pipe or Slurm log.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "coordinator/coordinator.h"
#include "data/prompts/prompt_import.h"
#include "launch/commands/terminal.h"
#include "workers/evaluate/evaluator.h"
#include "workers/train/train_config.h"

namespace jforge {

/// Progress of a phase, also for run.json.
struct PhaseProgress {
  std::string phase = {};
  std::string unit = {};                   ///< Unit of step and total: "prompts", "steps", …
  std::int64_t step = 0;                   ///< Done.
  std::optional<std::int64_t> total = {};  ///< Unknown while a file is read.
  std::optional<double> eta_seconds = {};  ///< Left in this phase, once known.
  bool eta_is_bound = false;               ///< The ETA is an upper bound.
  std::optional<double> tokens_per_second = {};
  std::string detail = {};
};

class ProgressDisplay {
 public:
  using Publish = std::function<void(const PhaseProgress&)>;
  /// `publish` is called at most every two seconds and at a phase's end. `interval_seconds`:
  /// minimum between lines in a pipe; a terminal is refreshed 5 times a second.
  explicit ProgressDisplay(Publish publish = {}, double interval_seconds = 10);

  /// Ends the old bar's line and restarts clocks.
  void begin(const std::string& phase);
  void import(const ImportProgress& progress);
  /// Prompts count when their lease is committed, tokens when made. Before the first commit the ETA
  /// assumes answers of `max_new_tokens`. `parallel` omits tokens per forward, because a forward
  /// serves many unfinished blocks.
  void generation(const GenerationProgress& progress, std::int64_t max_new_tokens,
                  bool parallel = false);
  void step(const StepMetrics& metrics, std::int64_t total_steps);
  /// Counts all ranks, tasks and methods; shows the current task's TPF and this rank's tokens/s.
  void evaluation(const EvaluationProgress& progress);
  void end();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Returns whether to show or publish now; `last` forces both, once.
  [[nodiscard]] bool due(bool last);
  /// Adds the progress since the last call of its task and method.
  void count_evaluated(const EvaluationProgress& progress);
  void show(const PhaseProgress& progress, bool last);

  Publish publish_;
  Terminal terminal_;
  double interval_seconds_;
  std::string phase_;
  TimePoint start_;
  TimePoint shown_;
  TimePoint published_;
  bool show_now_ = false;
  bool publish_now_ = false;
  std::int64_t first_step_ = -1;
  std::optional<TimePoint> first_tokens_;          ///< Generation: time of the first tokens …
  std::int64_t tokens_then_ = 0;                   ///< … and their number.
  std::optional<TimePoint> first_encoded_;         ///< Import.
  std::map<std::string, std::int64_t> evaluated_;  ///< Tokens by task and method.
  std::int64_t evaluated_tokens_ = 0;
  bool last_shown_ = false;
};

/// Returns "120/500 steps, ETA 3 min 20 s, …", most important part first.
[[nodiscard]] std::string describe(const PhaseProgress& progress);
/// Returns "PHASE [####....] TEXT" below `columns` columns; drops the bar, then the text's end.
[[nodiscard]] std::string bar_line(const PhaseProgress& progress, int columns);

/// Returns "1 h 02 min", "3 min 20 s" or "12 s".
[[nodiscard]] std::string format_duration(double seconds);

}  // namespace jforge
