#pragma once

/// Shared parts of `jforge evaluate`, `jforge sweep` and `jforge tune`.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoints/hf_model.h"
#include "coordinator/control_plane.h"
#include "coordinator/run_lock.h"
#include "launch/commands/progress_display.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"
#include "workers/evaluate/evaluator.h"
#include "workers/job_config.h"

namespace jforge {

struct EvaluateOptions;
/// Takes the command's options over into the configuration.
void apply(const EvaluateOptions& options, EvaluateConfig& config);

class EvaluationSession {
 public:
  struct Settings {
    std::filesystem::path config;  ///< May be empty.
    std::vector<std::string> overrides;
    std::filesystem::path model;        ///< Empty: [model] source.
    std::filesystem::path out;          ///< Empty: `default_out`.
    std::string name;                   ///< Model name in results; empty: its directory's.
    std::filesystem::path default_out;  ///< Empty, as `out`: nothing is written.
    std::string folder;                 ///< Under `out`, for the evaluation's files.
    bool shows_tables = true;           ///< Prints tables at the end.
    /// K-th of N jobs that share `out`; with N > 1 samples only, for a later job to merge.
    std::pair<int, int> part{1, 1};
  };

  /// Collective. Validates [run] and [model] like `jforge run`, and starts heartbeats, so that a
  /// silent rank ends the job.
  EvaluationSession(const MpiSession& session, const Settings& settings);

  [[nodiscard]] JobConfig& config() noexcept { return config_; }
  [[nodiscard]] bool root() const { return comm_.rank() == 0; }
  /// Collective. Locks `out` for this job until finish(); throws EnvironmentError if another job
  /// has it. Returns false if a stop was requested.
  [[nodiscard]] bool load_model();
  /// Requires: load_model() returned true.
  [[nodiscard]] ModelUnderTest model() const;
  [[nodiscard]] EvaluationContext context();
  [[nodiscard]] std::filesystem::path directory() const { return out_ / folder_; }

  /// Collective; the last call. If `finished`, rank 0 writes the report after `before_report`.
  [[nodiscard]] ExitCode finish(bool finished, const std::function<void()>& before_report);

 private:
  void take_output();

  Communicator comm_;
  PhaseClock& clock_;
  JobConfig config_;
  std::filesystem::path model_directory_;
  std::filesystem::path out_;
  std::string folder_;
  std::string name_;
  bool shows_tables_;
  std::string part_;  ///< "K-of-N"; empty: the only job.
  std::optional<ControlPlane> control_;
  std::unique_ptr<KernelSet> kernels_;
  std::unique_ptr<RunLock> lock_;  ///< On out_, or this part of it; rank 0 only.
  MemoryAccount account_{"evaluation"};
  std::unique_ptr<HfModel> model_;
  ProgressDisplay display_;
};

}  // namespace jforge
