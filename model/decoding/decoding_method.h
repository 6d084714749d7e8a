#pragma once

/// The decoding methods by name, with the settings that each of them has. A method's source file
/// adds its rows (method_entry_internal.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoding/decoding_settings.h"
#include "model/decoding/sequence_decoder.h"

namespace jforge {

/// One method with its settings bound.
struct DecodingMethod {
  std::string name;   ///< As in the registry.
  std::string label;  ///< In results and file names: the name, or with settings (variant_label).
  /// What results depend on besides model and request, and what summaries show: `block_size` and
  /// `window` ("none" where a method has no draft), and whatever else the method has.
  nlohmann::ordered_json settings;
  /// Completions of each problem, decoded from requests of their own (problem_set.h, sample_id);
  /// the request's id names a sample's random stream.
  std::int32_t samples_per_problem = 1;
  /// Whether its tokens must be the baseline's, where that samples as it does (CPU float32).
  bool equals_baseline = true;
  /// How tokens are chosen; of the requests that `make` is given it takes the place.
  SamplingOptions sampling = {};
  /// A decoder for one request.
  std::function<std::unique_ptr<SequenceDecoder>(DecodeRequest)> make;
};

/// The method `name`, label as its name:
///  - "ar": one token per forward: the baseline;
///  - "jacobi": Jacobi iteration in the running-window form, which is the one for plain generation
///    (METHOD.md §6.2): the draft is refilled to block_size after every forward;
///  - "jacobi_shrinking": the form that makes trajectories (§1): a draft shrinks until its block is
///    complete;
///  - "lookahead": lookahead decoding (§6.3), a baseline;
///  - "mr": multi-block decoding with rejection recycling (§6.3). With variant "paper" pseudo
///  blocks
///    begin as copies of the real-active draft; with "authors" they also stand on every row, and
///    the pool has verification_size sequences;
///  - "mr_lookup": the same with what "prompt_lookup" would draft as the first candidate;
///  - "prompt_lookup": drafts copied from prompt and answer (§6.3), a baseline.
/// Keys that the method has are taken from `settings`, or their defaults; others are ignored. All
/// have the keys of sampling (temperature, top_p, top_k, repetition_penalty; SamplingOptions).
/// `seed` is that of the random streams of drafts and sampling. Throws ConfigError listing the
/// known names, or for a value that the method refuses.
[[nodiscard]] DecodingMethod make_decoding_method(std::string_view name,
                                                  const DecodingSettings& settings,
                                                  std::uint64_t seed);

/// Name of the method that others are compared with.
inline constexpr std::string_view kBaselineMethod = "ar";

/// All names, sorted.
[[nodiscard]] std::vector<std::string> decoding_method_names();
/// Keys that the method has, sorted. ConfigError as make_decoding_method.
[[nodiscard]] std::vector<std::string> decoding_method_keys(std::string_view name);
/// Throws ConfigError that begins with `shown`, and names what there is, where `method` does not
/// have `key`.
void expect_method_has(std::string_view method, const std::string& key, const std::string& shown);
/// "jacobi.block_size=8": the method's name and settings that tell it from its other variants.
[[nodiscard]] std::string variant_label(std::string_view name, const DecodingSettings& settings);

}  // namespace jforge
