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
  // t = numerator / denominator, kept as integers so that ties are exact.
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

std::int32_t select_state(const NoiseScheduleOptions& options, std::span<const TokenId> states,
                          std::int32_t block_size, PromptId prompt_id, std::int64_t block) {
  expect(block_size >= 1, "block size is below 1");
  const auto width = static_cast<std::size_t>(block_size);
  expect(!states.empty() && states.size() % width == 0, "states are not whole blocks");
  const std::int32_t index = schedule_index(options, prompt_id, block);
  const auto fixed_point = states.last(width);
  std::size_t first = 0;
  std::int32_t best = 0;
  std::int64_t best_distance = std::numeric_limits<std::int64_t>::max();
  if (options.drop_initial_state) {
    // In the authors' list the fixed point stands first as well, so it wins ties.
    first = 1;
    best = static_cast<std::int32_t>(states.size() / width) - 1;
    best_distance = schedule_distance(options, 0, block_size, index);
  }
  for (std::size_t s = first; s * width < states.size(); ++s) {
    const auto state = states.subspan(s * width, width);
    const std::int64_t distance = schedule_distance(
        options, unconverged_tokens(state, fixed_point, options.measure), block_size, index);
    if (distance < best_distance) {
      best = static_cast<std::int32_t>(s);
      best_distance = distance;
    }
  }
  return best;
}

namespace {

void check_block(const Trajectory& trajectory, std::size_t index) {
  const TrajectoryBlock& block = trajectory.blocks[index];
  const auto width = static_cast<std::size_t>(trajectory.block_size);
  if (block.states.empty() || block.states.size() % width != 0) {
    throw DataError(
        fmt::format("trajectory of prompt {}, block {}: {} state tokens are no whole number of "
                    "blocks of {}; generate it anew",
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

std::int64_t packed_length(const Trajectory& trajectory) {
  return static_cast<std::int64_t>(trajectory.prompt.size()) +
         2 * static_cast<std::int64_t>(trajectory.blocks.size()) * trajectory.block_size;
}

}  // namespace jforge
