#pragma once

/// The noise schedule: selects the recorded state that becomes a block's noisy training block
/// (METHOD.md §2). Compares in integers, so every machine selects the same state.

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

/// Target share t of unconverged tokens for schedule index j.
enum class ScheduleEndpoint : std::uint8_t {
  inclusive,  ///< t = j / (w − 1); w = 1 means t = 1.
  exclusive,  ///< t = j / w
};

/// Which tokens of a state count as unconverged.
enum class UnconvergedMeasure : std::uint8_t {
  prefix,        ///< From the first position that differs from the fixed point.
  positionwise,  ///< Every position that differs from the fixed point.
};

/// Which difference from the target the selected state minimises; u is the unconverged count.
enum class ScheduleTarget : std::uint8_t {
  ratio,       ///< |u/n − t|
  ceil_count,  ///< |u − ceil(t·n)| (the paper's main text)
};

struct NoiseScheduleOptions {
  ScheduleKind kind = ScheduleKind::linear;
  std::int32_t window = 16;  ///< w, blocks; at least 1.
  ScheduleEndpoint endpoint = ScheduleEndpoint::inclusive;
  UnconvergedMeasure measure = UnconvergedMeasure::prefix;
  ScheduleTarget target = ScheduleTarget::ratio;
  /// Excludes the initial draft and lets the fixed point win ties: in the authors' data the first
  /// recorded state is an alias of the fixed point.
  bool drop_initial_state = false;
  std::uint64_t seed = 0;   ///< Only for ScheduleKind::random.
  std::uint64_t round = 0;  ///< Only for ScheduleKind::random.

  /// Throws ConfigError if `window` is below 1.
  void validate() const;
};

/// Returns schedule index j in [0, w) of block `block`, counted from 0 in the answer.
[[nodiscard]] std::int32_t schedule_index(const NoiseScheduleOptions& options, PromptId prompt_id,
                                          std::int64_t block);

/// Returns d, the first position at which `state` [n] and `fixed_point` [n] differ, or n.
[[nodiscard]] std::int32_t converged_prefix(std::span<const TokenId> state,
                                            std::span<const TokenId> fixed_point);

/// Returns the number u of unconverged tokens of `state` [n] against `fixed_point` [n].
[[nodiscard]] std::int32_t unconverged_tokens(std::span<const TokenId> state,
                                              std::span<const TokenId> fixed_point,
                                              UnconvergedMeasure measure);

/// Returns the distance from the target of schedule index j for u = `unconverged`, n =
/// `block_size`: |u(w−1) − jn| (inclusive; |u − n| for w = 1), |uw − jn| (exclusive) or |u −
/// ceil(tn)|. Distances are comparable only within one block.
[[nodiscard]] std::int64_t schedule_distance(const NoiseScheduleOptions& options,
                                             std::int32_t unconverged, std::int32_t block_size,
                                             std::int32_t index);

/// Selects a block's noisy state from a stream of states, so that decoding can stop once the choice
/// is settled. The earliest of equally near states wins; the fixed point comes last and may be
/// selected.
class StateChoice {
 public:
  /// `block` counts from 0 in the answer. Requires: `block_size` ≥ 1.
  StateChoice(const NoiseScheduleOptions& options, std::int32_t block_size, PromptId prompt_id,
              std::int64_t block);

  /// Takes the next state [n] before the fixed point; returns true if it is the nearest so far.
  bool consider(std::span<const TokenId> state, std::span<const TokenId> fixed_point);
  /// Returns the index of the nearest considered state, or nullopt if the fixed point is nearer.
  [[nodiscard]] std::optional<std::int32_t> selected() const;
  /// Returns true if no later state but the fixed point can be selected, given that every iterate
  /// has at least one more correct leading token than the one before it.
  [[nodiscard]] bool settled() const;

 private:
  [[nodiscard]] std::int64_t distance(std::int32_t unconverged) const;

  NoiseScheduleOptions options_;
  std::int32_t block_size_;
  std::int32_t index_;  ///< Schedule index j.
  std::int32_t considered_ = 0;
  std::int32_t converged_ = 0;  ///< Correct leading tokens of the newest state.
  std::int32_t selected_ = -1;  ///< −1: the fixed point.
  std::int64_t best_distance_;
};

/// Returns the index of the selected state among `states` [S, n] (flattened, the fixed point last),
/// by the rules of StateChoice. Throws InternalError if `states` is empty or no multiple of
/// `block_size`.
[[nodiscard]] std::int32_t select_state(const NoiseScheduleOptions& options,
                                        std::span<const TokenId> states, std::int32_t block_size,
                                        PromptId prompt_id, std::int64_t block);

/// Builds the training sample of a trajectory: clean blocks are fixed points, noisy blocks
/// scheduled states. A stored pair is used as it is; `options` must then equal those of generation.
/// Throws DataError naming prompt and block if a block is not a whole number of states or a stored
/// pair not a pair.
[[nodiscard]] PackedSample make_packed_sample(const Trajectory& trajectory,
                                              const NoiseScheduleOptions& options);

/// Returns the length of the packed sequence, P + 2·n·N, without building it.
[[nodiscard]] std::int64_t packed_length(const Trajectory& trajectory);

}  // namespace jforge
