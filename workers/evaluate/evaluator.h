#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer/chat_template.h"
#include "model/decoding/decoding_method.h"
#include "model/kernels/kernel_set.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/evaluate_config.h"

namespace jforge {

class DrafterFiles;

struct ModelUnderTest {
  std::string name;  ///< "base", "sft", "final": key in the summary.
  const TransformerConfig& config;
  const ParameterTable& table;
  ParameterReader read;
  std::filesystem::path directory;  ///< With tokenizer and template.
  WeightStorage decode_weights = WeightStorage::automatic;
  const DrafterFiles* drafter = nullptr;  ///< For the methods that need one.
};

struct EvaluationProgress {
  std::string task;  ///< This rank's last sample.
  std::string method;
  std::int64_t samples_done = 0;   ///< By all ranks in this call, as known here.
  std::int64_t samples_total = 0;  ///< Open when this call began.
  std::int64_t samples_here = 0;   ///< By this rank in this call.
  DecodingCost cost;               ///< This rank's cost for task and method.
};

struct EvaluationContext {
  const Communicator& comm;
  KernelSet& kernels;
  PhaseClock& clock;
  MemoryAccount& account;  ///< Charged with buffers while a call lasts.
  std::uint64_t seed = 0;
  ChatTemplateOptions chat_template = {};
  /// Called on every rank after every sample and at the end.
  std::function<void(const EvaluationProgress&)> on_progress = {};
  /// Refuse to replace results of other weights.
  bool refuse_other_weights = false;
  /// Leave finished samples in parts, as a stop would, for a later call to merge.
  bool samples_only = false;
  /// Write tuned block sizes into the model's jacobi_decoding.json too.
  bool records_tuning = false;
};

/// Collective. Evaluates every method on every task. Ranks lease samples, so faster ranks take
/// more; each decodes one task and method at a time. Writes under `evaluation_directory`:
///  - MODEL/TASK.METHOD.jsonl: samples in the benchmark's order (sample_record.h); on CPU fp32
///    independent of rank count, batch size, lease order and interruptions;
///  - MODEL/TASK.speed: measured repeats (speed_record.h);
///  - MODEL/model.json: the model of this name;
///  - summary.json (evaluation_summary.h), shared by all models.
/// Keeps results with equal settings (weights, tokenizer, problems, method, …) and replaces others.
/// Returns false if any rank was asked to stop; a later call, at any rank count, continues. The
/// clock's phases keep the caller's deadline. Throws ConfigError for unknown tasks, methods or
/// templates; DataError for bad benchmark or tokenizer files or a problem too long for the model.
[[nodiscard]] bool evaluate_model(const EvaluateConfig& config, const ModelUnderTest& model,
                                  const EvaluationContext& context,
                                  const std::filesystem::path& evaluation_directory);

/// As evaluate_model(), for given methods (a sweep's variants) with different labels.
[[nodiscard]] bool evaluate_methods(const EvaluateConfig& config,
                                    std::vector<DecodingMethod> methods,
                                    const ModelUnderTest& model, const EvaluationContext& context,
                                    const std::filesystem::path& evaluation_directory);

}  // namespace jforge
