#pragma once

/// [generate] of the configuration.

#include <cstdint>

#include "model/transformer/cache_pages.h"
#include "model/transformer/transformer_config.h"
#include "workers/generate/trajectory_generator.h"

namespace jforge {

struct GenerateConfig {
  GenerationMethod method = GenerationMethod::sequential;
  std::int64_t max_new_tokens = 2048;
  std::int32_t batch_prompts = 128;  ///< Prompts decoded at once per rank; results do not change.
  /// KV cache per rank in MB; limits batches of long prompts. 0: enough for batch_prompts prompts.
  std::int64_t cache_mb = 0;
  StoredStates store_states = StoredStates::selected;
  std::int64_t prompts_per_lease = 256;  ///< A lease should take seconds to a minute.

  /// Throws ConfigError naming the key.
  void validate() const;
  /// Pages of element type `cache` that cache_mb allows.
  [[nodiscard]] std::int64_t most_cache_pages(const TransformerConfig& model, DType cache) const;
  /// Pages for `batch`, at most cache_mb. Throws ConfigError if its largest prompt does not fit.
  [[nodiscard]] std::int64_t cache_pages(const TransformerConfig& model, DType cache,
                                         const BatchPages& batch) const;
};

}  // namespace jforge
