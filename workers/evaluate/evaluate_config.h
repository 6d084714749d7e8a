#pragma once

/// Settings of the evaluating phase ([evaluate] of the configuration, and `jforge evaluate`).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoding/decoding_settings.h"

namespace jforge {

/// An entry of evaluate.tasks: "gsm8k", or with a prompt style of its own "gsm8k:cot_boxed".
struct TaskChoice {
  std::string label;         ///< The entry: the task's name in results.
  std::string name;          ///< See data/tasks.
  std::string prompt_style;  ///< Empty: the task's default.
};

struct EvaluateConfig {
  std::vector<std::string> tasks;  ///< TaskChoice each; empty: no evaluation.
  std::vector<std::string> methods = {"ar", "jacobi"};
  std::filesystem::path data;  ///< Holds gsm8k/…, or is one task's JSONL file.
  std::string prompt_style;    ///< Of entries that name none; empty: the task's default.
  DecodingSettings decoding = default_decoding_settings();  ///< Of the methods.
  std::int32_t samples_per_problem = 1;        ///< Answers to each; more than one where sampled.
  std::optional<std::int64_t> max_new_tokens;  ///< Default: the task's own.
  std::optional<std::int64_t> limit;           ///< First so many problems only.
  std::int32_t batch_prompts = 32;  ///< Decoded at once per rank; does not change results.
  /// Problems of each task that a repeat at batch 1 decodes; 0: speeds are not measured.
  std::int32_t speed_problems = 8;
  std::int32_t speed_repeats = 5;  ///< Of every method in turn; at least 2.

  /// Throws ConfigError naming the key.
  void validate() const;
  /// Takes an entry of `tasks` apart; `prompt_style` is filled in.
  [[nodiscard]] TaskChoice choice(std::string_view entry) const;
};

}  // namespace jforge
