#include "workers/generate/generate_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "model/transformer/inference_transformer.h"
#include "runtime/error.h"

namespace jforge {

namespace {
constexpr double kBytesPerMegabyte = 1e6;
}  // namespace

void GenerateConfig::validate() const {
  const auto at_least_one = [](const char* key, double value) {
    if (!(value >= 1)) {  // rejects NaN too
      throw ConfigError(fmt::format("generate.{} = {} must be at least 1", key, value));
    }
  };
  at_least_one("max_new_tokens", static_cast<double>(max_new_tokens));
  at_least_one("batch_prompts", batch_prompts);
  at_least_one("prompts_per_lease", static_cast<double>(prompts_per_lease));
  if (cache_mb < 0) {
    throw ConfigError(fmt::format("generate.cache_mb = {} must not be negative", cache_mb));
  }
}

std::int64_t GenerateConfig::most_cache_pages(const TransformerConfig& model, DType cache) const {
  if (cache_mb == 0) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return static_cast<std::int64_t>(
      static_cast<double>(cache_mb) * kBytesPerMegabyte /
      static_cast<double>(InferenceTransformer::cache_bytes(model, 1, cache)));
}

std::int64_t GenerateConfig::cache_pages(const TransformerConfig& model, DType cache,
                                         const BatchPages& batch) const {
  const std::int64_t most = most_cache_pages(model, cache);
  if (batch.largest() > most) {
    throw ConfigError(fmt::format(
        "generate.cache_mb = {} is too little for the longest prompt and its answer, which need "
        "{:.1f} MB; raise it, or set prompts.max_prompt_tokens",
        cache_mb,
        static_cast<double>(InferenceTransformer::cache_bytes(model, batch.largest(), cache)) /
            kBytesPerMegabyte));
  }
  return std::min(batch.most(), most);
}

}  // namespace jforge
