#pragma once

/// Distributed evaluation of one model: tasks × methods, problems shared out over ranks, per-sample
/// records that a later call continues, and a summary that several models share.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

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
};

/// How far this rank is with one task and method.
struct EvaluationProgress {
  std::string task;
  std::string method;
  std::int64_t samples_done = 0;   ///< Finished by this rank in this call.
  std::int64_t samples_total = 0;  ///< This rank's share of what was left to do.
  std::int64_t tokens = 0;         ///< Generated for the finished ones.
  std::int64_t forwards = 0;       ///< Prefill excluded.
};

struct EvaluationContext {
  const Communicator& comm;
  KernelSet& kernels;
  PhaseClock& clock;
  std::uint64_t seed = 0;
  bool force_chatml = false;
  /// Told on every rank after every finished sample.
  std::function<void(const EvaluationProgress&)> on_progress = {};
};

/// Collective. Evaluates on every task and method of the configuration. Under
/// `evaluation_directory`:
///  - MODEL/TASK.METHOD.jsonl: one line per problem in the benchmark's order (sample_record.h); on
///    CPU fp32 its bytes do not depend on rank count, batch size or interruptions;
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

}  // namespace jforge
