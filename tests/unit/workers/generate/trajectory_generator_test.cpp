#include "workers/generate/trajectory_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>

#include "model/decoding/parallel_trajectory_decoder.h"
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

// ---- teacher-forced parallel trajectories
// ---------------------------------------------------------

std::vector<Trajectory> generated_by(GenerationMethod method, GenerateOptions chosen,
                                     std::span<const GeneratePrompt> given) {
  auto model = fake_model(chosen.batch_prompts);
  chosen.method = method;
  TrajectoryGenerator generator(model, chosen);
  auto trajectories = generate(generator, given);
  EXPECT_EQ(generator.counts().flipped_blocks, 0);
  return std::move(*trajectories);
}

TEST(ParallelTrajectories, AreTheSequentialOnes) {  // I28
  auto given = prompts(12);
  for (const std::int32_t n : {1, 4, 8, 16, 32}) {
    for (const ScheduleKind kind :
         {ScheduleKind::linear, ScheduleKind::reverse, ScheduleKind::random}) {
      for (const StoredStates stored : {StoredStates::all, StoredStates::selected}) {
        auto chosen = options(stored);
        chosen.block_size = n;
        chosen.schedule.kind = kind;
        const auto expected = generated_by(GenerationMethod::sequential, chosen, given);
        for (const std::int32_t batch : {1, 3, 8}) {
          SCOPED_TRACE(testing::Message() << "n " << n << ", batch " << batch);
          chosen.batch_prompts = batch;
          std::ranges::reverse(given);
          const auto parallel = generated_by(GenerationMethod::parallel, chosen, given);
          ASSERT_EQ(parallel.size(), expected.size());
          for (std::size_t i = 0; i < expected.size(); ++i) {
            expect_same_states(parallel[i], expected[i]);
          }
        }
      }
    }
  }
}

TEST(ParallelTrajectories, SelectAsEveryScheduleWould) {  // I7
  const auto given = prompts(12);
  for (const auto endpoint : {ScheduleEndpoint::inclusive, ScheduleEndpoint::exclusive}) {
    for (const auto measure : {UnconvergedMeasure::prefix, UnconvergedMeasure::positionwise}) {
      for (const auto target : {ScheduleTarget::ratio, ScheduleTarget::ceil_count}) {
        for (const bool drop : {false, true}) {
          for (const std::int32_t window : {1, 5, 16}) {
            auto chosen = options(StoredStates::selected);
            chosen.block_size = 6;
            chosen.schedule = {.window = window,
                               .endpoint = endpoint,
                               .measure = measure,
                               .target = target,
                               .drop_initial_state = drop};
            const auto expected = generated_by(GenerationMethod::sequential, chosen, given);
            const auto parallel = generated_by(GenerationMethod::parallel, chosen, given);
            for (std::size_t t = 0; t < expected.size(); ++t) {
              expect_same_states(parallel[t], expected[t]);
              for (std::size_t i = 0; i < expected[t].blocks.size(); ++i) {
                const TrajectoryBlock& left = parallel[t].blocks[i];
                const TrajectoryBlock& right = expected[t].blocks[i];
                EXPECT_LE(left.states_seen, right.states_seen);
                if (right.selected_state + 1 < right.states_seen) {
                  EXPECT_EQ(left.selected_state, right.selected_state);
                } else {
                  EXPECT_EQ(left.selected_state + 1, left.states_seen) << "the fixed point";
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(ParallelTrajectories, AllStatesAreSeenWhereAllAreStored) {
  const auto given = prompts(12);
  const auto chosen = options(StoredStates::all);
  const auto expected = generated_by(GenerationMethod::sequential, chosen, given);
  const auto parallel = generated_by(GenerationMethod::parallel, chosen, given);
  for (std::size_t t = 0; t < expected.size(); ++t) {
    for (std::size_t i = 0; i < expected[t].blocks.size(); ++i) {
      EXPECT_EQ(parallel[t].blocks[i].states_seen, expected[t].blocks[i].states_seen);
      EXPECT_EQ(parallel[t].blocks[i].selected_state, -1);
    }
  }
}

// A block that wants u unconverged tokens takes passes of n − 1, n − 2, … u + 1 rows: a third of n²
// on average. The text is one row a token.
TEST(ParallelTrajectories, ForwardAThirdOfTheSquare) {
  for (const std::int32_t n : {16, 32, 64}) {
    constexpr std::int32_t kWindow = 16;
    constexpr std::int32_t kPrompts = 4;
    FakeDecodeModel model({.num_slots = kPrompts,
                           .slot_capacity = 8 + kWindow * 64,
                           .branch_rows = 1024,
                           .vocabulary = 1'000'003,
                           .local = 0});
    GenerateOptions chosen;
    chosen.method = GenerationMethod::parallel;
    chosen.block_size = n;
    chosen.max_new_tokens = std::int64_t{kWindow} * n;
    chosen.batch_prompts = kPrompts;
    chosen.schedule.window = kWindow;
    TrajectoryGenerator generator(model, chosen);
    std::vector<GeneratePrompt> given;
    for (PromptId id = 0; id < kPrompts; ++id) {
      given.push_back({.id = id, .tokens = random_prompt(id, 8, 1'000'003)});
    }
    ASSERT_TRUE(generate(generator, given).has_value());
    std::int64_t expected = std::int64_t{kWindow} * n - 1;
    for (std::int32_t j = 1; j < kWindow; ++j) {
      // Minimises |u (w − 1) − j n|; above u the passes have n − 1 … u + 1 rows.
      std::int32_t u = n - 1;
      while (u > 0 &&
             std::abs((u - 1) * (kWindow - 1) - j * n) < std::abs(u * (kWindow - 1) - j * n)) {
        expected += u--;
      }
    }
    const DecodeStatistics& statistics = generator.counts().decoder;
    const std::int64_t rows = statistics.rows - statistics.prefill_rows;
    EXPECT_EQ(rows, kPrompts * expected);
    const double per_block = static_cast<double>(rows) / (kPrompts * kWindow);
    RecordProperty("rows_per_block_" + std::to_string(n), std::to_string(per_block));
    const double square = static_cast<double>(n) * n;
    EXPECT_LE(per_block, 1.1 * (square / 3 + 2.0 * n));
    EXPECT_LT(per_block, square / 2) << "block after block";
  }
}

TEST(ParallelTrajectories, TheFixedPointIsAuthoritative) {
  FakeDecodeModel model({.num_slots = 4,
                         .slot_capacity = 128,
                         .branch_rows = 1024,
                         .vocabulary = static_cast<std::int32_t>(kVocabulary),
                         .flip_rate = 0.02});
  auto chosen = options(StoredStates::all);
  chosen.method = GenerationMethod::parallel;
  TrajectoryGenerator generator(model, chosen);
  const auto generated = generate(generator, prompts(40));
  ASSERT_TRUE(generated.has_value());
  std::int64_t flipped = 0;
  std::int64_t blocks = 0;
  for (const Trajectory& trajectory : *generated) {
    flipped += trajectory.flipped_blocks;
    blocks += std::ssize(trajectory.blocks);
    for (const TrajectoryBlock& block : trajectory.blocks) {
      EXPECT_LE(block.states_seen, kBlockSize);
      std::int32_t before = 0;
      for (std::int32_t s = 0; s < block.states_seen; ++s) {
        const auto state =
            std::span(block.states).subspan(static_cast<std::size_t>(s) * kBlockSize, kBlockSize);
        const auto converged = converged_prefix(state, std::span(block.states).last(kBlockSize));
        EXPECT_GT(converged, before) << "I3";
        before = converged;
      }
      EXPECT_EQ(before, kBlockSize);
    }
  }
  EXPECT_EQ(generator.counts().flipped_blocks, flipped);
  EXPECT_GT(flipped, blocks / 50);
  EXPECT_LT(flipped, blocks / 2);
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
