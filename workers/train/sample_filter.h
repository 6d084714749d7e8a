#pragma once

/// Cleaning of training trajectories. Verdicts depend only on trajectory and settings, so stores
/// stay raw, ranks agree, and new settings need no new generation.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/prompts/prompt_store.h"
#include "data/tasks/task.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/trajectories/trajectory.h"

namespace jforge {

struct SampleFilterConfig {
  /// Maximum seq-rep-4 (collapse.h); 1: no limit.
  double max_repetition = 1;
  bool require_eos = false;  ///< Drop answers that ended by length.
  /// Drop answers that this task's check rejects given the prompt's reference answer, or without
  /// one.
  std::optional<std::string> task;

  [[nodiscard]] bool active() const;
  /// Throws ConfigError naming the key.
  void validate() const;
};

/// First reason that applies, in this order.
enum class FilterVerdict : std::uint8_t { kept, unfinished, repetition, no_reference, wrong };
inline constexpr std::size_t kFilterVerdicts = 5;
/// "kept", "no end of sequence", ….
[[nodiscard]] std::string_view to_string(FilterVerdict verdict);

/// By FilterVerdict.
using FilterCounts = std::array<std::int64_t, kFilterVerdicts>;

/// Null if no rule needs it.
struct FilterMeans {
  const BytePairTokenizer* tokenizer = nullptr;  ///< For the task.
  const Task* task = nullptr;
  const PromptStore* prompts = nullptr;  ///< With reference answers, for the task.
};

/// Judges the answer before its eos. Throws DataError if the prompt store is unreadable.
[[nodiscard]] FilterVerdict judge(const SampleFilterConfig& config, const Trajectory& trajectory,
                                  const FilterMeans& means);

}  // namespace jforge
