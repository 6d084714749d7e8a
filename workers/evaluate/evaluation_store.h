#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/decoding/decoding_method.h"
#include "workers/evaluate/problem_set.h"
#include "workers/evaluate/sample_record.h"

namespace jforge {

struct MethodRun {
  const ProblemSet& set;
  const DecodingMethod& method;
  std::string settings;  ///< 16 hex digits over everything that affects results.
  SampleFiles files;

  bool current = false;             ///< No work is open.
  std::int64_t attempt = 1;         ///< Attempt of this call's parts.
  std::vector<PromptId> done = {};  ///< Finished by earlier calls.

  [[nodiscard]] const std::string& task() const noexcept { return set.choice.label; }
  /// By problem, then by sample.
  [[nodiscard]] std::vector<PromptId> samples() const;
};

/// Rank 0's view of an evaluation's files.
class EvaluationStore {
 public:
  EvaluationStore(std::filesystem::path directory, std::string model, std::uint64_t seed)
      : directory_(std::move(directory)), model_(std::move(model)), seed_(seed) {}

  [[nodiscard]] std::filesystem::path model_directory() const { return directory_ / model_; }
  /// Records in MODEL/model.json that its results belong to `weights`. Results of other weights
  /// cause a ConfigError if `refuse`; otherwise their figures are removed from the summary first.
  void claim(const std::string& weights, const std::filesystem::path& source, bool refuse) const;
  /// Finds open work; if there is any, the model is no longer complete.
  void plan(MethodRun& run) const;
  /// Merges earlier samples with `lines`, finished by each rank in this attempt, and sets the
  /// figures: summarise_samples(), method settings, `extra`, and `ranks` and `batch_prompts` (null
  /// unless equal for all samples). A new baseline removes comparisons with the old one.
  void merge(const MethodRun& run, const std::vector<std::string>& lines,
             const nlohmann::ordered_json& extra) const;
  /// Sets disagreements_with_ar, if the baseline is among the runs of this task.
  void compare(const std::vector<const MethodRun*>& runs) const;
  /// Sets "speed": speed_figures() for each batch size.
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
