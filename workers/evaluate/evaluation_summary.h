#pragma once

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

/// 95 % bootstrap interval: percentiles 2.5 and 97.5 of 1,000 resamples.
struct BootstrapInterval {
  double observed = 0;
  double low = 0;
  double high = 0;
};

/// Tokens per forward of all `problems`, which are resampled for the interval; reproducible, with
/// draws from the stream (seed, bootstrap). Nothing without forwards.
[[nodiscard]] std::optional<BootstrapInterval> bootstrap_tpf(std::span<const DecodingCost> problems,
                                                             std::uint64_t seed);

/// The slowest rank's seconds, summed over attempts, without samples lost in interruptions.
struct EvaluationSeconds {
  double decode = 0;
  double with_prefill = 0;
};
[[nodiscard]] EvaluationSeconds slowest_rank_seconds(std::span<const TimedSample> samples);

/// Figures of one model, task and method. Requires: `samples` sorted by index and sample.
///   accuracy (0–1)      share of right samples
///   accuracy_low, accuracy_high   95 % interval (wilson_interval over the problems)
///   base_accuracy       on the base tests alone, for tasks with additional tests
///   rule_accuracy       {"string": …, "minerva": …}, for tasks with several rules;
///                       accuracy uses the first
///   tpf                 Σ(tokens − 1) / Σ forwards: the prefill gives the first token
///   tpf_low, tpf_high   95 % interval (bootstrap_tpf)
///   tpf_mean            mean over samples with forwards of (tokens − 1) / forwards
///   tpf_with_prefill    Σ tokens / Σ(forwards + 1)
///   tokens_per_second   Σ(tokens − 1) of all ranks / slowest rank's seconds, no prefill
///   tokens_per_second_with_prefill   Σ tokens / slowest rank's seconds with prefill
///   n (problems), samples_per_problem, tokens, forwards, stopped_by_eos, timeouts, decode_seconds
/// Figures are null if their denominator is zero. Throws InternalError without samples or if
/// problems have different numbers of them.
[[nodiscard]] nlohmann::ordered_json summarise_samples(std::span<const TimedSample> samples,
                                                       std::uint64_t seed);

/// Counts problems whose first samples differ in tokens. Throws InternalError unless both hold the
/// same problems, sorted by index and sample.
[[nodiscard]] std::int64_t count_disagreements(const std::vector<SampleRecord>& baseline,
                                               const std::vector<SampleRecord>& other);

/// summary.json: {"models": {NAME: {TASK: {METHOD: figures}}}, "complete": [NAME, …]}. One writer
/// (rank 0) at a time.
class EvaluationSummary {
 public:
  /// XXH3-64 of TASK.METHOD.jsonl, 16 hex digits.
  static constexpr const char* kSamplesHash = "samples_xxh3";

  /// Throws DataError naming an existing file that is damaged or not a summary.
  explicit EvaluationSummary(const std::filesystem::path& evaluation_directory);
  /// Renames a damaged summary to *.damaged, with a warning.
  static void set_damaged_aside(const std::filesystem::path& evaluation_directory);

  [[nodiscard]] bool is_current(const std::string& model, const std::string& task,
                                const std::string& method, const std::string& settings) const;
  struct Place {
    std::string model, task, method;
  };
  /// In the file's order.
  void for_each(
      const std::function<void(const Place&, const nlohmann::ordered_json& figures)>& tell) const;
  /// Whether figures belong to a sample file with this hash.
  [[nodiscard]] bool holds_samples(const std::string& model, const std::string& task,
                                   const std::string& method, const std::string& hash) const;
  /// Throws InternalError if there are none.
  [[nodiscard]] const nlohmann::ordered_json& figures(const std::string& model,
                                                      const std::string& task,
                                                      const std::string& method) const;
  /// Taken from the figures; empty if unknown.
  [[nodiscard]] std::string weights_of(const std::string& model) const;
  /// Requires: `figures` contains "settings".
  void set(const std::string& model, const std::string& task, const std::string& method,
           nlohmann::ordered_json figures);
  void set_figure(const std::string& model, const std::string& task, const std::string& method,
                  const std::string& key, nlohmann::ordered_json value);
  void set_complete(const std::string& model, bool complete);
  /// Erases disagreements_with_ar and sets speed_up figures to null.
  void remove_comparisons(const std::string& model, const std::string& task);
  void remove(const std::string& model);
  /// Durable and sealed (runtime/text_seal.h); does nothing without changes.
  void publish();

 private:
  std::filesystem::path path_;
  nlohmann::ordered_json json_;
  nlohmann::ordered_json on_disk_;
};

}  // namespace jforge
