#pragma once

/// [evaluate] of the configuration, and `jforge evaluate`.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoding/decoding_settings.h"

namespace jforge {

/// An entry of evaluate.tasks: "gsm8k", or with a prompt style "gsm8k:cot_boxed".
struct TaskChoice {
  std::string label;  ///< The whole entry, as in results.
  std::string name;   ///< See data/tasks.
  std::string prompt_style;
};

struct EvaluateConfig {
  std::vector<std::string> tasks;  ///< Entries as in TaskChoice; empty: no evaluation.
  std::vector<std::string> methods = {"ar", "jacobi"};
  std::filesystem::path data;  ///< Benchmarks' directory, or one task's JSONL file.
  std::string prompt_style;    ///< Default for entries that name none.
  DecodingSettings decoding = default_decoding_settings();
  /// block_size = "auto": instead of that of `decoding`, each method's fastest (tuning.h).
  bool tunes_block_size = false;
  std::int32_t samples_per_problem = 1;        ///< Above 1 only if sampled.
  std::optional<std::int64_t> max_new_tokens;  ///< Default: the task's.
  std::optional<std::int64_t> limit;           ///< Evaluate only the first problems.
  std::int32_t batch_prompts = 32;             ///< Decoded at once per rank; results do not change.
  /// Problems per repeat at batch 1; 0: speeds are not measured.
  std::int32_t speed_problems = 8;
  std::int32_t speed_repeats = 5;  ///< At least 2.

  /// Throws ConfigError naming the key.
  void validate() const;
  /// Splits an entry of `tasks`; fills in `prompt_style`.
  [[nodiscard]] TaskChoice choice(std::string_view entry) const;
};

}  // namespace jforge
