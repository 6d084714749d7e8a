#include "workers/generate/trajectory_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/parallel_trajectory_decoder.h"
#include "runtime/error.h"

namespace jforge {

namespace {

std::unique_ptr<SequenceDecoder> make_decoder(DecodeRequest request,
                                              const GenerateOptions& options) {
  if (options.method == GenerationMethod::parallel) {
    ParallelTrajectoryOptions parallel;
    parallel.block_size = options.block_size;
    parallel.seed = options.seed;
    parallel.round = options.round;
    if (options.stored_states == StoredStates::selected) {
      parallel.schedule = options.schedule;
    }
    return make_parallel_trajectory_decoder(std::move(request), parallel);
  }
  return make_jacobi_decoder(std::move(request), {.block_size = options.block_size,
                                                  .window = DraftWindow::shrinking,
                                                  .seed = options.seed,
                                                  .round = options.round,
                                                  .complete_blocks = true,
                                                  .record_states = true});
}

/// Requires: `block` holds all of its states.
void keep_selected_state(TrajectoryBlock& block, const NoiseScheduleOptions& schedule,
                         std::int32_t block_size, PromptId prompt_id, std::int64_t index) {
  block.selected_state = select_state(schedule, block.states, block_size, prompt_id, index);
  const auto n = static_cast<std::ptrdiff_t>(block_size);
  const auto noisy = block.states.begin() + n * block.selected_state;
  std::vector<TokenId> kept;
  kept.reserve(2 * static_cast<std::size_t>(block_size));
  kept.insert(kept.end(), noisy, noisy + n);
  kept.insert(kept.end(), block.states.end() - n, block.states.end());
  block.states = std::move(kept);
}

/// Offset of the first eos in the concatenated fixed points; −1 if there is none.
std::int64_t find_eos(const std::vector<TrajectoryBlock>& blocks, std::int32_t block_size,
                      std::span<const TokenId> eos_ids) {
  std::int64_t begin = 0;
  for (const TrajectoryBlock& block : blocks) {
    const auto fixed_point = block.states.end() - block_size;
    const auto eos =
        std::find_first_of(fixed_point, block.states.end(), eos_ids.begin(), eos_ids.end());
    if (eos != block.states.end()) {
      return begin + (eos - fixed_point);
    }
    begin += block_size;
  }
  return -1;
}

}  // namespace

void GenerateOptions::validate() const {
  if (block_size < 1) {
    throw ConfigError(
        fmt::format("generation: block_size is {}; it must be at least 1", block_size));
  }
  if (max_new_tokens < 1) {
    throw ConfigError(
        fmt::format("generation: max_new_tokens is {}; it must be at least 1", max_new_tokens));
  }
  if (batch_prompts < 1) {
    throw ConfigError(
        fmt::format("generation: batch_prompts is {}; it must be at least 1", batch_prompts));
  }
  if (stored_states == StoredStates::selected) {
    schedule.validate();
  }
}

std::int64_t GenerateOptions::required_positions(std::int64_t prompt_tokens) const {
  return prompt_tokens + (max_new_tokens + block_size - 1) / block_size * block_size;
}

std::int64_t GenerateOptions::required_branch_rows() const {
  return make_decoder({.prompt = {0}, .max_new_tokens = max_new_tokens}, *this)->max_branch_rows();
}

TrajectoryGenerator::TrajectoryGenerator(DecodeModel& model, GenerateOptions options)
    : options_((options.validate(), std::move(options))), engine_(model, options_.batch_prompts) {}

void TrajectoryGenerator::admit(GeneratePrompt prompt) {
  auto decoder = make_decoder({.id = prompt.id,
                               .prompt = prompt.tokens,
                               .max_new_tokens = options_.max_new_tokens,
                               .eos_ids = options_.eos_ids},
                              options_);
  if (!running_.emplace(prompt.id, std::move(prompt.tokens)).second) {
    throw DataError(fmt::format("generation: prompt {} is given twice", prompt.id));
  }
  engine_.admit(std::move(decoder));
}

void TrajectoryGenerator::step() {
  engine_.step();
  counts_.decoder = engine_.statistics();
}

std::optional<Trajectory> TrajectoryGenerator::take_finished() {
  std::optional<DecodeResult> result = engine_.take_finished();
  if (!result) {
    return std::nullopt;
  }
  return finish(std::move(*result));
}

void TrajectoryGenerator::clear() {
  engine_.clear();
  running_.clear();
}

Trajectory TrajectoryGenerator::finish(DecodeResult result) {
  const auto answer_tokens = static_cast<std::int64_t>(result.tokens.size());
  auto prompt = running_.extract(result.id);
  Trajectory trajectory = make_trajectory(std::move(prompt.mapped()), std::move(result));
  count(trajectory, answer_tokens);
  return trajectory;
}

Trajectory TrajectoryGenerator::make_trajectory(std::vector<TokenId> prompt,
                                                DecodeResult result) const {
  Trajectory trajectory;
  trajectory.prompt_id = result.id;
  trajectory.block_size = options_.block_size;
  trajectory.forwards = result.forwards;
  trajectory.flipped_blocks = result.flipped_blocks;
  trajectory.prompt = std::move(prompt);
  trajectory.eos_position = find_eos(result.blocks, options_.block_size, options_.eos_ids);
  trajectory.stop = trajectory.eos_position < 0 ? StopReason::length : StopReason::eos;
  if (options_.stored_states == StoredStates::selected &&
      options_.method == GenerationMethod::sequential) {
    for (std::size_t i = 0; i < result.blocks.size(); ++i) {
      keep_selected_state(result.blocks[i], options_.schedule, options_.block_size, result.id,
                          static_cast<std::int64_t>(i));
    }
  }
  trajectory.blocks = std::move(result.blocks);
  return trajectory;
}

void TrajectoryGenerator::count(const Trajectory& trajectory, std::int64_t answer_tokens) {
  counts_.prompts += 1;
  counts_.cut_answers += trajectory.stop == StopReason::length ? 1 : 0;
  counts_.answer_tokens += answer_tokens;
  counts_.block_tokens +=
      static_cast<std::int64_t>(trajectory.blocks.size()) * trajectory.block_size;
  counts_.forwards += trajectory.forwards;
  counts_.prefill_tokens += static_cast<std::int64_t>(trajectory.prompt.size());
  counts_.flipped_blocks += trajectory.flipped_blocks;
  for (const TrajectoryBlock& block : trajectory.blocks) {
    counts_.states_seen += block.states_seen;
  }
}

}  // namespace jforge
