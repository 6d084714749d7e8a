/// Trajectories from prompts: content, order, selection, stops and errors, over a fake model.

#include "workers/generate/trajectory_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "tests/unit/workers/generate/generator_fixture.h"

namespace jforge::test {
namespace {

std::vector<TokenId> fixed_points(const Trajectory& trajectory) {
  std::vector<TokenId> answer;
  for (const TrajectoryBlock& block : trajectory.blocks) {
    answer.insert(answer.end(), block.states.end() - trajectory.block_size, block.states.end());
  }
  return answer;
}

TEST(TrajectoryGenerator, TrajectoriesHoldTheGreedyAnswerUpToTheBlockWithEos) {  // I6
  auto model = fake_model(4);
  TrajectoryGenerator generator(model, options(StoredStates::all));
  const auto given = prompts(30);
  const auto generated = generate(generator, given);
  ASSERT_TRUE(generated.has_value());
  ASSERT_EQ(generated->size(), given.size());
  EXPECT_TRUE(std::ranges::is_sorted(*generated, {}, &Trajectory::prompt_id));
  const std::vector<TokenId> eos_ids{3, 5};
  int ended = 0;
  for (const Trajectory& trajectory : *generated) {
    const auto prompt = std::ranges::find(given, trajectory.prompt_id, &GeneratePrompt::id);
    ASSERT_NE(prompt, given.end());
    EXPECT_EQ(trajectory.prompt, prompt->tokens);
    const auto answer = fixed_points(trajectory);
    EXPECT_EQ(answer, model.greedy(prompt->tokens, answer.size()));
    const auto eos =
        std::find_first_of(answer.begin(), answer.end(), eos_ids.begin(), eos_ids.end());
    if (eos == answer.end()) {
      EXPECT_EQ(trajectory.stop, StopReason::length);
      EXPECT_EQ(trajectory.eos_position, -1);
      EXPECT_EQ(trajectory.blocks.size(), 6U) << "ceil(45 / 8)";
    } else {
      ++ended;
      EXPECT_EQ(trajectory.stop, StopReason::eos);
      EXPECT_EQ(trajectory.eos_position, eos - answer.begin());
      EXPECT_EQ(trajectory.blocks.size(),
                static_cast<std::size_t>(trajectory.eos_position / kBlockSize) + 1);
    }
    EXPECT_EQ(trajectory.flipped_blocks, 0);
    EXPECT_GE(trajectory.forwards, std::ssize(trajectory.blocks));
    EXPECT_LT(trajectory.forwards, std::ssize(trajectory.blocks) * kBlockSize) << "I24";
    for (std::size_t i = 0; i < trajectory.blocks.size(); ++i) {
      EXPECT_EQ(trajectory.num_states(i), trajectory.blocks[i].states_seen);
      EXPECT_EQ(trajectory.blocks[i].selected_state, -1);
    }
  }
  EXPECT_GT(ended, 0);
  EXPECT_LT(ended, 30);
}

TEST(TrajectoryGenerator, SelectedStatesAreTheScheduledOnes) {  // I7
  auto model = fake_model(4);
  const auto given = prompts(12);
  TrajectoryGenerator full(model, options(StoredStates::all));
  TrajectoryGenerator pairs(model, options(StoredStates::selected));
  const auto all = generate(full, given);
  const auto selected = generate(pairs, given);
  ASSERT_TRUE(all.has_value() && selected.has_value());
  const auto schedule = options(StoredStates::selected).schedule;
  for (std::size_t t = 0; t < all->size(); ++t) {
    ASSERT_EQ((*all)[t].blocks.size(), (*selected)[t].blocks.size());
    for (std::size_t i = 0; i < (*all)[t].blocks.size(); ++i) {
      const TrajectoryBlock& whole = (*all)[t].blocks[i];
      const TrajectoryBlock& pair = (*selected)[t].blocks[i];
      const auto index = select_state(schedule, whole.states, kBlockSize, (*all)[t].prompt_id,
                                      static_cast<std::int64_t>(i));
      EXPECT_EQ(pair.selected_state, index);
      EXPECT_EQ(pair.states_seen, whole.states_seen);
      ASSERT_EQ(pair.states.size(), 2U * kBlockSize);
      EXPECT_TRUE(std::equal(pair.states.begin(), pair.states.begin() + kBlockSize,
                             whole.states.begin() + index * kBlockSize));
      EXPECT_TRUE(std::equal(pair.states.end() - kBlockSize, pair.states.end(),
                             whole.states.end() - kBlockSize));
      if (i % 4 == 0) {
        EXPECT_TRUE(std::equal(pair.states.begin(), pair.states.begin() + kBlockSize,
                               pair.states.begin() + kBlockSize))
            << "a schedule index of 0 asks for no noise";
      }
    }
    const auto from_all = make_packed_sample((*all)[t], schedule);
    const auto from_pairs = make_packed_sample((*selected)[t], schedule);
    EXPECT_EQ(from_all.noisy, from_pairs.noisy);
    EXPECT_EQ(from_all.clean, from_pairs.clean);
  }
}

TEST(TrajectoryGenerator, ResultsDoNotDependOnBatchOrderOrCompany) {  // I25
  auto given = prompts(20);
  auto alone = fake_model(1);
  auto chosen = options(StoredStates::all);
  TrajectoryGenerator single(alone, chosen);
  const auto expected = generate(single, given);
  ASSERT_TRUE(expected.has_value());
  for (const std::int32_t batch : {1, 3, 8, 32}) {
    std::ranges::reverse(given);
    auto model = fake_model(batch);
    chosen.batch_prompts = batch;
    TrajectoryGenerator generator(model, chosen);
    const std::size_t half = given.size() / 2;
    auto first = generate(generator, std::span(given).first(half));
    auto second = generate(generator, std::span(given).subspan(half));
    ASSERT_TRUE(first.has_value() && second.has_value());
    first->insert(first->end(), second->begin(), second->end());
    std::ranges::sort(*first, {}, &Trajectory::prompt_id);
    ASSERT_EQ(first->size(), expected->size());
    for (std::size_t i = 0; i < expected->size(); ++i) {
      expect_equal((*first)[i], (*expected)[i]);
    }
    EXPECT_EQ(generator.counts().forwards, single.counts().forwards);
  }
}

TEST(TrajectoryGenerator, CountsAddUp) {
  auto model = fake_model(4);
  TrajectoryGenerator generator(model, options(StoredStates::all));
  const auto given = prompts(15);
  std::vector<std::int64_t> reported;
  std::vector<Trajectory> generated;
  std::size_t next = 0;
  while (generated.size() < given.size()) {
    while (generator.free_places() > 0 && next < given.size()) {
      generator.admit(given[next++]);
    }
    generator.step();
    while (auto trajectory = generator.take_finished()) {
      reported.push_back(generator.counts().prompts);
      generated.push_back(std::move(*trajectory));
    }
  }
  EXPECT_EQ(generator.running(), 0U);
  std::vector<std::int64_t> expected(given.size());
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(reported, expected);
  const GenerationCounts& counts = generator.counts();
  std::int64_t block_tokens = 0;
  std::int64_t answer_tokens = 0;
  std::int64_t forwards = 0;
  std::int64_t prompt_tokens = 0;
  for (const Trajectory& trajectory : generated) {
    const auto length = static_cast<std::int64_t>(trajectory.blocks.size()) * kBlockSize;
    block_tokens += length;
    answer_tokens +=
        trajectory.eos_position < 0 ? 45 : std::min<std::int64_t>(45, trajectory.eos_position + 1);
    forwards += trajectory.forwards;
    prompt_tokens += static_cast<std::int64_t>(trajectory.prompt.size());
  }
  EXPECT_EQ(counts.block_tokens, block_tokens);
  EXPECT_EQ(counts.answer_tokens, answer_tokens);
  EXPECT_EQ(counts.forwards, forwards);
  EXPECT_EQ(counts.prefill_tokens, prompt_tokens);
  EXPECT_EQ(counts.decoder.prefill_rows, prompt_tokens);
  EXPECT_GE(counts.states_seen, block_tokens / kBlockSize);
  EXPECT_LE(counts.block_tokens - counts.prompts,
            counts.decoder.rows - counts.decoder.prefill_rows);
  EXPECT_DOUBLE_EQ(counts.cost_of_blocks().tokens_per_forward().value(),
                   static_cast<double>(block_tokens - 15) / static_cast<double>(forwards));
}

TEST(TrajectoryGenerator, AStopGivesNothingAndTheNextCallIsWhole) {
  auto model = fake_model(4);
  TrajectoryGenerator generator(model, options(StoredStates::all));
  const auto given = prompts(10);
  int steps = 0;
  EXPECT_FALSE(generate(generator, given, [&] { return ++steps == 5; }).has_value());
  const auto generated = generate(generator, given);
  ASSERT_TRUE(generated.has_value());
  auto fresh_model = fake_model(4);
  TrajectoryGenerator fresh(fresh_model, options(StoredStates::all));
  const auto expected = generate(fresh, given);
  for (std::size_t i = 0; i < expected->size(); ++i) {
    expect_equal((*generated)[i], (*expected)[i]);
  }
  EXPECT_TRUE(generate(generator, {}).has_value()) << "no prompts are done at once";
}

TEST(TrajectoryGenerator, BadPromptsAndOptionsAreRefused) {
  auto model = fake_model(2);
  TrajectoryGenerator generator(model, options(StoredStates::selected));
  EXPECT_EQ(options(StoredStates::all).required_positions(80), 80 + 48);
  const std::vector<GeneratePrompt> fits{{.id = 1, .tokens = random_prompt(1, 80, kVocabulary)}};
  const std::vector<GeneratePrompt> too_long{
      {.id = 1, .tokens = random_prompt(1, 81, kVocabulary)}};
  const std::vector<GeneratePrompt> twice{{.id = 4, .tokens = {1}}, {.id = 4, .tokens = {2}}};
  const std::vector<GeneratePrompt> empty{{.id = 4, .tokens = {}}};
  EXPECT_TRUE(generate(generator, fits).has_value());
  EXPECT_THROW((void)generate(generator, too_long), DataError);
  EXPECT_THROW((void)generate(generator, twice), DataError);
  EXPECT_THROW((void)generate(generator, empty), DataError);
  EXPECT_TRUE(generate(generator, fits).has_value()) << "an error leaves the generator usable";
  const auto refused = [&](auto&& change) {
    auto bad = options(StoredStates::selected);
    change(bad);
    EXPECT_THROW(TrajectoryGenerator(model, bad), ConfigError);
  };
  refused([](GenerateOptions& bad) { bad.block_size = 0; });
  refused([](GenerateOptions& bad) { bad.max_new_tokens = 0; });
  refused([](GenerateOptions& bad) { bad.batch_prompts = 0; });
  refused([](GenerateOptions& bad) { bad.schedule.window = 0; });
}

}  // namespace
}  // namespace jforge::test
