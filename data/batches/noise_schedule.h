#pragma once

/// The noise schedule: which recorded state of a block becomes its noisy training block
/// (METHOD.md §2). Pure functions of their arguments; all comparisons are made
/// in integers, so every machine selects the same state.

#include <cstdint>
#include <optional>
#include <span>

#include "data/batches/packed_sample.h"
#include "data/trajectories/trajectory.h"
#include "runtime/ids.h"

namespace jforge {

/// How the schedule index j of block i moves through a window of w blocks.
enum class ScheduleKind : std::uint8_t {
  linear,   ///< j = i mod w
  reverse,  ///< j = w − 1 − (i mod w)
  random,   ///< j = Philox(seed, noise_schedule, round, prompt, i) mod w
};

/// The wanted share t of unconverged tokens for schedule index j.
enum class ScheduleEndpoint : std::uint8_t {
  inclusive,  ///< t = j / (w − 1); w = 1 means t = 1.
  exclusive,  ///< t = j / w
};

/// What counts as unconverged in a state.
enum class UnconvergedMeasure : std::uint8_t {
  prefix,        ///< Everything from the first position that differs from the fixed point.
  positionwise,  ///< The positions that differ from the fixed point.
};

/// What the unconverged count u is compared with.
enum class ScheduleTarget : std::uint8_t {
  ratio,       ///< Minimise |u/n − t|.
  ceil_count,  ///< Minimise |u − ceil(t·n)| (the paper's main text).
};

struct NoiseScheduleOptions {
  ScheduleKind kind = ScheduleKind::linear;
  std::int32_t window = 16;  ///< w, blocks; at least 1.
  ScheduleEndpoint endpoint = ScheduleEndpoint::inclusive;
  UnconvergedMeasure measure = UnconvergedMeasure::prefix;
  ScheduleTarget target = ScheduleTarget::ratio;
  /// Never the initial draft. As in the authors' data, where the first recorded state is an alias
  /// of the fixed point, which therefore also wins ties.
  bool drop_initial_state = false;
  std::uint64_t seed = 0;   ///< Used by ScheduleKind::random only.
  std::uint64_t round = 0;  ///< Used by ScheduleKind::random only.

  /// ConfigError when `window` is below 1.
  void validate() const;
};

/// Schedule index j in [0, w) of block `block` (0-based in the answer) of prompt `prompt_id`.
[[nodiscard]] std::int32_t schedule_index(const NoiseScheduleOptions& options, PromptId prompt_id,
                                          std::int64_t block);

/// d: the first position at which `state` [n] differs from `fixed_point` [n]; n when they are
/// equal.
[[nodiscard]] std::int32_t converged_prefix(std::span<const TokenId> state,
                                            std::span<const TokenId> fixed_point);

/// Unconverged tokens of `state` [n] against `fixed_point` [n]: n − d, or the positions that
/// differ.
[[nodiscard]] std::int32_t unconverged_tokens(std::span<const TokenId> state,
                                              std::span<const TokenId> fixed_point,
                                              UnconvergedMeasure measure);

/// Distance of a state with `unconverged` tokens out of n = `block_size` from the target of
/// schedule index j: |u(w−1) − jn| (inclusive; |u − n| for w = 1), |uw − jn| (exclusive), or |u −
/// ceil(tn)|. Comparable between states of one block only.
[[nodiscard]] std::int64_t schedule_distance(const NoiseScheduleOptions& options,
                                             std::int32_t unconverged, std::int32_t block_size,
                                             std::int32_t index);

/// Which state of a block the schedule selects, from the states in their order, one at a time: so
/// that nothing has to be computed behind the one that is selected. Ties go to the earliest state;
/// the fixed point, which comes last, is a legal answer.
class StateChoice {
 public:
  /// For block `block` (0-based in the answer) of prompt `prompt_id`, n = `block_size` ≥ 1.
  StateChoice(const NoiseScheduleOptions& options, std::int32_t block_size, PromptId prompt_id,
              std::int64_t block);

  /// The next state [n], which comes before the fixed point's; true when it is the nearest so far.
  bool consider(std::span<const TokenId> state, std::span<const TokenId> fixed_point);
  /// Index among the considered states of the nearest; nothing when the fixed point is nearer.
  [[nodiscard]] std::optional<std::int32_t> selected() const;
  /// Whether no later state can be selected but the fixed point: every iterate has more leading
  /// right tokens than the one before it, the first at least one.
  [[nodiscard]] bool settled() const;

 private:
  [[nodiscard]] std::int64_t distance(std::int32_t unconverged) const;

  NoiseScheduleOptions options_;
  std::int32_t block_size_;
  std::int32_t index_;           ///< Of the schedule.
  std::int32_t considered_ = 0;  ///< States.
  std::int32_t converged_ = 0;   ///< Leading right tokens of the newest.
  std::int32_t selected_ = -1;   ///< −1: the fixed point.
  std::int64_t best_distance_;   ///< Of selected_.
};

/// Index of the state of `states` [S, n] (flattened, the fixed point last) that is nearest to the
/// target of block `block`; ties go to the earliest state. The fixed point is a legal answer.
/// InternalError when `states` is empty or not a multiple of `block_size`.
[[nodiscard]] std::int32_t select_state(const NoiseScheduleOptions& options,
                                        std::span<const TokenId> states, std::int32_t block_size,
                                        PromptId prompt_id, std::int64_t block);

/// The training sample of a trajectory: clean blocks are the fixed points, noisy blocks the
/// scheduled states. Where only the scheduled pair was stored, that pair is taken as it is;
/// `options` must then be the ones generation ran with. DataError naming prompt and block when a
/// block holds no whole number of states, or a stored pair is not a pair.
[[nodiscard]] PackedSample make_packed_sample(const Trajectory& trajectory,
                                              const NoiseScheduleOptions& options);

/// Length of the packed sequence of `trajectory` without building it: P + 2·n·N.
[[nodiscard]] std::int64_t packed_length(const Trajectory& trajectory);

}  // namespace jforge
