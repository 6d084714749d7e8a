#pragma once

/// Settings of the generation phase: [generate] of the configuration.

#include <cstdint>

#include "model/decoding/parallel_trajectory_decoder.h"
#include "model/transformer/cache_pages.h"
#include "model/transformer/transformer_config.h"
#include "workers/generate/trajectory_generator.h"

namespace jforge {

struct GenerateConfig {
  GenerationMethod method = GenerationMethod::sequential;
  FixedPointMethod fixed_point = FixedPointMethod::ar;  ///< Used by GenerationMethod::parallel.
  std::int64_t max_new_tokens = 2048;
  std::int32_t batch_prompts = 128;  ///< Prompts decoded at once per rank; does not change results.
  /// KV cache per rank in MB; with long prompts it limits how many are decoded at once. 0: enough
  /// for batch_prompts prompts. Does not change results.
  std::int64_t cache_mb = 0;
  StoredStates store_states = StoredStates::selected;
  std::int64_t prompts_per_lease = 256;  ///< A lease should take seconds to a minute.
  double lease_seconds = 600;  ///< A lease without progress for longer is given to another rank.

  /// Throws ConfigError naming the key.
  void validate() const;
  /// Returns how many pages of element type `cache` fit into cache_mb; INT64_MAX if cache_mb is 0.
  [[nodiscard]] std::int64_t most_cache_pages(const TransformerConfig& model, DType cache) const;
  /// Returns the pages that `batch` needs, limited by cache_mb. Throws ConfigError if cache_mb
  /// cannot hold the largest prompt of the batch.
  [[nodiscard]] std::int64_t cache_pages(const TransformerConfig& model, DType cache,
                                         const BatchPages& batch) const;
};

}  // namespace jforge
