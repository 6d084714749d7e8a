#pragma once

/// One prompt's Jacobi trajectory (METHOD.md §1). TRAJECTORY_FORMAT.md describes the file.

#include <cstdint>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

enum class StopReason : std::uint8_t { eos = 0, length = 1 };

/// One block of n tokens.
struct TrajectoryBlock {
  /// Stored states [num_states, n], flattened. With `store_states = all`: every distinct state in
  /// order, from the initial draft to the fixed point. With `selected`: the scheduled noisy state
  /// and the fixed point, which may be equal.
  std::vector<TokenId> states;
  /// Number of states that decoding went through, including initial draft and fixed point. Parallel
  /// generation skips those between the selected state and the fixed point.
  std::int32_t states_seen = 0;
  /// Index of the scheduled state among the states seen; −1 if all states are stored.
  std::int32_t selected_state = -1;
};

/// The record of one prompt.
struct Trajectory {
  PromptId prompt_id = 0;
  std::int32_t block_size = 0;  ///< n
  StopReason stop = StopReason::length;
  std::int64_t eos_position = -1;   ///< Offset of the first end-of-sequence token, or −1.
  std::int64_t forwards = 0;        ///< Forward passes, prefill excluded.
  std::int64_t flipped_blocks = 0;  ///< Blocks that did not reach their fixed point.
  std::vector<TokenId> prompt;      ///< Token ids after the chat template.
  std::vector<TrajectoryBlock> blocks;

  [[nodiscard]] std::int64_t num_states(std::size_t index) const {
    return static_cast<std::int64_t>(blocks[index].states.size()) / block_size;
  }
};

}  // namespace jforge
