#pragma once

/// Measures decoding speeds on a few problems, apart from accuracy: every method in turn, again and
/// again, at batch 1 and at the evaluation's batch size (speed_record.h).

#include <cstdint>
#include <functional>
#include <memory>
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

/// How many problems are decoded at once, and of how many.
struct SpeedBatch {
  std::int32_t batch_prompts = 1;
  std::int32_t problems = 1;

  bool operator==(const SpeedBatch&) const = default;
};

/// The batches that a task's speeds are measured at: 1, over evaluate.speed_problems problems in
/// each repeat, and evaluate.batch_prompts, over as many as fill it; the second only where it is
/// another one. Empty where evaluate.speed_problems is 0.
[[nodiscard]] std::vector<SpeedBatch> speed_batches(const EvaluateConfig& config,
                                                    std::int64_t problems);

/// One rank's part of it. Every rank decodes the same problems at the same time, so speeds are
/// those of a rank beside the others of the job; the job's whole speed is `ranks` times as much.
/// Each repeat takes the problems behind those of the repeat before, behind the last the first
/// again: what repeats differ by is the machine's spells and the choice of problems.
class SpeedMeasurement {
 public:
  /// Everything must outlive it; its buffers are charged to `account`.
  SpeedMeasurement(const EvaluateConfig& config, const EvaluationPlan& plan,
                   const EvaluationContext& context, MemoryAccount& account);

  /// Collective. Measures what is left of one task's repeats; each is on disk when it is done, so
  /// that a later call goes on after the last. `task`: its runs; `set_figures` gets, on rank 0, a
  /// method's label and its figures, an array with an element for each batch (speed_figures).
  /// False when a stop was asked for.
  [[nodiscard]] bool run(
      const std::vector<const MethodRun*>& task,
      const std::function<void(const std::string&, nlohmann::ordered_json)>& set_figures);

 private:
  /// A repeat that is still to be measured.
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
  [[nodiscard]] bool decode(const MethodRun& run, const Open& open, SpeedPass& pass);
  void include_load(SpeedLoad& load) const;
  [[nodiscard]] bool root() const { return context_.comm.rank() == 0; }

  const EvaluateConfig& config_;
  const EvaluationPlan& plan_;
  const EvaluationContext& context_;
  MemoryAccount& account_;
  const double deadline_seconds_;
  std::int64_t steps_ = 0;
  std::unique_ptr<InferenceTransformer> transformer_;
};

}  // namespace jforge
