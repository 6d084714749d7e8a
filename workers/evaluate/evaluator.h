#pragma once

/// Distributed evaluation of one model: tasks × methods × problems leased over ranks, per-sample
/// records that a later call continues, and a summary that several models share.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer/chat_template.h"
#include "model/decoding/decoding_method.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/evaluate_config.h"

namespace jforge {

struct ModelUnderTest {
  std::string name;  ///< "base", "sft", "final": the key in the summary.
  const TransformerConfig& config;
  const ParameterTable& table;
  ConstTensorView weights;          ///< Flat float32.
  std::filesystem::path directory;  ///< Hugging Face directory with tokenizer and template.
  WeightStorage decode_weights = WeightStorage::automatic;
};

/// How far an evaluation is.
struct EvaluationProgress {
  std::string task;                ///< Of the sample finished last on this rank.
  std::string method;              ///< Of the same.
  std::int64_t samples_done = 0;   ///< By all ranks, of all tasks and methods, as known here.
  std::int64_t samples_total = 0;  ///< What was left to do when this call began.
  std::int64_t samples_here = 0;   ///< By this rank in this call.
  DecodingCost cost;               ///< Of this rank for this task and method.
};

struct EvaluationContext {
  const Communicator& comm;
  KernelSet& kernels;
  PhaseClock& clock;
  std::uint64_t seed = 0;
  ChatTemplateOptions chat_template = {};
  /// Told on every rank after every finished sample, and at the end.
  std::function<void(const EvaluationProgress&)> on_progress = {};
  /// Refuse a name under which results of other weights lie, instead of replacing them.
  bool refuse_other_weights = false;
};

/// Collective. Evaluates every method on every task of the configuration. Ranks lease samples, so
/// a quick rank takes more; each decodes one task and method at a time. Under
/// `evaluation_directory`:
///  - MODEL/TASK.METHOD.jsonl: one line per sample in the benchmark's order (sample_record.h); on
///    CPU fp32 its bytes do not depend on rank count, batch size, lease order or interruptions;
///  - MODEL/TASK.speed: the repeats that speeds come from (speed_record.h);
///  - MODEL/model.json: which model the name stands for;
///  - summary.json: {"models": {NAME: {TASK: {METHOD: …}}}, "complete": [NAME, …]}
///    (evaluation_summary.h), shared by all models; `complete` names those fully evaluated.
/// What is there already for the same settings (weights, tokenizer, problems, method, …) is kept,
/// what is there for others is replaced. False when a stop was requested on any rank: finished
/// samples stay, and the next call, at any rank count, goes on with the others. The phase shown in
/// the clock while it runs keeps the deadline that the caller entered with.
/// Throws ConfigError for unknown tasks, methods or templates, DataError for bad benchmark or
/// tokenizer files and for a problem that does not fit the model's positions, naming it.
[[nodiscard]] bool evaluate_model(const EvaluateConfig& config, const ModelUnderTest& model,
                                  const EvaluationContext& context,
                                  const std::filesystem::path& evaluation_directory);

/// As evaluate_model with methods of the caller's (a sweep's variants) instead of the
/// configuration's; their labels must differ.
[[nodiscard]] bool evaluate_methods(const EvaluateConfig& config,
                                    std::vector<DecodingMethod> methods,
                                    const ModelUnderTest& model, const EvaluationContext& context,
                                    const std::filesystem::path& evaluation_directory);

}  // namespace jforge
