#pragma once

/// A run directory taken into possession by one job: lock, attempt number, status, logs, metrics,
/// identity. Shared by every command that writes into one.

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/identity.h"
#include "coordinator/run_journal.h"
#include "coordinator/run_lock.h"
#include "launch/commands/progress_display.h"
#include "runtime/append_log.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensorboard_log.h"
#include "workers/run_layout.h"
#include "workers/train/train_config.h"

namespace jforge {

/// Throws ConfigError if the name of a configuration ends as those of YAML and JSON files do.
void expect_toml_name(const std::filesystem::path& path);

/// Collective. Hands the text of the configuration file (empty for an empty `path`) to `load` on
/// every rank. Rank 0 reads and loads it first: what is wrong is said once, and thrown on all.
void load_configuration(const Communicator& comm, const std::filesystem::path& path,
                        const std::function<void(const std::string& text)>& load);

/// Whether anything has been made under the directory's identity. Until then it binds nobody: an
/// import that failed must not refuse the configuration that mends it.
bool holds_work(const RunLayout& layout);

class RunDirectory {
 public:
  struct Settings {
    std::filesystem::path directory;
    std::string resolved_config;  ///< TOML text, for resolved_config.toml.
    Identity identity;            ///< Compared with the recorded one once there is any work.
    std::vector<std::string> accepted_changes;  ///< Keys, for identity.json.
    bool must_be_new = false;                   ///< --resume never
  };
  /// Collective. Rank 0 creates and locks the directory, every rank proves that it sees it (a
  /// nonce, which may take publication_wait_seconds()), the identity is compared with the recorded
  /// one as soon as anything was made under it (prompts, trajectories, a checkpoint). Damaged
  /// records are mended: identity.json from the newest checkpoint, run.json from the metrics files.
  /// Throws EnvironmentError, ConfigError.
  RunDirectory(const Communicator& comm, const Settings& settings);

  /// Collective. Writes identity.json and resolved_config.toml: once nothing can refuse the start
  /// any more, so that one that is refused leaves no change recorded.
  void record(const Communicator& comm);
  /// Rank 0: publishes run.json and a journal line. Other ranks: nothing.
  void set_status(const std::string& status, const std::string& phase);
  /// Rank 0: status "failed". What cannot be written is only logged: `error` is the one to be told,
  /// and a full disk, say, causes both.
  void set_failed(const std::exception& error) noexcept;
  /// Rank 0: how far the phase is, into run.json and metrics.prom. Neither durable nor worth a job:
  /// what cannot be written is said once.
  void set_progress(const PhaseProgress& progress);
  /// Rank 0: one line of metrics.ATTEMPT.jsonl and one record of the event file.
  void log_step(std::int32_t round, const StepMetrics& metrics);
  /// Rank 0: the figures of `model` in evaluation/summary.json as one record of the event file, at
  /// step `rounds` (how many rounds have trained the model).
  void log_evaluation(const std::string& model, std::int32_t rounds);
  /// What this rank computes on, for run.json.
  void set_device(std::string device) { device_ = std::move(device); }
  /// Rank 0: when a start before this one finished last, as utc_now(); nothing elsewhere.
  [[nodiscard]] const std::optional<std::string>& last_finished() const noexcept {
    return last_finished_;
  }
  /// Rank 0: what it made is not this directory's last word any more.
  void forget_finished() noexcept { last_finished_.reset(); }
  [[nodiscard]] int attempt() const noexcept { return attempt_; }
  /// Changes of the identity that this and earlier starts accepted, oldest first; on every rank.
  [[nodiscard]] std::vector<IdentityDifference> accepted_changes() const;

 private:
  void prove_shared(const Communicator& comm) const;
  void check_identity(const Settings& settings);
  /// Appends to the curves of tensorboard/`folder`.
  void draw(const std::string& folder, std::int64_t step, std::span<const Scalar> scalars);
  /// For files that only show progress.
  void publish_signs(const std::function<void()>& publish);

  std::filesystem::path directory_;
  int ranks_;
  int attempt_ = 0;
  bool owner_;
  std::string started_;
  std::optional<std::string> last_finished_;
  std::string device_;           ///< Empty until it is known.
  nlohmann::json status_;        ///< What set_status() wrote last.
  bool signs_lost_ = false;      ///< One could not be written, and that has been said.
  std::string identity_record_;  ///< Content of identity.json …
  std::string resolved_config_;  ///< … and of resolved_config.toml, by record().
  std::optional<RunLock> lock_;
  std::optional<RunJournal> journal_;
  std::optional<AppendLog> metrics_;
  std::map<std::string, TensorboardLog> curves_;  ///< Of this attempt, by folder of tensorboard/.
};

}  // namespace jforge
