#pragma once

/// What a rank does: carries out the coordinator's commands, one phase at a time. A phase owns its
/// memory in one scope; when it ends every byte of it must have come back (ARCHITECTURE.md "phase
/// switch").

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/prompts/prompt_import.h"
#include "data/prompts/prompt_store.h"
#include "data/trajectories/trajectory_store.h"
#include "model/decoding/cut_answers.h"
#include "model/kernels/kernel_set.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/evaluator.h"
#include "workers/job_config.h"
#include "workers/model_state.h"
#include "workers/protocol/command.h"
#include "workers/protocol/control_channel.h"
#include "workers/resume_choice.h"
#include "workers/run_layout.h"
#include "workers/train/sample_filter.h"

namespace jforge {

class TrajectoryGenerator;

/// Prompts that a round still has to generate, with their lengths, the first free lease number, the
/// shards that do not count, and what the index of shards lacks.
struct OpenPrompts {
  struct Prompt {
    PromptId id = 0;
    std::int64_t tokens = 0;
  };
  std::vector<Prompt> prompts;
  LeaseId next_lease = 0;
  std::vector<std::filesystem::path> stale;  ///< Another configuration or model generated them.
  std::vector<DamagedShard> damaged;
  std::filesystem::path directory;        ///< Of the round's shards.
  std::vector<ShardInfo> not_remembered;  ///< Shards that hold and had to be read.
  std::vector<std::string> index_damage;  ///< Lines of their index that do not hold.
};

/// Durable facts that rank 0 reads off the run directory before each command.
struct DurableFacts {
  bool prompts_imported = false;
  std::int32_t rounds_trained = 0;
  std::int32_t round_generated = 0;
  bool exported = false;
  /// Of the round after rounds_trained; nothing before the import and after the last round.
  OpenPrompts open;
};

/// What the surroundings offer a worker. All must outlive it.
struct WorkerServices {
  const Communicator& comm;
  KernelSet& kernels;
  ControlChannel& control;
  PhaseClock& clock;
  /// Called on every rank after a training step (round, metrics).
  std::function<void(std::int32_t, const StepMetrics&)> on_step;
  /// Called on every rank while it generates: after each forward, prompt, lease and lease answer.
  std::function<void()> on_prompt;
  /// Called on every rank after each evaluated problem.
  std::function<void(const EvaluationProgress&)> on_evaluation;
  /// Called on rank 0 while prompts are imported.
  std::function<void(const ImportProgress&)> on_import;
};

/// The run's exported model is the one that export.json tells of, by its checksums.json; that its
/// files are those is check_checksums' to say. Throws DataError naming what is damaged or gone.
void verify_export_record(const RunLayout& layout);

/// Throws ConfigError where the run's model/ holds what no export has put there, which another
/// export would take away. Where what is there is damaged, it is made again whatever else lies
/// beside it.
void expect_replaceable_model(const RunLayout& layout);

class JobWorker {
 public:
  /// `identity` goes into every checkpoint.
  JobWorker(const JobConfig& config, WorkerServices services, Identity identity,
            AcceptedChanges accepted);
  ~JobWorker();

  /// Collective. Finds the checkpoint to go on from and says which it skipped and why. Call once,
  /// first. Throws ConfigError when its identity differs, or the imported prompts' import was of
  /// other settings; DataError when --resume PATH does not hold.
  void resume(const ResumeChoice& choice);
  /// Collective, once nothing can refuse the start any more: what is newer than a checkpoint that
  /// was named is set aside.
  void accept_start();
  /// Collective, once prompts are imported: what a later round would refuse of their lengths, their
  /// number or its checks' answers, before the work that comes first. Throws ConfigError.
  void expect_rounds_possible() const;

  /// Rank 0: what is durable now. Reads only; every shard of the next round that is not remembered
  /// as it is now (shard_index.h) is verified.
  [[nodiscard]] DurableFacts facts() const;
  /// Rank 0, before a round generates or trains: renames the shards that do not count, to *.damaged
  /// and *.stale, and says so; completes the index of shards.
  void set_aside(const OpenPrompts& open) const;

  /// Collective. Carries a command out (all kinds but report and finish). Returns false when a stop
  /// was requested: what must be durable is.
  [[nodiscard]] bool execute(const Command& command);

  /// Rank 0 (no effect on others): writes round `round`'s generation.json if it is not there (a
  /// rank that died after the last commit left none) or damaged. Not collective. Throws DataError
  /// when a trajectory is missing.
  void ensure_generation_report(std::int32_t round) const;
  /// Rank 0: damaged generation.json files are written again, or set aside where the trajectories
  /// are not there any more.
  void mend_generation_reports() const;

  /// Steps of the round that is being trained; 0 outside of training.
  [[nodiscard]] std::int64_t round_steps() const noexcept { return round_steps_; }
  /// Steps that round `round` trains when the store holds `num_prompts` prompts.
  [[nodiscard]] std::int64_t total_steps(std::int32_t round, std::int64_t num_prompts) const;

 private:
  class RoundTraining;  // job_training.cpp

  /// The end of a phase: every byte its account was charged must have come back, and the kernels'
  /// work space goes. Logs what it took.
  void end_phase(const MemoryAccount& account);
  [[nodiscard]] PromptImportConfig import_config() const;
  [[nodiscard]] PromptEncoder prompt_encoder() const;
  /// Collective. Imported prompts must be those of this configuration. A damaged store is set
  /// aside; a lost or damaged report of the import is written again.
  void check_prompts() const;
  /// Collective. The imported prompts' digest becomes part of the identity as soon as there are
  /// any.
  void identify_prompts();
  /// Hash of what the weights after `rounds_done` rounds come from: the model, or the checkpoint
  /// that ended the last of those rounds.
  [[nodiscard]] std::string weights_origin(std::int32_t rounds_done) const;
  /// The same, of what is there now. Throws DataError when the checkpoint is gone.
  [[nodiscard]] std::string present_origin(std::int32_t rounds_done) const;
  /// Collective, in a round that may have been resumed. The weights that it began with, in memory.
  /// Throws DataError when they are gone or others, naming the `need`.
  ModelState& first_weights(std::int32_t round, const char* need);
  /// The identity of round `round`'s trajectories (trajectory_identity.h) while execute() generates
  /// or trains it.
  [[nodiscard]] std::string trajectory_identity(std::int32_t round) const;
  /// Rank 0: what round `round` still has to generate.
  [[nodiscard]] OpenPrompts open_prompts(std::int32_t round) const;
  /// Rank 0: what the checkpoint to go on from says of prompts that are lost.
  void expect_prompts_of(const CheckpointManifest& manifest);
  [[nodiscard]] bool import_prompts();
  [[nodiscard]] bool generate(std::int32_t round);
  [[nodiscard]] bool train(std::int32_t round);
  [[nodiscard]] bool export_final();
  /// What export.json says: what the exported model is made from, and how.
  [[nodiscard]] std::map<std::string, std::string> export_settings() const;
  /// Rank 0: whether the model is exported as this configuration wants it, every byte compared.
  /// Says why one that was is exported again.
  [[nodiscard]] bool is_exported() const;
  /// Rank 0: where another model was exported before, its figures are no longer "final"'s.
  void forget_figures_of_another() const;
  [[nodiscard]] bool evaluate(const std::string& name);

  [[nodiscard]] bool generate_leases(std::int32_t round, const ModelState& model, AnswerEnds& ends);
  [[nodiscard]] bool generate_with(TrajectoryGenerator& generator, std::int32_t round,
                                   const PromptStore& prompts, const TransformerConfig& model);
  [[nodiscard]] std::int32_t generation_places(std::int32_t round, std::int64_t num_prompts) const;
  void write_generation_report(std::int32_t round) const;
  /// Rank 0 (no effect on others): what cleaning keeps of round `round`, and its report.
  void record_cleaning(std::int32_t round, const std::optional<FilterCounts>& counts) const;
  /// Collective. Makes model_ where there is none; its weights are not read.
  void make_model();
  /// Collective. Weights as they are after `rounds_done` rounds, in memory; rank 0 reads them where
  /// they are not yet. Throws DataError when the checkpoint that they are in is gone.
  ModelState& weights_after(std::int32_t rounds_done);
  [[nodiscard]] bool resumes_at_end_of(std::int32_t round) const;
  [[nodiscard]] bool resumes_within(std::int32_t round) const;
  /// Directory of the checkpoint that ended round `round`. Throws DataError when there is none.
  [[nodiscard]] std::filesystem::path final_checkpoint_directory(std::int32_t round) const;
  /// Collective. That checkpoint, verified.
  [[nodiscard]] Checkpoint final_checkpoint(std::int32_t round) const;
  [[nodiscard]] std::vector<PromptId> prompts_of_round(std::int32_t round,
                                                       std::int64_t num_prompts) const;

  const JobConfig& config_;
  WorkerServices services_;
  Identity identity_;
  AcceptedChanges accepted_;
  RunLayout layout_;
  MemoryAccount weights_account_{"weights"};
  std::unique_ptr<ModelState> model_;
  std::int32_t model_rounds_ =
      -1;  ///< Rounds whose training the weights in memory have seen; −1: none loaded.
  std::optional<Checkpoint> resume_point_;  ///< Newest valid checkpoint at start.
  bool goes_back_ = false;  ///< To a checkpoint that was named; until the start is accepted.
  std::int32_t rounds_trained_ = 0;
  bool exported_ = false;  ///< Rank 0: is_exported(), found at the start or made since.
  /// Of prompts that are lost though a checkpoint was trained on them.
  std::optional<std::string> lost_prompts_digest_;
  std::string trajectory_origin_;  ///< weights_origin of the round at hand, equal on every rank.
  std::int64_t round_steps_ = 0;
};

}  // namespace jforge
