#pragma once

/// What a rank does: carries out the coordinator's commands, one phase at a time. A phase owns its
/// memory in one scope; when it ends, every byte must have been returned (ARCHITECTURE.md "phase
/// switch").

#include <cstdint>
#include <optional>
#include <string>

#include "workers/job_config.h"
#include "workers/phases/export_phase.h"
#include "workers/phases/generate_phase.h"
#include "workers/phases/import_phase.h"
#include "workers/phases/round_weights.h"
#include "workers/phases/services.h"
#include "workers/protocol/command.h"
#include "workers/resume_choice.h"
#include "workers/run_layout.h"

namespace jforge {

/// Durable facts that rank 0 reads off the run directory before each command.
struct DurableFacts {
  bool prompts_imported = false;
  std::int32_t rounds_trained = 0;
  std::int32_t round_generated = 0;
  bool exported = false;
  /// The round after rounds_trained; empty before the import and after the last round.
  OpenPrompts open;
};

class JobWorker {
 public:
  /// `config` and what the services refer to must outlive it; `identity` goes into every
  /// checkpoint.
  JobWorker(const JobConfig& config, WorkerServices services, Identity identity,
            AcceptedChanges accepted);

  /// Collective. Finds the checkpoint to continue from and logs which it skipped and why. Call
  /// once, first. Throws ConfigError if its identity differs or the prompts were imported with
  /// other settings; DataError if the checkpoint of --resume PATH is damaged.
  void resume(const ResumeChoice& choice);
  /// Collective, once nothing can refuse the start any more. Sets checkpoints newer than the one
  /// that was named aside.
  void accept_start();
  /// Collective, once prompts are imported. Throws ConfigError for what a later round would refuse:
  /// the prompts' lengths, their number, or the answers of its checks.
  void expect_rounds_possible() const;

  /// Rank 0. Returns what is durable now. Reads only.
  [[nodiscard]] DurableFacts facts() const;

  /// Collective. Carries a command out (all kinds but report and finish). Returns false if a stop
  /// was requested; everything that must be durable is.
  [[nodiscard]] bool execute(const Command& command);

  /// Rank 0. Calls GeneratePhase::mend_reports.
  void mend_generation_reports() const { generation_.mend_reports(); }

 private:
  [[nodiscard]] bool train(std::int32_t round);
  void expect_identity_of(const Checkpoint& checkpoint);

  const JobConfig& config_;
  const WorkerServices services_;
  Identity identity_;
  AcceptedChanges accepted_;
  const RunLayout layout_;
  RoundWeights weights_;
  ImportPhase import_;
  GeneratePhase generation_;
  ExportPhase export_;
  bool goes_back_ = false;  ///< To a checkpoint that was named; until the start is accepted.
};

}  // namespace jforge
