#pragma once

/// A prompt's Jacobi trajectory (METHOD.md §1); its file: TRAJECTORY_FORMAT.md.

#include <cstdint>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

enum class StopReason : std::uint8_t { eos = 0, length = 1 };

struct TrajectoryBlock {
  /// States [num_states, n], flattened. `store_states = all`: every distinct state from the initial
  /// draft to the fixed point. `selected`: the scheduled noisy state and the fixed point, possibly
  /// equal.
  std::vector<TokenId> states;
  /// Number of states decoded, including initial draft and fixed point. Parallel generation skips
  /// those between the selected state and the fixed point.
  std::int32_t states_seen = 0;
  /// Index of the scheduled state among those seen; −1 if all are stored.
  std::int32_t selected_state = -1;
};

struct Trajectory {
  PromptId prompt_id = 0;
  std::int32_t block_size = 0;  ///< n
  StopReason stop = StopReason::length;
  std::int64_t eos_position = -1;   ///< First end-of-sequence token in the answer, or −1.
  std::int64_t forwards = 0;        ///< Prefill excluded.
  std::int64_t flipped_blocks = 0;  ///< Blocks that did not reach their fixed point.
  std::vector<TokenId> prompt;      ///< After the chat template.
  std::vector<TrajectoryBlock> blocks;

  [[nodiscard]] std::int64_t num_states(std::size_t index) const {
    return static_cast<std::int64_t>(blocks[index].states.size()) / block_size;
  }
};

}  // namespace jforge
