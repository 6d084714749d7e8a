#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/unit/model/decoding/fake_decode_model.h"
#include "workers/generate/trajectory_generator.h"

namespace jforge::test {

inline constexpr std::uint64_t kVocabulary = 151;
inline constexpr std::int32_t kBlockSize = 8;

inline FakeDecodeModel fake_model(std::int32_t num_slots) {
  return FakeDecodeModel({.num_slots = num_slots,
                          .slot_capacity = 128,
                          .branch_rows = 1024,
                          .vocabulary = static_cast<std::int32_t>(kVocabulary)});
}

inline GenerateOptions options(StoredStates stored) {
  GenerateOptions result;
  result.block_size = kBlockSize;
  result.max_new_tokens = 45;
  result.seed = 11;
  result.eos_ids = {3, 5};
  result.batch_prompts = 4;
  result.stored_states = stored;
  result.schedule.window = 4;
  return result;
}

/// `count` ≤ 64 prompts of 1 to 20 tokens, with unordered ids.
inline std::vector<GeneratePrompt> prompts(std::size_t count) {
  std::vector<GeneratePrompt> result;
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<PromptId>((i * 17) % 64);
    result.push_back({.id = id, .tokens = random_prompt(id, 1 + i % 20, kVocabulary)});
  }
  return result;
}

/// Sorted by prompt id; nothing after a stop.
inline std::optional<std::vector<Trajectory>> generate(
    TrajectoryGenerator& generator, std::span<const GeneratePrompt> prompts,
    const std::function<bool()>& stop_requested = [] { return false; }) {
  std::vector<Trajectory> trajectories;
  std::size_t next = 0;
  generator.clear();
  do {
    while (generator.free_places() > 0 && next < prompts.size()) {
      generator.admit(prompts[next++]);
    }
    if (generator.running() == 0) {
      break;
    }
    generator.step();
    while (auto trajectory = generator.take_finished()) {
      trajectories.push_back(std::move(*trajectory));
    }
  } while (!stop_requested());
  if (trajectories.size() < prompts.size()) {
    return std::nullopt;
  }
  std::ranges::sort(trajectories, {}, &Trajectory::prompt_id);
  return trajectories;
}

/// Everything that a training sample uses.
inline void expect_same_states(const Trajectory& left, const Trajectory& right) {
  EXPECT_EQ(left.prompt_id, right.prompt_id);
  EXPECT_EQ(left.block_size, right.block_size);
  EXPECT_EQ(left.stop, right.stop);
  EXPECT_EQ(left.eos_position, right.eos_position);
  EXPECT_EQ(left.prompt, right.prompt);
  ASSERT_EQ(left.blocks.size(), right.blocks.size());
  for (std::size_t i = 0; i < left.blocks.size(); ++i) {
    ASSERT_EQ(left.blocks[i].states, right.blocks[i].states) << "block " << i;
  }
}

inline void expect_equal(const Trajectory& left, const Trajectory& right) {
  ASSERT_NO_FATAL_FAILURE(expect_same_states(left, right));
  EXPECT_EQ(left.forwards, right.forwards);
  for (std::size_t i = 0; i < left.blocks.size(); ++i) {
    EXPECT_EQ(left.blocks[i].states_seen, right.blocks[i].states_seen);
    EXPECT_EQ(left.blocks[i].selected_state, right.blocks[i].selected_state);
  }
}

}  // namespace jforge::test
