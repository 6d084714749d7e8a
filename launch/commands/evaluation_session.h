#pragma once

/// What `jforge evaluate` and `jforge sweep` have in common: configuration, model, heartbeats,
/// progress and report of an evaluation that belongs to no run.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/control_plane.h"
#include "coordinator/run_lock.h"
#include "launch/commands/progress_display.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"
#include "workers/evaluate/evaluator.h"
#include "workers/job_config.h"
#include "workers/model_state.h"

namespace jforge {

class EvaluationSession {
 public:
  struct Settings {
    std::filesystem::path config;  ///< May be empty.
    std::vector<std::string> overrides;
    std::filesystem::path model;  ///< Empty: [model] source.
    std::filesystem::path out;    ///< Empty: `default_out`.
    std::string name;             ///< Of the model in results; empty: its directory's.
    std::filesystem::path default_out;
    std::string folder;        ///< Under `out`, for the evaluation's files.
    bool shows_tables = true;  ///< On standard output, at the end.
  };

  /// Collective. Reads the configuration on rank 0, refuses what `jforge run` refuses of [run] and
  /// [model], and starts heartbeats: a rank that is silent ends the job.
  EvaluationSession(const MpiSession& session, const Settings& settings);

  [[nodiscard]] JobConfig& config() noexcept { return config_; }
  [[nodiscard]] bool root() const { return comm_.rank() == 0; }
  /// Collective. Takes `out` for this job alone until finish(): EnvironmentError while another job
  /// has it. False when a stop was asked for.
  [[nodiscard]] bool load_model();
  /// After load_model().
  [[nodiscard]] ModelUnderTest model() const;
  [[nodiscard]] EvaluationContext context();
  [[nodiscard]] std::filesystem::path directory() const { return out_ / folder_; }

  /// Collective, last. On rank 0 of a finished evaluation: `before_report`, then the report, and
  /// the tables of what was measured on standard output.
  [[nodiscard]] ExitCode finish(bool finished, const std::function<void()>& before_report);

 private:
  Communicator comm_;
  PhaseClock& clock_;
  JobConfig config_;
  std::filesystem::path model_directory_;
  std::filesystem::path out_;
  std::string folder_;
  std::string name_;
  bool shows_tables_;
  std::optional<ControlPlane> control_;
  std::unique_ptr<KernelSet> kernels_;
  std::optional<RunLock> lock_;  ///< Rank 0's, on out_.
  MemoryAccount account_{"evaluation"};
  std::unique_ptr<ModelState> model_;
  ProgressDisplay display_;
};

}  // namespace jforge
