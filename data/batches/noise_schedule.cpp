#include "data/batches/noise_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge {

void NoiseScheduleOptions::validate() const {
  if (window < 1) {
    throw ConfigError(
        fmt::format("noise_window is {}: give the number of blocks, at least 1", window));
  }
}

std::int32_t schedule_index(const NoiseScheduleOptions& options, PromptId prompt_id,
                            std::int64_t block) {
  options.validate();
  expect(block >= 0, "block number is negative");
  const std::int64_t window = options.window;
  switch (options.kind) {
    case ScheduleKind::linear:
      return static_cast<std::int32_t>(block % window);
    case ScheduleKind::reverse:
      return static_cast<std::int32_t>(window - 1 - block % window);
    case ScheduleKind::random: {
      RandomStream stream(options.seed, RandomPurpose::noise_schedule, options.round,
                          static_cast<std::uint64_t>(prompt_id), static_cast<std::uint64_t>(block));
      return static_cast<std::int32_t>(stream.next_u64() % static_cast<std::uint64_t>(window));
    }
  }
  throw InternalError("unknown schedule kind");
}

std::int32_t converged_prefix(std::span<const TokenId> state,
                              std::span<const TokenId> fixed_point) {
  expect(state.size() == fixed_point.size(), "state and fixed point differ in length");
  const auto difference = std::mismatch(state.begin(), state.end(), fixed_point.begin()).first;
  return static_cast<std::int32_t>(difference - state.begin());
}

std::int32_t unconverged_tokens(std::span<const TokenId> state,
                                std::span<const TokenId> fixed_point, UnconvergedMeasure measure) {
  if (measure == UnconvergedMeasure::prefix) {
    return static_cast<std::int32_t>(state.size()) - converged_prefix(state, fixed_point);
  }
  expect(state.size() == fixed_point.size(), "state and fixed point differ in length");
  std::int32_t count = 0;
  for (std::size_t i = 0; i < state.size(); ++i) {
    count += state[i] != fixed_point[i] ? 1 : 0;
  }
  return count;
}

std::int64_t schedule_distance(const NoiseScheduleOptions& options, std::int32_t unconverged,
                               std::int32_t block_size, std::int32_t index) {
  // t = numerator / denominator in integers, so that ties are exact.
  std::int64_t numerator = index;
  std::int64_t denominator = options.window;
  if (options.endpoint == ScheduleEndpoint::inclusive) {
    if (options.window == 1) {
      numerator = 1;
    } else {
      denominator = options.window - 1;
    }
  }
  const std::int64_t wanted = numerator * block_size;
  if (options.target == ScheduleTarget::ceil_count) {
    return std::abs(unconverged - (wanted + denominator - 1) / denominator);
  }
  return std::abs(unconverged * denominator - wanted);
}

StateChoice::StateChoice(const NoiseScheduleOptions& options, std::int32_t block_size,
                         PromptId prompt_id, std::int64_t block)
    : options_(options),
      block_size_(block_size),
      index_(schedule_index(options, prompt_id, block)),
      // As in the authors' data, the fixed point comes first and wins ties.
      best_distance_(options.drop_initial_state ? distance(0)
                                                : std::numeric_limits<std::int64_t>::max()) {
  expect(block_size >= 1, "block size is below 1");
}

std::int64_t StateChoice::distance(std::int32_t unconverged) const {
  return schedule_distance(options_, unconverged, block_size_, index_);
}

bool StateChoice::consider(std::span<const TokenId> state, std::span<const TokenId> fixed_point) {
  converged_ = converged_prefix(state, fixed_point);
  const std::int32_t place = considered_++;
  if (options_.drop_initial_state && place == 0) {
    return false;
  }
  const std::int64_t own = distance(unconverged_tokens(state, fixed_point, options_.measure));
  if (own >= best_distance_) {
    return false;
  }
  selected_ = place;
  best_distance_ = own;
  return true;
}

std::optional<std::int32_t> StateChoice::selected() const {
  if (selected_ < 0 || distance(0) < best_distance_) {
    return std::nullopt;
  }
  return selected_;
}

bool StateChoice::settled() const {
  const std::int64_t fixed_point = distance(0);
  for (std::int32_t later = 1; later < block_size_ - converged_; ++later) {
    const std::int64_t its = distance(later);
    if (its < best_distance_ && its <= fixed_point) {
      return false;
    }
  }
  return true;
}

std::int32_t select_state(const NoiseScheduleOptions& options, std::span<const TokenId> states,
                          std::int32_t block_size, PromptId prompt_id, std::int64_t block) {
  expect(block_size >= 1, "block size is below 1");
  const auto width = static_cast<std::size_t>(block_size);
  expect(!states.empty() && states.size() % width == 0, "states are not whole blocks");
  const auto fixed_point = states.last(width);
  StateChoice choice(options, block_size, prompt_id, block);
  for (std::size_t begin = 0; begin + width < states.size(); begin += width) {
    choice.consider(states.subspan(begin, width), fixed_point);
  }
  return choice.selected().value_or(static_cast<std::int32_t>(states.size() / width) - 1);
}

namespace {

void check_block(const Trajectory& trajectory, std::size_t index) {
  const TrajectoryBlock& block = trajectory.blocks[index];
  const auto width = static_cast<std::size_t>(trajectory.block_size);
  if (block.states.empty() || block.states.size() % width != 0) {
    throw DataError(
        fmt::format("trajectory of prompt {}, block {}: {} state tokens are not a multiple of the "
                    "block size {}; generate it again",
                    trajectory.prompt_id, index, block.states.size(), trajectory.block_size));
  }
  if (block.selected_state >= 0 && block.states.size() != 2 * width) {
    throw DataError(
        fmt::format("trajectory of prompt {}, block {}: stored with a selected state but holds {} "
                    "states instead of 2; generate it anew",
                    trajectory.prompt_id, index, block.states.size() / width));
  }
}

}  // namespace

PackedSample make_packed_sample(const Trajectory& trajectory, const NoiseScheduleOptions& options) {
  options.validate();
  if (trajectory.block_size < 1) {
    throw DataError(fmt::format("trajectory of prompt {}: block size {} is below 1",
                                trajectory.prompt_id, trajectory.block_size));
  }
  const auto width = static_cast<std::size_t>(trajectory.block_size);
  PackedSample sample;
  sample.prompt_id = trajectory.prompt_id;
  sample.block_size = trajectory.block_size;
  sample.window = options.window;
  sample.prompt = trajectory.prompt;
  sample.noisy.reserve(trajectory.blocks.size() * width);
  sample.clean.reserve(trajectory.blocks.size() * width);
  for (std::size_t i = 0; i < trajectory.blocks.size(); ++i) {
    check_block(trajectory, i);
    const TrajectoryBlock& block = trajectory.blocks[i];
    const std::span<const TokenId> states(block.states);
    std::size_t noisy_state = 0;
    if (block.selected_state < 0) {
      noisy_state = static_cast<std::size_t>(select_state(options, states, trajectory.block_size,
                                                          trajectory.prompt_id,
                                                          static_cast<std::int64_t>(i)));
    }
    const auto noisy = states.subspan(noisy_state * width, width);
    const auto clean = states.last(width);
    sample.noisy.insert(sample.noisy.end(), noisy.begin(), noisy.end());
    sample.clean.insert(sample.clean.end(), clean.begin(), clean.end());
  }
  return sample;
}

}  // namespace jforge
