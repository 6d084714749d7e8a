#pragma once

/// Figures over evaluated samples, and summary.json, which several models share.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workers/evaluate/sample_record.h"

namespace jforge {

/// A figure and its 95 % bootstrap interval (percentiles 2.5 and 97.5 of 1,000 resamples).
struct BootstrapInterval {
  double observed = 0;
  double low = 0;
  double high = 0;
};

/// Tokens per forward of all `problems` together (DecodingCost) and its interval, problems
/// resampled. Draws come from the stream (seed, bootstrap), so equal data give equal figures.
/// Nothing where there is no forward.
[[nodiscard]] std::optional<BootstrapInterval> bootstrap_tpf(std::span<const DecodingCost> problems,
                                                             std::uint64_t seed);

/// Seconds of a whole evaluation: in each attempt the slowest rank's, summed over attempts. Time
/// spent on samples that an interruption dropped after the rank's last finished one is not known
/// and left out.
struct EvaluationSeconds {
  double decode = 0;
  double with_prefill = 0;
};
[[nodiscard]] EvaluationSeconds slowest_rank_seconds(std::span<const TimedSample> samples);

/// The figures of one model, task and method, over samples sorted by index and sample:
///   accuracy (0–1)      share of samples that are right
///   accuracy_low, accuracy_high   its 95 % interval (wilson_interval over the problems)
///   base_accuracy       on the base tests alone, of tasks that add further ones
///   rule_accuracy       {"string": …, "minerva": …}: by each rule, of tasks that judge
///                       by several; accuracy is the first one's
///   tpf                 Σ(tokens − 1) / Σ forwards: the prefill gives the first token
///   tpf_low, tpf_high   its 95 % interval (bootstrap_tpf)
///   tpf_mean            mean over samples of (tokens − 1) / forwards
///   tpf_with_prefill    Σ tokens / Σ(forwards + 1)
///   tokens_per_second   Σ(tokens − 1) of all ranks / slowest rank's seconds (above), no prefill
///   tokens_per_second_with_prefill   Σ tokens / slowest rank's seconds with prefill
///   n (problems), samples_per_problem, tokens, forwards, stopped_by_eos, timeouts, decode_seconds
/// Samples without a forward (prefill gave the whole answer) do not count in tpf_mean. A figure
/// that does not exist (no forward, no measurable time) is null. Throws InternalError for no sample
/// and for problems of different numbers of samples.
[[nodiscard]] nlohmann::ordered_json summarise_samples(std::span<const TimedSample> samples,
                                                       std::uint64_t seed);

/// Problems whose first sample's tokens differ; `baseline` and `other` hold the same problems,
/// sorted by index and sample. Throws InternalError when they do not.
[[nodiscard]] std::int64_t count_disagreements(const std::vector<SampleRecord>& baseline,
                                               const std::vector<SampleRecord>& other);

/// summary.json of an evaluation directory: {"models": {NAME: {TASK: {METHOD: figures}}},
/// "complete": [NAME, …]}. One writer (rank 0) at a time.
class EvaluationSummary {
 public:
  /// Figure: XXH3-64 of the method's TASK.METHOD.jsonl, 16 hex digits.
  static constexpr const char* kSamplesHash = "samples_xxh3";

  /// Reads what is there. Throws DataError naming the file when it is damaged or no such summary.
  explicit EvaluationSummary(const std::filesystem::path& evaluation_directory);
  /// Renames a summary that does not hold to *.damaged and says so: its models are evaluated anew.
  static void set_damaged_aside(const std::filesystem::path& evaluation_directory);

  /// Whether figures for this settings hash are there.
  [[nodiscard]] bool is_current(const std::string& model, const std::string& task,
                                const std::string& method, const std::string& settings) const;
  /// Where a method's figures stand.
  struct Place {
    std::string model, task, method;
  };
  /// Tells all figures, in the file's order.
  void for_each(
      const std::function<void(const Place&, const nlohmann::ordered_json& figures)>& tell) const;
  /// Whether a method's figures are of a sample file with this hash.
  [[nodiscard]] bool holds_samples(const std::string& model, const std::string& task,
                                   const std::string& method, const std::string& hash) const;
  /// The figures of a method. Throws InternalError when there are none.
  [[nodiscard]] const nlohmann::ordered_json& figures(const std::string& model,
                                                      const std::string& task,
                                                      const std::string& method) const;
  /// The weights that a model's figures are of, as they say; empty where they say nothing.
  [[nodiscard]] std::string weights_of(const std::string& model) const;
  /// `figures` must hold "settings".
  void set(const std::string& model, const std::string& task, const std::string& method,
           nlohmann::ordered_json figures);
  /// Adds one figure to a method that is there.
  void set_figure(const std::string& model, const std::string& task, const std::string& method,
                  const std::string& key, nlohmann::ordered_json value);
  void set_complete(const std::string& model, bool complete);
  /// Takes out what a task's methods have by comparison with the baseline: disagreements_with_ar,
  /// and the speed_up figures of their speeds, which are null then.
  void remove_comparisons(const std::string& model, const std::string& task);
  /// Takes all figures of a model out, if there are any.
  void remove(const std::string& model);
  /// Writes durably and sealed (runtime/text_seal.h), unless nothing has changed since it was read.
  void publish();

 private:
  std::filesystem::path path_;
  nlohmann::ordered_json json_;
  nlohmann::ordered_json on_disk_;
};

}  // namespace jforge
