#pragma once

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

/// Throws ConfigError if the name is a YAML or JSON file's.
void expect_toml_name(const std::filesystem::path& path);

/// Collective. Gives the file's text (empty for an empty `path`) to `load` on every rank. Rank 0
/// loads first, so that an error is reported once and thrown on all.
void load_configuration(const Communicator& comm, const std::filesystem::path& path,
                        const std::function<void(const std::string& text)>& load);

/// Returns whether anything was made. Before that the identity does not bind, so that a failed
/// import allows a corrected configuration.
bool holds_work(const RunLayout& layout);

class RunDirectory {
 public:
  struct Settings {
    std::filesystem::path directory;
    std::string resolved_config;  ///< TOML text, for resolved_config.toml.
    Identity identity;            ///< Compared with the recorded one once there is work.
    std::vector<std::string> accepted_changes;  ///< Keys, for identity.json.
    bool must_be_new = false;                   ///< --resume never
    std::string part = {};  ///< "K-of-N" if `directory` is that part of a run (RunLayout::parts).
  };
  /// Collective. Rank 0 locks the directory; a nonce proves that every rank sees it
  /// (publication_wait_seconds()). Once holds_work(), the identity must match the recorded one.
  /// Repairs damaged identity.json and run.json. Throws EnvironmentError or ConfigError.
  RunDirectory(const Communicator& comm, const Settings& settings);

  /// Collective. Writes identity.json and resolved_config.toml. Requires: nothing can refuse the
  /// start any more, because a refused start must not record changes.
  void record(const Communicator& comm);
  /// Rank 0: publishes run.json and a journal line; other ranks do nothing.
  void set_status(const std::string& status, const std::string& phase);
  /// Rank 0: sets status "failed". Write errors are only logged: `error` matters more, and a full
  /// disk may cause both.
  void set_failed(const std::exception& error) noexcept;
  /// Rank 0: writes run.json and metrics.prom, not durably. Write errors are logged once.
  void set_progress(const PhaseProgress& progress);
  /// Rank 0: appends to metrics.ATTEMPT.jsonl and the event file.
  void log_step(std::int32_t round, const StepMetrics& metrics);
  /// Rank 0: appends `model`'s figures in evaluation/summary.json to the event file. `rounds`, the
  /// number that trained it, is the step.
  void log_evaluation(const std::string& model, std::int32_t rounds);
  /// Sets the device of this rank, for run.json.
  void set_device(std::string device) { device_ = std::move(device); }
  /// Rank 0: returns when an earlier start finished last, as utc_now(); else empty.
  [[nodiscard]] const std::optional<std::string>& last_finished() const noexcept {
    return last_finished_;
  }
  /// Rank 0: call before that start's results change.
  void forget_finished() noexcept { last_finished_.reset(); }
  [[nodiscard]] int attempt() const noexcept { return attempt_; }
  /// The order of sums of the run's first start, or of the settings' identity; on every rank.
  [[nodiscard]] BFloat16Sums bfloat16_sums() const;
  /// Returns identity changes accepted by this and earlier starts, oldest first; on every rank.
  [[nodiscard]] std::vector<IdentityDifference> accepted_changes() const;

 private:
  void prove_shared(const Communicator& comm) const;
  void check_identity(const Settings& settings);
  /// Appends to the curves of tensorboard/`folder`.
  void draw(const std::string& folder, std::int64_t step, std::span<const Scalar> scalars);
  /// Runs `publish` for files that only show progress.
  void publish_signs(const std::function<void()>& publish);

  std::filesystem::path directory_;
  int ranks_;
  int attempt_ = 0;
  bool owner_;
  std::string started_;
  std::optional<std::string> last_finished_;
  std::string device_;           ///< Empty until it is known.
  nlohmann::json status_;        ///< Last written by set_status().
  bool signs_lost_ = false;      ///< A write failed, and that was logged.
  std::string identity_record_;  ///< For identity.json, by record().
  std::string resolved_config_;  ///< For resolved_config.toml, by record().
  std::unique_ptr<RunLock> lock_;
  std::optional<RunJournal> journal_;
  std::optional<AppendLog> metrics_;
  std::map<std::string, TensorboardLog> curves_;  ///< This attempt's, by folder of tensorboard/.
};

}  // namespace jforge
