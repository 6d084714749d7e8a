#pragma once

/// Settings of the generating phase ([generate] of the configuration).

#include <cstdint>

#include "model/decoding/parallel_trajectory_decoder.h"
#include "model/transformer/cache_pages.h"
#include "model/transformer/transformer_config.h"
#include "workers/generate/trajectory_generator.h"

namespace jforge {

struct GenerateConfig {
  GenerationMethod method = GenerationMethod::sequential;
  FixedPointMethod fixed_point = FixedPointMethod::ar;  ///< Of GenerationMethod::parallel.
  std::int64_t max_new_tokens = 2048;
  std::int32_t batch_prompts = 128;  ///< Prompts decoded at once per rank; does not change results.
  /// Key/value cache of a rank in MB, in which fewer prompts are decoded at once where they are
  /// long; 0: as much as batch_prompts of them can need. Does not change results.
  std::int64_t cache_mb = 0;
  StoredStates store_states = StoredStates::selected;
  std::int64_t prompts_per_lease = 256;  ///< A lease should take seconds to a minute.
  double lease_seconds = 600;  ///< A lease without progress for longer is given out again.

  /// Throws ConfigError naming the key.
  void validate() const;
  /// Pages that cache_mb allows, of elements of type `cache`.
  [[nodiscard]] std::int64_t most_cache_pages(const TransformerConfig& model, DType cache) const;
  /// Pages of the cache of a batch of prompts. Throws ConfigError where cache_mb is too little for
  /// the one that takes most.
  [[nodiscard]] std::int64_t cache_pages(const TransformerConfig& model, DType cache,
                                         const BatchPages& batch) const;
};

}  // namespace jforge
