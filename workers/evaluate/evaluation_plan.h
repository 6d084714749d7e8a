#pragma once

/// What an evaluation consists of: tasks × methods of one model, and what of each is left to do.

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

/// Throws ConfigError where `name` is no folder's.
void expect_model_name(const std::string& name);

/// What can be known of an evaluation before there is a model to evaluate, so that nobody trains
/// for days towards one that is refused: the problems, as the tokenizer and template of
/// `model_directory` encode them for a model of this shape, and with `programs` that they can be
/// run where a task has some. Throws as evaluate_model().
void expect_evaluable(const EvaluateConfig& config, const TransformerConfig& model,
                      const std::filesystem::path& model_directory,
                      const ChatTemplateOptions& chat_template, bool programs);

/// Equal on every rank. Its runs refer to the methods and problem sets that it holds.
class EvaluationPlan {
 public:
  /// Local. Reads tokenizer and problems; every problem must fit the model's positions under every
  /// method. `model_directory` is where the model's results lie. Throws ConfigError and DataError
  /// as evaluate_model().
  EvaluationPlan(const EvaluateConfig& config, std::vector<DecodingMethod> methods,
                 const ModelUnderTest& model, const ChatTemplateOptions& chat_template,
                 const std::filesystem::path& model_directory);
  EvaluationPlan(const EvaluationPlan&) = delete;
  EvaluationPlan& operator=(const EvaluationPlan&) = delete;

  /// Collective. Throws DataError where a rank has read something else than rank 0.
  void expect_same(const Communicator& comm) const;
  /// Collective. Rank 0 finds out what is left of each run; all ranks hold it then. True when a
  /// stop was asked for.
  [[nodiscard]] bool find_open_work(const Communicator& comm, const EvaluationStore& store,
                                    bool refuse_other_weights);

  [[nodiscard]] const ModelUnderTest& model() const noexcept { return model_; }
  [[nodiscard]] const BytePairTokenizer& tokenizer() const noexcept { return encoder_.tokenizer(); }
  [[nodiscard]] const std::string& weights_hash() const noexcept { return weights_hash_; }
  [[nodiscard]] const std::vector<ProblemSet>& sets() const noexcept { return sets_; }
  /// Positions the longest request needs.
  [[nodiscard]] std::int64_t capacity() const noexcept { return capacity_; }
  /// The model with cache memory for `slots` sequences of any run at once.
  [[nodiscard]] std::unique_ptr<InferenceTransformer> make_transformer(KernelSet& kernels,
                                                                       MemoryAccount& account,
                                                                       std::int32_t slots) const;
  /// Every task with every method, by task.
  [[nodiscard]] const std::vector<MethodRun>& runs() const noexcept { return runs_; }
  /// The runs of each task, in the order of the methods.
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
  std::int64_t capacity_ = 0;
  std::int64_t branch_rows_ = 0;
  std::vector<std::vector<std::int64_t>> pages_;  ///< Of the cache, for each sample of each run.
  std::vector<MethodRun> runs_;
};

}  // namespace jforge
