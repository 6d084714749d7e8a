#pragma once

/// The decoding methods that can be evaluated, by name.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoding/sequence_decoder.h"
#include "workers/evaluate/evaluate_config.h"

namespace jforge {

/// One method with its settings bound.
struct DecodingMethod {
  std::string name;  ///< As in the configuration and in results.
  /// What results depend on besides model and request, and what summaries show: `block_size` and
  /// `window` ("none" where a method has no draft), and whatever else the method has.
  nlohmann::ordered_json settings;
  /// A decoder for one request.
  std::function<std::unique_ptr<SequenceDecoder>(DecodeRequest)> make;
};

/// The method `name`:
///  - "ar": greedy, one token per forward: the baseline;
///  - "jacobi": Jacobi iteration in the running-window form, which is the one for plain generation
///    (algorithm.md §6.2): the draft is refilled to evaluate.block_size after every forward;
///  - "jacobi_shrinking": the form that makes trajectories (§1): a draft shrinks until its block is
///    complete.
/// `seed` is that of the drafts' random streams. Throws ConfigError listing the known names.
[[nodiscard]] DecodingMethod make_decoding_method(std::string_view name,
                                                  const EvaluateConfig& config, std::uint64_t seed);

/// Name of the method that others are compared with.
inline constexpr std::string_view kBaselineMethod = "ar";

/// All names, sorted.
[[nodiscard]] std::vector<std::string> decoding_method_names();

}  // namespace jforge
