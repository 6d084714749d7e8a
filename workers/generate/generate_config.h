#pragma once

/// Settings of the generating phase ([generate] of the configuration).

#include <cstdint>

#include "workers/generate/trajectory_generator.h"

namespace jforge {

struct GenerateConfig {
  GenerationMethod method = GenerationMethod::sequential;
  FixedPointMethod fixed_point = FixedPointMethod::ar;  ///< Of GenerationMethod::parallel.
  std::int64_t max_new_tokens = 2048;
  std::int32_t batch_prompts = 128;  ///< Prompts decoded at once per rank; does not change results.
  StoredStates store_states = StoredStates::selected;
  std::int64_t prompts_per_lease = 256;  ///< A lease should take seconds to a minute.
  double lease_seconds = 600;  ///< A lease without progress for longer is given out again.

  /// Throws ConfigError naming the key.
  void validate() const;
};

}  // namespace jforge
