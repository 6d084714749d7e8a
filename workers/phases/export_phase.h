#pragma once

/// The export of the last round's model, and its record export.json.

#include <map>
#include <string>

#include "workers/job_config.h"
#include "workers/phases/round_weights.h"
#include "workers/phases/services.h"
#include "workers/run_layout.h"

namespace jforge {

/// Checks that the run's model/checksums.json is the one that export.json names (check_checksums
/// compares the files with it). Throws DataError naming the damaged or missing file.
void verify_export_record(const RunLayout& layout);

/// Throws ConfigError if the run's model/ holds files that no export wrote, since an export would
/// remove them. An export that is damaged may always be replaced.
void expect_replaceable_model(const RunLayout& layout);

class ExportPhase {
 public:
  /// All must outlive it.
  ExportPhase(const JobConfig& config, const PhaseServices& services, const RunLayout& layout,
              RoundWeights& weights)
      : config_(config), services_(services), layout_(layout), weights_(weights) {}

  /// Rank 0. Compares every byte of an exported model with its record; done() is then whether it is
  /// the model that this configuration exports. Logs why one has to be exported again.
  void look();
  /// Rank 0. Whether the model is exported: found by look(), or by run().
  [[nodiscard]] bool done() const noexcept { return done_; }
  /// Collective. Exports the model. Returns false if a stop was requested.
  [[nodiscard]] bool run();

 private:
  /// Returns the record: what the exported model is made from, and how.
  [[nodiscard]] std::map<std::string, std::string> settings() const;
  [[nodiscard]] bool is_exported() const;
  void drop_figures_of_another() const;

  const JobConfig& config_;
  const PhaseServices& services_;
  const RunLayout& layout_;
  RoundWeights& weights_;
  bool done_ = false;
};

}  // namespace jforge
