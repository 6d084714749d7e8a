#pragma once

/// An evaluation's files on rank 0: what is left to do, merged samples, figures.

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
  std::string settings;  ///< 16 hex digits: hash of everything results depend on.
  SampleFiles files;

  bool current = false;             ///< Nothing is left to do.
  std::int64_t attempt = 1;         ///< Attempt of this call's parts.
  std::vector<PromptId> done = {};  ///< Finished by earlier calls.

  [[nodiscard]] const std::string& task() const noexcept { return set.choice.label; }
  /// All sample ids, by problem, then by sample.
  [[nodiscard]] std::vector<PromptId> samples() const;
};

/// For rank 0 only. `directory`: the evaluation's.
class EvaluationStore {
 public:
  EvaluationStore(std::filesystem::path directory, std::string model, std::uint64_t seed)
      : directory_(std::move(directory)), model_(std::move(model)), seed_(seed) {}

  [[nodiscard]] std::filesystem::path model_directory() const { return directory_ / model_; }
  /// Records in MODEL/model.json that its results belong to these weights. If they belong to
  /// others, throws ConfigError if `refuse`, and else removes their figures from the summary first,
  /// so that figures never stand under foreign weights.
  void claim(const std::string& weights, const std::filesystem::path& source, bool refuse) const;
  /// Sets what is left to do. Marks the model incomplete unless the run is current.
  void plan(MethodRun& run) const;
  /// Merges samples of earlier attempts with `lines`, those that each rank has finished in this
  /// one, and sets the figures: summarise_samples(), the method's settings, `extra`, `ranks` and
  /// `batch_prompts` (null unless equal for all samples). A baseline with new settings removes the
  /// task's comparisons with the old one.
  void merge(const MethodRun& run, const std::vector<std::string>& lines,
             const nlohmann::ordered_json& extra) const;
  /// Sets disagreements_with_ar of one task's methods, if the baseline is among them.
  void compare(const std::vector<const MethodRun*>& runs) const;
  /// Sets "speed" of a method: speed_figures() for each batch size.
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
