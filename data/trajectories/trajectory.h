#pragma once

/// One prompt's Jacobi trajectory in memory (METHOD.md §1). The file form is in
/// TRAJECTORY_FORMAT.md.

#include <cstdint>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Why generation of a prompt ended.
enum class StopReason : std::uint8_t { eos = 0, length = 1 };

/// One block of n tokens on its way to the fixed point.
struct TrajectoryBlock {
  /// Recorded states, n ids each, flattened [num_states, n]. With `store_states = all`: from the
  /// initial draft to the fixed point, each change once, the fixed point last and once. With
  /// `selected`: exactly two states, the scheduled noisy one and the fixed point (equal when the
  /// schedule asks for no noise).
  std::vector<TokenId> states;
  /// How many states decoding went through, the initial draft and the fixed point included;
  /// parallel generation leaves out what comes after the selected one.
  std::int32_t states_seen = 0;
  /// Index, among the states seen, of the one the noise schedule selected; −1 when all states are
  /// stored.
  std::int32_t selected_state = -1;
};

/// One record per prompt.
struct Trajectory {
  PromptId prompt_id = 0;
  std::int32_t block_size = 0;  ///< n
  StopReason stop = StopReason::length;
  std::int64_t eos_position =
      -1;  ///< Offset of the first end-of-sequence token in the answer; −1 when none.
  std::int64_t forwards = 0;  ///< Forward passes spent, prefill excluded.
  std::int64_t flipped_blocks =
      0;  ///< Blocks whose iterate did not reach the fixed point (bf16 or GPU only).
  std::vector<TokenId> prompt;  ///< Templated prompt ids.
  std::vector<TrajectoryBlock> blocks;

  /// Number of stored states of block `index`.
  [[nodiscard]] std::int64_t num_states(std::size_t index) const {
    return static_cast<std::int64_t>(blocks[index].states.size()) / block_size;
  }
};

}  // namespace jforge
