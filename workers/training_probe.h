#pragma once

/// Decodes greedy answers in the middle of training to detect collapsed text
/// (workers/train/collapse.h) and to stop when held-out problems no longer improve
/// (workers/train/early_stop.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/prompts/prompt_store.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/sequence_decoder.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/buffer.h"
#include "workers/evaluate/problem_set.h"
#include "workers/job_config.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {

/// All must outlive the probe.
struct ProbeContext {
  const Communicator& comm;
  const Communicator& within;  ///< The ranks that share a copy of the weights.
  KernelSet& kernels;
  MemoryAccount& account;  ///< Charged while a check decodes.
  const TransformerConfig& model;
  const ParameterTable& table;
};

/// Memory of one rank while a check decodes, in bytes.
struct ProbeMemory {
  double gathered = 0;  ///< On the host: a group's float32 weights.
  double decoding = 0;  ///< On the kernels' device.
};
/// Reads the problems of train.early_stop_task and returns their longest prompt's tokens; 0 without
/// a task. Throws as load_problem_set().
[[nodiscard]] std::int64_t longest_held_out_problem(const JobConfig& config,
                                                    const TransformerConfig& model);
/// For prompts and problems of at most `longest` tokens; zero without checks.
[[nodiscard]] ProbeMemory probe_memory(const JobConfig& config, const TransformerConfig& model,
                                       const ParameterTable& table, Device device,
                                       std::int64_t longest);

/// Throws ConfigError if a held-out problem of round `round`, with its answer, does not fit the
/// model's positions; DataError as load_problem_set().
void expect_probes_fit(const JobConfig& config, std::int32_t round, const TransformerConfig& model);

/// One object per rank and round. Answers come from the running-window Jacobi decoder with the
/// round's block size (on CPU float32 they equal greedy decoding) and do not depend on the number
/// of ranks.
class TrainingProbe {
 public:
  /// Whether `config` has any check.
  [[nodiscard]] static bool wanted(const TrainConfig& config);

  /// Local. Reads prompts and problems. Throws as expect_probes_fit().
  TrainingProbe(const ProbeContext& context, const JobConfig& config, std::int32_t round,
                const PromptStore& prompts);

  /// Collective, after the update of a step. If a check is due, decodes with the weights of `store`
  /// and adds the figures to the step's metrics. Returns true if the round must end here.
  [[nodiscard]] bool check(const ParameterStore& store, StepMetrics& metrics);
  /// Throws NumericalError, on all ranks, if the last check found a collapse that ends the run.
  void expect_no_collapse() const;

  [[nodiscard]] const EarlyStopState& state() const noexcept { return early_stop_.state(); }
  /// Restores a checkpoint's state; ignores, with a log line, one measured on other problems.
  void restore(const EarlyStopState& state);

 private:
  /// Requests of one check, equal on every rank.
  struct Set {
    std::vector<DecodeRequest> requests;
    std::optional<ProblemSet> problems;  ///< Set if answers are graded.
  };
  /// Result of one answer.
  struct Answer {
    double tokens = 0;
    double forwards = 0;
    double repetition = 0;
    double distinct = 0;
    double right = 0;
  };

  [[nodiscard]] std::unique_ptr<SequenceDecoder> decoder(const DecodeRequest& request) const;
  /// Collective. Returns the results in the order of the set's requests.
  [[nodiscard]] std::vector<Answer> decode(const Set& set, const ParameterStore& store);
  [[nodiscard]] Answer judge(const Set& set, std::size_t index, const DecodeResult& result) const;
  void note_collapse(const std::vector<Answer>& answers, StepMetrics& metrics);
  [[nodiscard]] bool note_gain(const std::vector<Answer>& answers, StepMetrics& metrics);

  ProbeContext context_;
  TrainConfig config_;
  JacobiOptions drafts_;
  std::int32_t batch_prompts_;
  WeightStorage decode_weights_;
  BytePairTokenizer tokenizer_;
  Set prompts_;   ///< For collapse.
  Set problems_;  ///< For the early stop.
  EarlyStop early_stop_;
  std::string collapse_;  ///< Found by the last check; ends the run.
};

}  // namespace jforge
