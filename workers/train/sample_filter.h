#pragma once

/// Which trajectories a round trains on: cleaning. A verdict depends on the trajectory and the
/// settings alone, so stores stay raw, ranks agree, and other settings need no new generation.

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

/// Train on everything, unless told otherwise.
struct SampleFilterConfig {
  /// seq-rep-4 (collapse.h) of an answer, above which it is left out; 1: no limit.
  double max_repetition = 1;
  /// Times that one sentence or line may stand in an answer; 0: no limit.
  std::int64_t max_sentence_repeats = 0;
  std::int64_t min_tokens = 0;             ///< Of an answer, its end of sequence not counted.
  std::optional<std::int64_t> max_tokens;  ///< Likewise.
  bool require_eos = false;                ///< Leave out answers that ended by their length.
  /// Leave out answers that this task's check does not find right by the prompt's reference answer,
  /// and those of prompts that have none.
  std::optional<std::string> task;

  [[nodiscard]] bool active() const;
  /// Whether a rule looks at the answer's text.
  [[nodiscard]] bool reads_text() const { return max_sentence_repeats > 0 || task; }
  /// Throws ConfigError naming the key ("train.filter_repetition …").
  void validate() const;
};

/// Why a trajectory is left out: the first that holds, in this order.
enum class FilterVerdict : std::uint8_t {
  kept,
  unfinished,
  too_short,
  too_long,
  repetition,
  sentences,
  no_reference,
  wrong
};
inline constexpr std::size_t kFilterVerdicts = 8;
/// As reports name them: "kept", "no end of sequence", …
[[nodiscard]] std::string_view to_string(FilterVerdict verdict);

/// How many trajectories got which verdict, by FilterVerdict.
using FilterCounts = std::array<std::int64_t, kFilterVerdicts>;

/// How often the most frequent sentence of `text` stands in it; 0 where it has none. A sentence is
/// what lies between line ends or behind '.', '!' or '?' before a blank, blanks around it apart;
/// fewer than 16 bytes ("}", "return x", "Yes.") count as none.
[[nodiscard]] std::int64_t most_repeated_sentence(std::string_view text);

/// What rules need beside the trajectory; null where none asks for it.
struct FilterMeans {
  const BytePairTokenizer* tokenizer = nullptr;  ///< For sentences and the task.
  const Task* task = nullptr;                    ///< SampleFilterConfig::task.
  const PromptStore* prompts = nullptr;          ///< With reference answers, for the task.
};

/// Verdict on a trajectory, by the answer before its end of sequence. Throws DataError when the
/// prompt store cannot be read.
[[nodiscard]] FilterVerdict judge(const SampleFilterConfig& config, const Trajectory& trajectory,
                                  const FilterMeans& means);

}  // namespace jforge
