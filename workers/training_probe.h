#pragma once

/// Greedy answers of the model as it is in the middle of training: whether its text collapses
/// (workers/train/collapse.h), and whether it still gets better on held-out problems
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

/// What every rank brings along; all must outlive the probe.
struct ProbeContext {
  const Communicator& comm;
  KernelSet& kernels;
  MemoryAccount& account;  ///< Charged while a check decodes.
  const TransformerConfig& model;
  const ParameterTable& table;
};

/// Memory of one rank while a check decodes, bytes: beside whole weights, which below ZeRO stage 3
/// float32 training has at hand.
struct ProbeMemory {
  double gathered = 0;  ///< On the host: whole float32 weights, where training keeps none.
  double decoding = 0;  ///< Where the kernels compute.
};
/// The most tokens of a prompt of train.early_stop_task's problems, which are read; 0 without it.
/// Throws as load_problem_set.
[[nodiscard]] std::int64_t longest_held_out_problem(const JobConfig& config,
                                                    const TransformerConfig& model);
/// For prompts and problems of `longest` tokens at most; zero where no check is asked for.
[[nodiscard]] ProbeMemory probe_memory(const JobConfig& config, const TransformerConfig& model,
                                       const ParameterTable& table, Device device,
                                       std::int64_t longest);

/// Throws ConfigError where a prompt or problem of round `round`'s checks and its answer do not fit
/// the model's positions, DataError as load_problem_set.
void expect_probes_fit(const JobConfig& config, std::int32_t round, const TransformerConfig& model,
                       const PromptStore& prompts);

/// One object per rank and round; all ranks together. The answers are the Jacobi decoder's in its
/// running-window form with the round's block size, on CPU float32 those of greedy decoding; they
/// do not depend on the rank count.
class TrainingProbe {
 public:
  /// Whether any check is asked for.
  [[nodiscard]] static bool wanted(const TrainConfig& config);

  /// Local. Reads prompts and problems. Throws ConfigError and DataError; ConfigError also when an
  /// answer would not fit the model's positions.
  TrainingProbe(const ProbeContext& context, const JobConfig& config, std::int32_t round,
                const PromptStore& prompts);

  /// Collective, after the update of a step. Does what is due: decodes with the weights that
  /// `store` gathers into `whole`, float32 [flat_size], or where that is empty into memory of its
  /// own, and adds the figures to the step's metrics. True when the round is to end here.
  [[nodiscard]] bool check(ParameterStore& store, TensorView whole, StepMetrics& metrics);
  /// Throws NumericalError, marked as everybody's, when the last check found a collapse that is to
  /// end the run.
  void expect_no_collapse() const;

  [[nodiscard]] const EarlyStopState& state() const noexcept { return early_stop_.state(); }
  /// Of a checkpoint; one that was measured on other problems is not taken, and logged.
  void restore(const EarlyStopState& state);

 private:
  /// Requests that are decoded together, equal on every rank.
  struct Set {
    std::vector<DecodeRequest> requests;
    std::optional<ProblemSet> problems;  ///< What they ask, where answers are graded.
  };
  /// Of one answer.
  struct Answer {
    double tokens = 0;
    double forwards = 0;
    double repetition = 0;
    double distinct = 0;
    double right = 0;
  };

  [[nodiscard]] std::unique_ptr<SequenceDecoder> decoder(const DecodeRequest& request) const;
  /// Collective. Of the set's requests in order.
  [[nodiscard]] std::vector<Answer> decode(const Set& set, const ConstTensorView& weights);
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
  std::string collapse_;  ///< What the last check found, where it is to end the run.
};

}  // namespace jforge
