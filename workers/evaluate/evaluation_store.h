#pragma once

/// What rank 0 does with an evaluation's files: finds out what is left to do, merges what all ranks
/// have finished, and writes the figures.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/decoding/decoding_method.h"
#include "workers/evaluate/problem_set.h"
#include "workers/evaluate/sample_record.h"

namespace jforge {

/// One task and method of a model.
struct MethodRun {
  const ProblemSet& set;
  const DecodingMethod& method;
  std::string settings;  ///< 16 hex digits: everything the results depend on.
  SampleFiles files;

  bool current = false;             ///< Nothing is left to do.
  std::int64_t attempt = 1;         ///< Number of this call's parts.
  std::vector<PromptId> done = {};  ///< Sample ids that earlier calls have finished.

  [[nodiscard]] const std::string& task() const noexcept { return set.choice.label; }
  /// All of its samples in order: by problem, then by sample.
  [[nodiscard]] std::vector<PromptId> samples() const;
};

/// Rank 0's; the directory is the evaluation's.
class EvaluationStore {
 public:
  EvaluationStore(std::filesystem::path directory, std::string model, std::uint64_t seed)
      : directory_(std::move(directory)), model_(std::move(model)), seed_(seed) {}

  [[nodiscard]] std::filesystem::path model_directory() const { return directory_ / model_; }
  /// Records in MODEL/model.json that the files beside it are of these weights. Throws ConfigError
  /// when they are of others and `refuse` says so; without it the others' figures leave the summary
  /// first, so that none stand under the name of weights that they are not of.
  void claim(const std::string& weights, const std::filesystem::path& source, bool refuse) const;
  /// Fills in what is left to do. A run that is not current is no longer a complete model's.
  void plan(MethodRun& run) const;
  /// Merges the samples of earlier attempts with `lines`, what each rank has finished in this one,
  /// and sets the run's figures: those of summarise_samples, the method's settings, `extra`, and
  /// `ranks` and `batch_prompts`, each null where not all samples were made with the same. A
  /// baseline of other settings than before takes the comparisons with it out of the task's
  /// figures.
  void merge(const MethodRun& run, const std::vector<std::string>& lines,
             const nlohmann::ordered_json& extra) const;
  /// Sets disagreements_with_ar of one task's methods; nothing when the baseline is not among them.
  void compare(const std::vector<const MethodRun*>& runs) const;
  /// Sets a method's measured speeds (speed_figures for each batch size) as its "speed".
  void set_speed(const std::string& task, const std::string& method,
                 nlohmann::ordered_json figures) const;
  void set_complete() const;

 private:
  [[nodiscard]] std::vector<TimedSample> finished_samples(const MethodRun& run) const;

  std::filesystem::path directory_;
  std::string model_;
  std::uint64_t seed_;
};

}  // namespace jforge
