#pragma once

/// Measures decoding speeds separately from accuracy: all methods in turn, repeatedly
/// (speed_record.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/decoding/decode_engine.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/tensor/buffer.h"
#include "workers/evaluate/evaluate_config.h"
#include "workers/evaluate/evaluation_plan.h"
#include "workers/evaluate/evaluator.h"
#include "workers/evaluate/speed_record.h"

namespace jforge {

struct SpeedBatch {
  std::int32_t batch_prompts = 1;
  std::int32_t problems = 1;

  bool operator==(const SpeedBatch&) const = default;
};

struct MeasuredPass {
  SpeedPass speed;
  std::int64_t forwards = 0;  ///< Prefill excluded; sum over ranks.
};

/// Collective. Every rank decodes the requests, at most `batch_prompts` at once. Nothing if a stop
/// was requested.
[[nodiscard]] std::optional<MeasuredPass> measure_pass(const EvaluationContext& context,
                                                       DecodeModel& model,
                                                       const DecodingMethod& method,
                                                       std::span<const DecodeRequest> requests,
                                                       std::int32_t batch_prompts);

/// Batch 1 over evaluate.speed_problems problems per repeat, and evaluate.batch_prompts, if
/// greater, over enough problems to fill it. Empty if speed_problems is 0.
[[nodiscard]] std::vector<SpeedBatch> speed_batches(const EvaluateConfig& config,
                                                    std::int64_t problems);

/// All ranks decode the same problems at the same time: figures are the speed of one rank with the
/// others running, and the job's is `ranks` times that. Each repeat takes the next problems,
/// cyclically.
class SpeedMeasurement {
 public:
  /// References must outlive it. Buffers are charged to `account`.
  SpeedMeasurement(const EvaluateConfig& config, const EvaluationPlan& plan,
                   const EvaluationContext& context, MemoryAccount& account);

  /// Collective. Measures the open repeats of one task, whose runs are `task`. Each is written when
  /// done, so that a later call continues. On rank 0 `set_figures` gets a method's label and
  /// speed_figures() for each batch. False if a stop was requested.
  [[nodiscard]] bool run(
      const std::vector<const MethodRun*>& task,
      const std::function<void(const std::string&, nlohmann::ordered_json)>& set_figures);

 private:
  struct Open {
    SpeedBatch batch;
    std::int32_t repeat = 0;
  };

  [[nodiscard]] std::string settings_of(const std::vector<const MethodRun*>& task,
                                        const std::vector<SpeedBatch>& batches) const;
  [[nodiscard]] std::string place() const;
  [[nodiscard]] bool measure(const std::vector<const MethodRun*>& task,
                             const std::vector<Open>& open, SpeedRepeat repeat,
                             const SpeedFile& file);
  [[nodiscard]] bool measure_repeat(const std::vector<const MethodRun*>& task, const Open& open,
                                    SpeedRepeat& repeat);
  [[nodiscard]] std::optional<MeasuredPass> decode(const MethodRun& run, const Open& open);
  void include_load(SpeedLoad& load) const;
  [[nodiscard]] bool root() const { return context_.comm.rank() == 0; }

  const EvaluateConfig& config_;
  const EvaluationPlan& plan_;
  const EvaluationContext& context_;
  MemoryAccount& account_;
  const double deadline_seconds_;
  std::unique_ptr<InferenceTransformer> transformer_;
};

}  // namespace jforge
