#pragma once

/// What a rank does: carries out the coordinator's commands, one phase at a time. A phase owns its
/// memory in one scope; when it ends every byte of it must have come back (ARCHITECTURE.md "phase
/// switch").

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/prompts/prompt_store.h"
#include "model/kernels/kernel_set.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/evaluator.h"
#include "workers/job_config.h"
#include "workers/model_state.h"
#include "workers/protocol/command.h"
#include "workers/protocol/control_channel.h"
#include "workers/run_layout.h"

namespace jforge {

/// Durable facts that rank 0 reads off the run directory before each command.
struct DurableFacts {
  bool prompts_imported = false;
  std::int32_t rounds_trained = 0;
  std::int32_t round_generated = 0;
  bool exported = false;
  std::vector<std::string> models_evaluated;
};

/// Prompts that a round still has to generate, with their lengths, and the first free lease number.
struct OpenPrompts {
  struct Prompt {
    PromptId id = 0;
    std::int64_t tokens = 0;
  };
  std::vector<Prompt> prompts;
  LeaseId next_lease = 0;
};

/// What the surroundings offer a worker. All must outlive it.
struct WorkerServices {
  const Communicator& comm;
  KernelSet& kernels;
  ControlChannel& control;
  PhaseClock& clock;
  /// Called on every rank after a training step (round, metrics).
  std::function<void(std::int32_t, const StepMetrics&)> on_step;
  /// Called on every rank after each generated prompt.
  std::function<void()> on_prompt;
  /// Called on every rank after each evaluated problem.
  std::function<void(const EvaluationProgress&)> on_evaluation;
};

/// Which checkpoint a job continues from (--resume).
struct ResumeChoice {
  enum class Kind : std::uint8_t { automatic, never, path };
  Kind kind = Kind::automatic;
  std::filesystem::path path;
};

class JobWorker {
 public:
  /// `identity` goes into every checkpoint; `accepted` are identity keys whose change the user
  /// accepted.
  JobWorker(const JobConfig& config, WorkerServices services,
            std::map<std::string, std::string> identity, std::vector<std::string> accepted);
  ~JobWorker();

  /// Collective. Finds the checkpoint to go on from and says which it skipped and why. Call once,
  /// first. Throws ConfigError when its identity differs, DataError when --resume PATH does not
  /// hold.
  void resume(const ResumeChoice& choice);

  /// Rank 0: what is durable now.
  [[nodiscard]] DurableFacts facts() const;
  /// Rank 0: what round `round` still has to generate, shards verified.
  [[nodiscard]] OpenPrompts open_prompts(std::int32_t round) const;

  /// Collective. Carries a command out (all kinds but report and finish). Returns false when a stop
  /// was requested: what must be durable is.
  [[nodiscard]] bool execute(const Command& command);

  /// Steps of the round that is being trained; 0 outside of training.
  [[nodiscard]] std::int64_t round_steps() const noexcept { return round_steps_; }
  /// Steps that round `round` trains when the store holds `num_prompts` prompts.
  [[nodiscard]] std::int64_t total_steps(std::int32_t round, std::int64_t num_prompts) const;

 private:
  /// The end of a phase: every byte its account was charged must have come back.
  static void expect_returned(const MemoryAccount& account);
  /// Collective. The imported prompts' digest becomes part of the identity as soon as there are
  /// any.
  void identify_prompts();
  [[nodiscard]] bool import_prompts();
  [[nodiscard]] bool generate(std::int32_t round);
  [[nodiscard]] bool train(std::int32_t round);
  [[nodiscard]] bool export_final();
  [[nodiscard]] bool evaluate(const std::string& name);

  [[nodiscard]] bool generate_leases(std::int32_t round);
  void write_generation_report(std::int32_t round) const;
  /// Weights as they are after `rounds_done` rounds, in memory.
  ModelState& weights_after(std::int32_t rounds_done);
  /// Collective. The checkpoint that ended round `round`, verified. Throws DataError when there is
  /// none.
  [[nodiscard]] Checkpoint final_checkpoint(std::int32_t round, std::int64_t num_prompts) const;
  [[nodiscard]] std::vector<PromptId> prompts_of_round(std::int32_t round,
                                                       std::int64_t num_prompts) const;
  [[nodiscard]] std::int64_t required_positions(std::int32_t round, const PromptStore& prompts,
                                                const TransformerConfig& model) const;

  const JobConfig& config_;
  WorkerServices services_;
  std::map<std::string, std::string> identity_;
  std::vector<std::string> accepted_;
  RunLayout layout_;
  MemoryAccount weights_account_{"weights"};
  std::unique_ptr<ModelState> model_;
  std::int32_t model_rounds_ =
      -1;  ///< Rounds whose training the weights in memory have seen; −1: none loaded.
  std::optional<Checkpoint> resume_point_;  ///< Newest valid checkpoint at start.
  std::int32_t rounds_trained_ = 0;
  std::int64_t round_steps_ = 0;
};

}  // namespace jforge
