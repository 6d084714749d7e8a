#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/decoding/decoding_method.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/comm/mpi_session.h"
#include "workers/evaluate/evaluate_config.h"
#include "workers/evaluate/evaluation_store.h"
#include "workers/evaluate/evaluator.h"
#include "workers/evaluate/problem_set.h"

namespace jforge {

/// Throws ConfigError if `name` cannot be a directory's name.
void expect_model_name(const std::string& name);

/// Checks before training that the evaluation can run: all problems, encoded with the tokenizer and
/// template of `model_directory`, must fit the model; with `programs`, a sandbox must work if a
/// task runs code. Throws as evaluate_model().
void expect_evaluable(const EvaluateConfig& config, const TransformerConfig& model,
                      const std::filesystem::path& model_directory,
                      const ChatTemplateOptions& chat_template, bool programs);

/// Hex hash over names and float32 values of all parameters.
[[nodiscard]] std::string hash_of_weights(const ModelUnderTest& model);

/// Equal on every rank. Runs refer to methods and problem sets held here.
class EvaluationPlan {
 public:
  /// Local. Every problem must fit the model's positions with every method. `model_directory`: of
  /// the model's results. Throws as evaluate_model().
  EvaluationPlan(const EvaluateConfig& config, std::vector<DecodingMethod> methods,
                 const ModelUnderTest& model, const EvaluationContext& context,
                 const std::filesystem::path& model_directory);
  EvaluationPlan(const EvaluationPlan&) = delete;
  EvaluationPlan& operator=(const EvaluationPlan&) = delete;

  /// Collective. Throws DataError if a rank has read other data than rank 0.
  void expect_same(const Communicator& comm) const;
  /// Collective. Rank 0 finds and shares each run's open work. True if a stop was requested.
  [[nodiscard]] bool find_open_work(const Communicator& comm, const EvaluationStore& store,
                                    bool refuse_other_weights);

  [[nodiscard]] const ModelUnderTest& model() const noexcept { return model_; }
  [[nodiscard]] const BytePairTokenizer& tokenizer() const noexcept { return encoder_.tokenizer(); }
  [[nodiscard]] const std::string& weights_hash() const noexcept { return weights_hash_; }
  [[nodiscard]] const std::vector<ProblemSet>& sets() const noexcept { return sets_; }
  /// The model with a KV cache for `slots` sequences of any run.
  [[nodiscard]] std::unique_ptr<InferenceTransformer> make_transformer(KernelSet& kernels,
                                                                       MemoryAccount& account,
                                                                       std::int32_t slots) const;
  [[nodiscard]] const std::vector<MethodRun>& runs() const noexcept { return runs_; }
  [[nodiscard]] std::vector<std::vector<const MethodRun*>> runs_by_task() const;

 private:
  void check_capacity(const ProblemSet& set);
  void make_runs(const std::filesystem::path& model_directory);
  [[nodiscard]] std::string settings_of(const ProblemSet& set, const DecodingMethod& method) const;

  const ModelUnderTest& model_;
  std::vector<DecodingMethod> methods_;
  TaskEncoder encoder_;
  std::vector<ProblemSet> sets_;
  std::string weights_hash_;
  const DrafterSource* adapter_ = nullptr;  ///< If a method needs it.
  std::string drafter_hash_;
  BFloat16Sums bfloat16_sums_;
  std::int64_t capacity_ = 0;  ///< Positions of the longest request.
  std::int64_t branch_rows_ = 0;
  std::vector<std::vector<std::int64_t>> pages_;  ///< Cache pages per run and sample.
  std::vector<MethodRun> runs_;
};

}  // namespace jforge
