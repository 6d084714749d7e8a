#include "workers/generate/trajectory_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "runtime/error.h"

namespace jforge {

namespace {

JacobiOptions jacobi_options(const GenerateOptions& options) {
  return {.block_size = options.block_size,
          .window = DraftWindow::shrinking,
          .seed = options.seed,
          .round = options.round,
          .complete_blocks = true,
          .record_states = true};
}

/// Keeps the scheduled state and the fixed point of a block that holds all of its states.
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

/// Offset of the first end of sequence in the concatenated fixed points; −1 when there is none.
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

std::unordered_map<PromptId, std::size_t> index_prompts(std::span<const GeneratePrompt> prompts) {
  std::unordered_map<PromptId, std::size_t> index;
  index.reserve(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (!index.emplace(prompts[i].id, i).second) {
      throw DataError(fmt::format("generation: prompt {} is given twice", prompts[i].id));
    }
  }
  return index;
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

TrajectoryGenerator::TrajectoryGenerator(DecodeModel& model, GenerateOptions options)
    : options_((options.validate(), std::move(options))), decoder_(model, options_.batch_prompts) {}

std::optional<std::vector<Trajectory>> TrajectoryGenerator::generate(
    std::span<const GeneratePrompt> prompts, const Progress& progress,
    const BatchDecoder::StopRequested& stop_requested) {
  const auto index = index_prompts(prompts);
  std::vector<Trajectory> trajectories;
  trajectories.reserve(prompts.size());
  std::size_t next = 0;
  const auto source = [&]() -> std::unique_ptr<SequenceDecoder> {
    if (next == prompts.size()) {
      return nullptr;
    }
    const GeneratePrompt& prompt = prompts[next++];
    return make_jacobi_decoder({.id = prompt.id,
                                .prompt = prompt.tokens,
                                .max_new_tokens = options_.max_new_tokens,
                                .eos_ids = options_.eos_ids},
                               jacobi_options(options_));
  };
  const auto sink = [&](DecodeResult result) {
    const auto answer_tokens = static_cast<std::int64_t>(result.tokens.size());
    const GeneratePrompt& prompt = prompts[index.at(result.id)];
    trajectories.push_back(make_trajectory(prompt, std::move(result)));
    count(trajectories.back(), answer_tokens);
    counts_.decoder = decoder_.statistics();
    if (progress) {
      progress(counts_);
    }
  };
  decoder_.run(source, sink, stop_requested);
  counts_.decoder = decoder_.statistics();
  if (trajectories.size() < prompts.size()) {
    return std::nullopt;
  }
  std::ranges::sort(trajectories, {}, &Trajectory::prompt_id);
  return trajectories;
}

Trajectory TrajectoryGenerator::make_trajectory(const GeneratePrompt& prompt,
                                                DecodeResult result) const {
  Trajectory trajectory;
  trajectory.prompt_id = prompt.id;
  trajectory.block_size = options_.block_size;
  trajectory.forwards = result.forwards;
  trajectory.prompt = prompt.tokens;
  trajectory.eos_position = find_eos(result.blocks, options_.block_size, options_.eos_ids);
  trajectory.stop = trajectory.eos_position < 0 ? StopReason::length : StopReason::eos;
  if (options_.stored_states == StoredStates::selected) {
    for (std::size_t i = 0; i < result.blocks.size(); ++i) {
      keep_selected_state(result.blocks[i], options_.schedule, options_.block_size, prompt.id,
                          static_cast<std::int64_t>(i));
    }
  }
  trajectory.blocks = std::move(result.blocks);
  return trajectory;
}

void TrajectoryGenerator::count(const Trajectory& trajectory, std::int64_t answer_tokens) {
  counts_.prompts += 1;
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
