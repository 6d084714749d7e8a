#pragma once

/// Selects the recorded state that becomes a block's noisy training block (METHOD.md §2), with
/// integer comparisons, so that every machine selects the same state.

#include <cstdint>
#include <optional>
#include <span>

#include "data/batches/packed_sample.h"
#include "data/trajectories/trajectory.h"
#include "runtime/ids.h"

namespace jforge {

/// Schedule index j of block i in a window of w blocks.
enum class ScheduleKind : std::uint8_t {
  linear,   ///< j = i mod w
  reverse,  ///< j = w − 1 − (i mod w)
  random,   ///< j = Philox(seed, noise_schedule, round, prompt, i) mod w
};

/// Target share t of unconverged tokens.
enum class ScheduleEndpoint : std::uint8_t {
  inclusive,  ///< t = j / (w − 1); w = 1 means t = 1.
  exclusive,  ///< t = j / w
};

enum class UnconvergedMeasure : std::uint8_t {
  prefix,        ///< From the first wrong position on.
  positionwise,  ///< Wrong positions only.
};

/// Minimised distance of u unconverged tokens from the target.
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
  /// Skips the initial draft and lets the fixed point win ties: the authors' first recorded state
  /// is an alias of the fixed point.
  bool drop_initial_state = false;
  std::uint64_t seed = 0;   ///< For ScheduleKind::random.
  std::uint64_t round = 0;  ///< For ScheduleKind::random.

  /// Throws ConfigError if `window` is below 1.
  void validate() const;
};

/// Returns j in [0, w); `block` counts from 0 in the answer.
[[nodiscard]] std::int32_t schedule_index(const NoiseScheduleOptions& options, PromptId prompt_id,
                                          std::int64_t block);

/// Returns the first position d at which `state` and `fixed_point` [n] differ, or n.
[[nodiscard]] std::int32_t converged_prefix(std::span<const TokenId> state,
                                            std::span<const TokenId> fixed_point);

/// Returns the number u of unconverged tokens of `state` [n].
[[nodiscard]] std::int32_t unconverged_tokens(std::span<const TokenId> state,
                                              std::span<const TokenId> fixed_point,
                                              UnconvergedMeasure measure);

/// Returns the distance of u = `unconverged` of n tokens from index j's target: |u(w−1) − jn|
/// (inclusive; |u − n| for w = 1), |uw − jn| (exclusive) or |u − ceil(tn)|. Comparable only within
/// a block.
[[nodiscard]] std::int64_t schedule_distance(const NoiseScheduleOptions& options,
                                             std::int32_t unconverged, std::int32_t block_size,
                                             std::int32_t index);

/// Selects a state incrementally, so that decoding can stop when settled. Of equally near states
/// the earliest wins; the fixed point, which comes last, may be selected.
class StateChoice {
 public:
  /// Requires: `block_size` ≥ 1.
  StateChoice(const NoiseScheduleOptions& options, std::int32_t block_size, PromptId prompt_id,
              std::int64_t block);

  /// Takes the next state [n] before the fixed point; returns true if it is the nearest so far.
  bool consider(std::span<const TokenId> state, std::span<const TokenId> fixed_point);
  /// Returns the nearest state's index, or nullopt if the fixed point is nearer.
  [[nodiscard]] std::optional<std::int32_t> selected() const;
  /// Returns true if only the fixed point could still be selected, given that every iterate gains
  /// at least one correct leading token.
  [[nodiscard]] bool settled() const;

 private:
  [[nodiscard]] std::int64_t distance(std::int32_t unconverged) const;

  NoiseScheduleOptions options_;
  std::int32_t block_size_;
  std::int32_t index_;
  std::int32_t considered_ = 0;
  std::int32_t converged_ = 0;  ///< Correct leading tokens of the newest state.
  std::int32_t selected_ = -1;  ///< −1: the fixed point.
  std::int64_t best_distance_;
};

/// Applies StateChoice to `states` [S, n] (flattened, the fixed point last). Throws InternalError
/// if `states` is empty or no multiple of `block_size`.
[[nodiscard]] std::int32_t select_state(const NoiseScheduleOptions& options,
                                        std::span<const TokenId> states, std::int32_t block_size,
                                        PromptId prompt_id, std::int64_t block);

/// Builds a sample: clean blocks are fixed points, noisy blocks scheduled states. Uses stored pairs
/// as they are; `options` must then equal those of generation. Throws DataError if a block is not a
/// whole number of states or a stored pair not a pair.
[[nodiscard]] PackedSample make_packed_sample(const Trajectory& trajectory,
                                              const NoiseScheduleOptions& options);

}  // namespace jforge
