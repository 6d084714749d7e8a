#pragma once

/// Detects repetition in a few greedy answers.

#include <cstdint>
#include <span>

#include "runtime/ids.h"

namespace jforge {

enum class CollapseAction : std::uint8_t {
  warn,
  stop,  ///< End the run on all ranks (exit 5) without saving that step.
};

struct CollapseConfig {
  std::int64_t check_every = 0;  ///< 0: never.
  double threshold = 0.5;        ///< Answers above this mean seq-rep-4 have collapsed.
  CollapseAction action = CollapseAction::warn;

  /// Throws ConfigError naming the key.
  void validate() const;
  [[nodiscard]] bool due(std::int64_t step) const {
    return check_every > 0 && step % check_every == 0;
  }
};

inline constexpr std::int64_t kCollapsePrompts = 8;   ///< Evenly spaced; equal in every check.
inline constexpr std::int64_t kCollapseTokens = 128;  ///< Maximum tokens of an answer.

inline constexpr std::size_t kRepetitionLength = 4;

/// seq-rep-n (Welleck et al., "Neural Text Generation With Unlikelihood Training", ICLR 2020): 1 −
/// distinct n-grams / n-grams; 0 below n + 1 tokens.
[[nodiscard]] double sequence_repetition(std::span<const TokenId> tokens,
                                         std::size_t n = kRepetitionLength);

/// distinct-1 (Li et al., "A Diversity-Promoting Objective Function for Neural Conversation
/// Models", NAACL 2016): distinct tokens / tokens; 1 for no token.
[[nodiscard]] double distinct_share(std::span<const TokenId> tokens);

}  // namespace jforge
