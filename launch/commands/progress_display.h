#pragma once

/// What a person sees while a job runs: a bar on a terminal, one line per interval in a pipe or
/// Slurm log. Rank 0 only.

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

/// How far a phase is, as run.json tells it too.
struct PhaseProgress {
  std::string phase = {};
  std::string unit = {};                   ///< What step and total count: "prompts", "steps", …
  std::int64_t step = 0;                   ///< Done.
  std::optional<std::int64_t> total = {};  ///< Unknown while a file is read.
  std::optional<double> eta_seconds =
      {};                     ///< Left in this phase, once there is something to go by.
  bool eta_is_bound = false;  ///< Nothing has ended yet: it takes at most that long.
  std::optional<double> tokens_per_second = {};
  std::string detail = {};  ///< The rest, for people.
};

class ProgressDisplay {
 public:
  using Publish = std::function<void(const PhaseProgress&)>;
  /// `publish` gets what is shown at most every two seconds and at a phase's end.
  /// `interval_seconds`: the least time between two lines in a pipe; a terminal is refreshed 5
  /// times a second.
  explicit ProgressDisplay(Publish publish = {}, double interval_seconds = 10);

  /// A new phase: ends the old bar's line and restarts clocks.
  void begin(const std::string& phase);
  void import(const ImportProgress& progress);
  /// Prompts count when their lease is committed, tokens when they are made. Until the first lease
  /// is committed the ETA is a bound: all answers as long as `max_new_tokens`.
  /// `parallel`: tokens per forward are left out, since a forward serves many blocks and none to
  /// its end.
  void generation(const GenerationProgress& progress, std::int64_t max_new_tokens,
                  bool parallel = false);
  void step(const StepMetrics& metrics, std::int64_t total_steps);
  /// Over all ranks, tasks and methods; the task, method and TPF shown are those at hand, the
  /// tokens/s those of this rank since begin().
  void evaluation(const EvaluationProgress& progress);
  /// Ends the bar's line.
  void end();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Whether it is time to show or publish something; `last` forces both, once.
  [[nodiscard]] bool due(bool last);
  /// Adds what `progress` has more than the last one of its task and method.
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
  std::optional<TimePoint> first_tokens_;  ///< Generation: when there were any, and how many.
  std::int64_t tokens_then_ = 0;
  std::optional<TimePoint> first_encoded_;         ///< Import.
  std::map<std::string, std::int64_t> evaluated_;  ///< Tokens seen of each task and method.
  std::int64_t evaluated_tokens_ = 0;
  bool last_shown_ = false;
};

/// "120/500 steps, ETA 3 min 20 s, …": the part of a line that matters most comes first.
[[nodiscard]] std::string describe(const PhaseProgress& progress);
/// "PHASE [####....] TEXT" in fewer than `columns` columns: the bar goes first, then the text's
/// end.
[[nodiscard]] std::string bar_line(const PhaseProgress& progress, int columns);

/// "1 h 02 min", "3 min 20 s", "12 s".
[[nodiscard]] std::string format_duration(double seconds);

}  // namespace jforge
