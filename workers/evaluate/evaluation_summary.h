#pragma once

/// Figures over evaluated samples, and summary.json, which several models share.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workers/evaluate/sample_record.h"

namespace jforge {

/// A figure and its 95 % bootstrap interval (percentiles 2.5 and 97.5 of 1,000 resamples).
struct BootstrapInterval {
  double mean = 0;
  double low = 0;
  double high = 0;
};

/// Interval of the mean of `values`, one for each problem. Draws come from the stream (seed,
/// bootstrap), so equal data give equal figures. Throws InternalError for no value.
[[nodiscard]] BootstrapInterval bootstrap_mean(std::span<const double> values, std::uint64_t seed);

/// Interval of (tokens / forwards of `other`) / (tokens / forwards of `baseline`), problems
/// resampled in pairs. Both hold the same problems, sorted by index. Nothing where a side has no
/// forward. Throws InternalError for other problems.
[[nodiscard]] std::optional<BootstrapInterval> bootstrap_tpf_ratio(
    const std::vector<SampleRecord>& baseline, const std::vector<SampleRecord>& other,
    std::uint64_t seed);

/// pass@k = 1 − C(n − c, k) / C(n, k): the unbiased estimate from n samples of one problem, c of
/// them right (Chen et al., "Evaluating large language models trained on code", 2021, equation 1).
/// 1 ≤ k ≤ n.
[[nodiscard]] double pass_at_k(std::int64_t samples, std::int64_t right, std::int64_t k);

/// Seconds of a whole evaluation: in each attempt the slowest rank's, summed over attempts. Time
/// spent on samples that an interruption dropped after the rank's last finished one is not known
/// and left out.
struct EvaluationSeconds {
  double decode = 0;
  double with_prefill = 0;
};
[[nodiscard]] EvaluationSeconds slowest_rank_seconds(std::span<const TimedSample> samples);

/// The figures of one model, task and method, over samples sorted by index and sample:
///   accuracy (0–1), accuracy_low, accuracy_high   (pass@1; problems are resampled)
///   base_accuracy       on the base tests alone, of tasks that add further ones
///   pass_at             {"1": …, "10": …} where problems have several samples
///   tpf                 all tokens / all forwards, prefill excluded
///   tpf_mean            mean over samples of tokens / forwards
///   tokens_per_second   tokens of all ranks / slowest rank's seconds (above) without prefill
///   tokens_per_second_with_prefill
///   n (problems), samples_per_problem, tokens, forwards, stopped_by_eos, timeouts, decode_seconds
/// Samples without a forward (prefill predicted the end) count in tpf, not in tpf_mean. A figure
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
  /// Reads what is there. Throws DataError naming the file when it is not such a summary.
  explicit EvaluationSummary(const std::filesystem::path& evaluation_directory);

  /// Whether figures for this settings hash are there.
  [[nodiscard]] bool is_current(const std::string& model, const std::string& task,
                                const std::string& method, const std::string& settings) const;
  /// The figures of a method. Throws InternalError when there are none.
  [[nodiscard]] const nlohmann::ordered_json& figures(const std::string& model,
                                                      const std::string& task,
                                                      const std::string& method) const;
  /// `figures` must hold "settings".
  void set(const std::string& model, const std::string& task, const std::string& method,
           nlohmann::ordered_json figures);
  /// Adds one figure to a method that is there.
  void set_figure(const std::string& model, const std::string& task, const std::string& method,
                  const std::string& key, nlohmann::ordered_json value);
  void set_complete(const std::string& model, bool complete);
  /// Takes all figures of a model out, if there are any.
  void remove(const std::string& model);
  /// Writes durably, unless nothing has changed since it was read.
  void publish();

 private:
  std::filesystem::path path_;
  nlohmann::ordered_json json_;
  nlohmann::ordered_json on_disk_;
};

}  // namespace jforge
