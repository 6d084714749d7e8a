#pragma once

/// Chooses decoding settings by tokens per second on this machine (METHOD.md §6.5). Every candidate
/// decodes a sample of requests once. The fastest of each method are then measured in turn with AR,
/// repeatedly (speed_record.h), and the fastest of these is the method's choice.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/decoding/decoding_method.h"
#include "workers/evaluate/evaluator.h"
#include "workers/evaluate/problem_set.h"
#include "workers/evaluate/speed_record.h"

namespace jforge {

struct TuningSettings {
  std::int32_t batch_prompts = 1;
  std::int32_t problems = 8;  ///< Requests of a pass; more if the batch needs them.
  std::int32_t repeats = 5;   ///< Of the fastest; at least 2.
};

struct TunedCandidate {
  DecodingMethod method;
  double tokens_per_forward = 0;  ///< Prefill excluded.
  double pass_cost = 0;           ///< Mean time of a forward, in those of AR.
  double tokens_per_second = 0;   ///< Of one rank, while all decode; without prefill.
  double speed_up = 1;            ///< Over AR.
  /// That of speed_up, if it was measured repeatedly.
  std::optional<SpeedInterval> interval;
};

struct Tuning {
  std::string machine;  ///< kind_of_rank()
  std::int32_t batch_prompts = 1;
  std::vector<TunedCandidate> candidates;  ///< AR, then in the order given.

  /// Returns the fastest candidate of `method`, or of all but AR.
  [[nodiscard]] const TunedCandidate& fastest(std::optional<std::string_view> method = {}) const;
  /// Returns the fastest of all; AR unless another's interval lies above 1.
  [[nodiscard]] const TunedCandidate& choice() const;
};

/// Returns AR, then the methods at each of the block sizes 2, 4, …, 64, those of several blocks
/// also with one or two blocks and one or four drafts verified at once, trees with all paths and
/// with the likely ones. Labels name what varies.
/// Leaves out methods that do not draft.
[[nodiscard]] std::vector<DecodingMethod> tuning_candidates(std::span<const std::string> methods,
                                                            const DecodingSettings& fixed,
                                                            std::uint64_t seed);
/// The same, but varies block sizes alone.
[[nodiscard]] std::vector<DecodingMethod> block_size_candidates(
    std::span<const std::string> methods, const DecodingSettings& fixed, std::uint64_t seed);

/// Collective. All ranks decode the same requests at the same time. `candidates` begin with AR.
/// Leaves candidates out that the model lacks positions for. Nothing if a stop was requested.
/// Throws DataError if no candidate fits.
[[nodiscard]] std::optional<Tuning> tune_decoding(const ModelUnderTest& model,
                                                  const EvaluationContext& context,
                                                  std::span<const DecodeRequest> requests,
                                                  std::vector<DecodingMethod> candidates,
                                                  const TuningSettings& settings);

/// Returns up to `count` requests of each task, evenly over its problems.
[[nodiscard]] std::vector<DecodeRequest> tuning_requests(const EvaluateConfig& config,
                                                         const ModelUnderTest& model,
                                                         const ChatTemplateOptions& chat_template,
                                                         std::int64_t count);

/// Collective. evaluate.block_size = "auto": returns the fastest block size at batch 1 of each of
/// config.methods that drafts. Rank 0 keeps them in `model_directory`/tuning.json, which a later
/// call with equal model, tasks and settings takes over, whatever its machine. Nothing if a stop
/// was requested.
[[nodiscard]] std::optional<std::map<std::string, std::int32_t>> tuned_block_sizes(
    const EvaluateConfig& config, const ModelUnderTest& model, const EvaluationContext& context,
    const std::filesystem::path& model_directory);

/// Returns a table of the candidates that were measured repeatedly, fastest first.
[[nodiscard]] std::string tuning_table(const Tuning& tuning);
/// Writes the choice into the model's jacobi_decoding.json, and the fastest block size of Jacobi
/// decoding if it was tuned at batch 1. False if the directory is no export.
bool record_tuning(const std::filesystem::path& model_directory, const Tuning& tuning);

}  // namespace jforge
