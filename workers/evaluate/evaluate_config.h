#pragma once

/// Settings of the evaluating phase ([evaluate] of the configuration, and `jforge evaluate`).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace jforge {

struct EvaluateConfig {
  std::vector<std::string> tasks;  ///< Empty: no evaluation.
  std::vector<std::string> methods = {"ar", "jacobi"};
  std::filesystem::path data;                  ///< Holds gsm8k/…, or is one task's JSONL file.
  std::string prompt_style;                    ///< See data/tasks; empty: the task's default.
  std::int32_t block_size = 64;                ///< Of the Jacobi method.
  std::optional<std::int64_t> max_new_tokens;  ///< Default: the task's own.
  std::optional<std::int64_t> limit;           ///< First so many problems only.
  std::int32_t batch_prompts = 32;  ///< Decoded at once per rank; does not change results.

  /// Throws ConfigError naming the key.
  void validate() const;
};

}  // namespace jforge
