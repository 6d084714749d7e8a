#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "data/batches/noise_schedule.h"
#include "model/decoding/sequence_decoder.h"

namespace jforge {

struct ParallelTrajectoryOptions {
  std::int32_t block_size = 16;  ///< n ≥ 1
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  /// Selects the state kept of each block beside the fixed point; empty: all states.
  std::optional<NoiseScheduleOptions> schedule;

  void validate() const;  ///< Throws ConfigError.
};

/// Teacher-forced parallel trajectories (METHOD.md §1): the recording Jacobi decoder's states,
/// computed in another order. Greedy decoding makes the text. Each complete block of it is iterated
/// as an alternative until no later state can be the schedule's choice. The text's token replaces
/// the first wrong one, so n − 1 passes suffice. A block that predicted another token there counts
/// as flipped; reproducible arithmetic excludes it.
///
/// `blocks` holds the selected state and the fixed point (`selected_state` ≥ 0), or all states;
/// `states_seen` counts the computed ones. `forwards` counts the passes that include the sequence.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_parallel_trajectory_decoder(
    DecodeRequest request, const ParallelTrajectoryOptions& options);

}  // namespace jforge
