#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "data/batches/noise_schedule.h"
#include "model/decoding/sequence_decoder.h"

namespace jforge {

/// Who finds the fixed points of parallel trajectories: all give greedy decoding's tokens.
enum class FixedPointMethod : std::uint8_t {
  ar,      ///< Greedy: the fewest rows, one forward a token.
  jacobi,  ///< The running window.
  mr,      ///< Multi-block decoding with rejection recycling.
};

struct ParallelTrajectoryOptions {
  std::int32_t block_size = 16;  ///< n ≥ 1
  FixedPointMethod fixed_point = FixedPointMethod::ar;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  /// Which state is kept of each block, beside the fixed point; nothing: all are.
  std::optional<NoiseScheduleOptions> schedule;

  /// Throws ConfigError.
  void validate() const;
};

/// Teacher-forced parallel trajectories (METHOD.md §1): the states that the recording Jacobi
/// decoder goes through, for the same drafts, in another order of work. Another method decodes the
/// text; every block that is complete in it is iterated apart from all others, as an alternative
/// behind the clean text before it, and no longer than until the schedule's state of it is certain.
/// The text is authoritative: each pass puts its next right token where the iterate fails, so n − 1
/// passes suffice; where the iterate predicts another one there, which reproducible arithmetic
/// excludes, the block counts as flipped.
///
/// `blocks` come as a trajectory stores them: the selected state and the fixed point
/// (`selected_state` ≥ 0), or all states; `states_seen` counts those that were computed. `forwards`
/// are the passes that the sequence took part in.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_parallel_trajectory_decoder(
    DecodeRequest request, const ParallelTrajectoryOptions& options);

}  // namespace jforge
