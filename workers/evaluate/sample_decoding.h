#pragma once

/// Decodes and grades an evaluation's open samples. Ranks lease samples; programs are graded in
/// parallel; every graded sample is written at once.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tasks/task.h"
#include "model/decoding/decode_engine.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/append_log.h"
#include "runtime/tensor/buffer.h"
#include "workers/evaluate/evaluate_config.h"
#include "workers/evaluate/evaluation_plan.h"
#include "workers/evaluate/evaluator.h"
#include "workers/evaluate/host_programs.h"
#include "workers/evaluate/sample_grader.h"
#include "workers/evaluate/work_queue.h"

namespace jforge {

class SampleDecoding {
 public:
  /// References must outlive it. Buffers are charged to `account`.
  SampleDecoding(const EvaluateConfig& config, const EvaluationPlan& plan,
                 const EvaluationContext& context, MemoryAccount& account);
  /// Ends running programs.
  ~SampleDecoding() { abandoned_ = true; }
  SampleDecoding(const SampleDecoding&) = delete;
  SampleDecoding& operator=(const SampleDecoding&) = delete;

  /// Collective. False if a stop was requested.
  [[nodiscard]] bool run();
  /// This rank's lines of `run` in this call, as in its part.
  [[nodiscard]] const std::string& lines(std::size_t run) const { return shares_[run].lines; }

 private:
  struct Share {
    std::optional<AppendLog> log = {};
    std::string lines = {};
    DecodingCost cost = {};
  };
  struct WorkItem {
    std::size_t run = 0;
    PromptId id = 0;
  };

  [[nodiscard]] std::vector<WorkItem> items_left() const;
  [[nodiscard]] std::vector<std::int64_t> group_ends() const;
  void build_grader();
  void build_transformer();
  void warm_up();
  void decode_leases(WorkQueue& queue);
  void decode_run(std::size_t run, WorkQueue& queue);
  void admit_leased(DecodeEngine& engine, std::size_t run, WorkQueue& queue);
  void hand_to_grader(std::size_t run, const DecodeResult& result,
                      const DecodeStatistics& statistics, WorkQueue& queue);
  [[nodiscard]] std::int32_t even_share(std::size_t run) const;
  [[nodiscard]] GradedSample decoded_sample(std::size_t run, const DecodeResult& result,
                                            const DecodeStatistics& statistics) const;
  void attend_grading(WorkQueue& queue);
  void commit_graded(WorkQueue& queue);
  void commit(const GradedSample& graded, WorkQueue& queue);
  void tell_progress(const MethodRun& run, const WorkQueue& queue);

  const EvaluateConfig& config_;
  const EvaluationPlan& plan_;
  const EvaluationContext& context_;
  MemoryAccount& account_;
  const double deadline_seconds_;
  std::vector<Share> shares_;  ///< By run of the plan.
  std::vector<WorkItem> items_;
  std::int64_t samples_here_ = 0;
  std::int64_t told_ = 0;  ///< samples_done at the last on_progress.
  std::atomic<bool> abandoned_ = false;
  std::atomic<std::uint64_t> waits_ = 0;  ///< Signs of life of programs.
  std::uint64_t grading_signs_ = 0;
  HostPrograms programs_;
  std::unique_ptr<CodeRunner> code_runner_;  ///< Null if no task runs code.
  std::optional<SampleGrader> grader_;
  std::unique_ptr<InferenceTransformer> transformer_;
};

}  // namespace jforge
