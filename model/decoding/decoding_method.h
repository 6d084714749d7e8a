#pragma once

/// Registry of decoding methods; their source files add the entries (method_entry_internal.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoding/decoding_settings.h"
#include "model/decoding/sequence_decoder.h"
#include "model/transformer/drafter.h"

namespace jforge {

/// A method with its settings bound.
struct DecodingMethod {
  std::string name;
  std::string label;  ///< Shown in results and file names: the name or variant_label().
  /// Affects results, with model and request. Always has `block_size` and `window`.
  nlohmann::ordered_json settings;
  /// Each is a request whose id selects the random stream (problem_set.h, sample_id).
  std::int32_t samples_per_problem = 1;
  /// Whether tokens must equal the baseline's under the same sampling (CPU, float32).
  bool equals_baseline = true;
  DrafterNeed need = DrafterNeed::nothing;
  [[nodiscard]] bool needs_drafter() const noexcept { return need != DrafterNeed::nothing; }
  /// Replaces the sampling of requests given to `make`.
  SamplingOptions sampling = {};
  std::function<std::unique_ptr<SequenceDecoder>(DecodeRequest)> make;
};

/// Returns the method `name`:
///  - "ar": one token per forward, the baseline;
///  - "draft": the model verifies what its adapter or head proposes (§6.7);
///  - "draft_lookup": "draft" with the draft of "prompt_lookup" beside it;
///  - "draft_tree": of a head's proposals for block_size − 1 positions the likeliest paths, in
///    tree_rows rows;
///  - "draft_tree_lookup": "draft_tree" with the draft of "prompt_lookup" beside it;
///  - "jacobi": running window (METHOD.md §6.2), for plain generation;
///  - "jacobi_shrinking": shrinking window, which makes trajectories (§1);
///  - "mr": multi-block decoding with rejection recycling (§6.3). Variant "paper":
///    SpawnMode::clone; "authors": also pseudo_on_every_row, and the pool holds verification_size
///    sequences;
///  - "mr_lookup": "mr" whose first candidate is the draft of "prompt_lookup";
///  - "prompt_lookup": drafts copied from prompt and answer (§6.3), a baseline.
/// All have the sampling keys (SamplingOptions). Missing keys take defaults; other methods' keys
/// are ignored. `seed` is for drafts and sampling. Throws ConfigError for an unknown name or bad
/// value.
[[nodiscard]] DecodingMethod make_decoding_method(std::string_view name,
                                                  const DecodingSettings& settings,
                                                  std::uint64_t seed);

inline constexpr std::string_view kBaselineMethod = "ar";

/// Sorted.
[[nodiscard]] std::vector<std::string> decoding_method_names();
/// Sorted. Throws ConfigError for an unknown name.
[[nodiscard]] std::vector<std::string> decoding_method_keys(std::string_view name);
/// Throws ConfigError, beginning with `shown`, if the method lacks `key`.
void expect_method_has(std::string_view method, const std::string& key, const std::string& shown);
/// Returns, for example, "jacobi.block_size=8".
[[nodiscard]] std::string variant_label(std::string_view name, const DecodingSettings& settings);

}  // namespace jforge
