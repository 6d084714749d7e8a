#include "data/batches/noise_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runtime/error.h"
#include "runtime/random.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

// Converges by one or more tokens a step, like greedy Jacobi decoding.
Trajectory random_trajectory(std::uint64_t seed, std::int32_t n, int num_blocks) {
  RandomStream stream(seed, RandomPurpose::test);
  Trajectory trajectory;
  trajectory.prompt_id = static_cast<PromptId>(seed);
  trajectory.block_size = n;
  trajectory.prompt = {1, 2, 3};
  for (int b = 0; b < num_blocks; ++b) {
    std::vector<TokenId> fixed;
    for (int o = 0; o < n; ++o) {
      fixed.push_back(static_cast<TokenId>(stream.below(50)));
    }
    TrajectoryBlock block;
    std::int32_t converged = 1;
    while (converged < n) {
      for (int o = 0; o < n; ++o) {
        // Agreement by chance makes the two measures differ.
        const bool agree = o < converged || (o > converged && stream.below(3) == 0);
        block.states.push_back(agree ? fixed[static_cast<std::size_t>(o)]
                                     : fixed[static_cast<std::size_t>(o)] + 100);
      }
      converged += 1 + static_cast<std::int32_t>(stream.below(3));
    }
    block.states.insert(block.states.end(), fixed.begin(), fixed.end());
    block.states_seen = static_cast<std::int32_t>(block.states.size()) / n;
    trajectory.blocks.push_back(block);
  }
  return trajectory;
}

NoiseScheduleOptions options_with(ScheduleKind kind, std::int32_t window) {
  NoiseScheduleOptions options;
  options.kind = kind;
  options.window = window;
  options.seed = 11;
  options.round = 2;
  return options;
}

TEST(ScheduleIndex, LinearAndReverseRepeatWithTheWindow) {
  const auto linear = options_with(ScheduleKind::linear, 4);
  const auto reverse = options_with(ScheduleKind::reverse, 4);
  const std::vector<int> rising{0, 1, 2, 3, 0, 1, 2, 3, 0};
  for (std::size_t i = 0; i < rising.size(); ++i) {
    EXPECT_EQ(schedule_index(linear, 7, static_cast<std::int64_t>(i)), rising[i]);
    EXPECT_EQ(schedule_index(reverse, 7, static_cast<std::int64_t>(i)), 3 - rising[i]);
  }
}

TEST(ScheduleIndex, RandomDependsOnSeedRoundPromptAndBlockOnly) {
  const auto options = options_with(ScheduleKind::random, 8);
  auto other_seed = options;
  other_seed.seed = 12;
  auto other_round = options;
  other_round.round = 3;
  std::set<int> values;
  int differ_seed = 0, differ_round = 0, differ_prompt = 0;
  for (int i = 0; i < 256; ++i) {
    const int j = schedule_index(options, 5, i);
    EXPECT_EQ(j, schedule_index(options, 5, i));
    EXPECT_GE(j, 0);
    EXPECT_LT(j, 8);
    values.insert(j);
    differ_seed += j != schedule_index(other_seed, 5, i) ? 1 : 0;
    differ_round += j != schedule_index(other_round, 5, i) ? 1 : 0;
    differ_prompt += j != schedule_index(options, 6, i) ? 1 : 0;
  }
  EXPECT_EQ(values.size(), 8u);
  EXPECT_GT(differ_seed, 100);
  EXPECT_GT(differ_round, 100);
  EXPECT_GT(differ_prompt, 100);
}

TEST(ScheduleIndex, RefusesAWindowBelowOne) {
  EXPECT_THROW(static_cast<void>(schedule_index(options_with(ScheduleKind::linear, 0), 0, 0)),
               ConfigError);
}

TEST(Unconverged, PrefixAndPositionwiseDifferOnLuckyTokens) {
  const std::vector<TokenId> fixed{1, 2, 3, 4};
  const std::vector<TokenId> state{1, 9, 3, 8};
  EXPECT_EQ(converged_prefix(state, fixed), 1);
  EXPECT_EQ(unconverged_tokens(state, fixed, UnconvergedMeasure::prefix), 3);
  EXPECT_EQ(unconverged_tokens(state, fixed, UnconvergedMeasure::positionwise), 2);
  EXPECT_EQ(converged_prefix(fixed, fixed), 4);
  EXPECT_EQ(unconverged_tokens(fixed, fixed, UnconvergedMeasure::prefix), 0);
}

TEST(ScheduleDistance, FollowsTheFormulas) {
  auto options = options_with(ScheduleKind::linear, 4);
  EXPECT_EQ(schedule_distance(options, 3, 8, 2), std::abs(3 * 3 - 2 * 8));
  options.endpoint = ScheduleEndpoint::exclusive;
  EXPECT_EQ(schedule_distance(options, 3, 8, 2), std::abs(3 * 4 - 2 * 8));
  options.target = ScheduleTarget::ceil_count;
  EXPECT_EQ(schedule_distance(options, 3, 6, 3), std::abs(3 - 5));  // ceil(3/4·6) = 5
  options.endpoint = ScheduleEndpoint::inclusive;
  EXPECT_EQ(schedule_distance(options, 3, 8, 2), std::abs(3 - 6));  // ceil(2/3·8) = 6
  EXPECT_EQ(schedule_distance(options, 8, 8, 3), 0);
}

TEST(SelectState, WindowOfOneWantsAllNoise) {
  auto options = options_with(ScheduleKind::linear, 1);
  const std::vector<TokenId> states{1, 8, 8, 1, 2, 8, 1, 2, 3};
  EXPECT_EQ(select_state(options, states, 3, 0, 0), 0);
  options.endpoint = ScheduleEndpoint::exclusive;  // t = 0/1
  EXPECT_EQ(select_state(options, states, 3, 0, 0), 2);
}

TEST(SelectState, TiesGoToTheEarliestState) {
  // n = 4, w = 3, j = 1: t = 1/2, 2 unconverged wanted; states with 3 and 1 are equally far.
  const auto options = options_with(ScheduleKind::linear, 3);
  const std::vector<TokenId> states{1, 9, 9, 9, 1, 2, 3, 9, 1, 2, 3, 4};
  EXPECT_EQ(select_state(options, states, 4, 0, 1), 0);
  const std::vector<TokenId> twice{1, 2, 9, 9, 1, 2, 9, 8, 1, 2, 3, 4};
  EXPECT_EQ(select_state(options, twice, 4, 0, 1), 0);
}

TEST(SelectState, BrokenStatesAreRefused) {
  const auto options = options_with(ScheduleKind::linear, 3);
  EXPECT_THROW(static_cast<void>(select_state(options, {}, 4, 0, 0)), InternalError);
  const std::vector<TokenId> odd{1, 2, 3};
  EXPECT_THROW(static_cast<void>(select_state(options, odd, 2, 0, 0)), InternalError);
}

// I7, checked also by the repository's rule in floating point.
TEST(PackedSample, KeepsInvariantSeven) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    for (const auto kind : {ScheduleKind::linear, ScheduleKind::reverse, ScheduleKind::random}) {
      for (const std::int32_t window : {1, 2, 5, 16}) {
        const std::int32_t n = 2 + static_cast<std::int32_t>(seed % 15);
        const Trajectory trajectory = random_trajectory(seed, n, 7);
        const auto options = options_with(kind, window);
        const PackedSample sample = make_packed_sample(trajectory, options);
        ASSERT_EQ(sample.clean.size(), 7U * static_cast<std::size_t>(sample.block_size));
        ASSERT_EQ(sample.packed_length(), 3 + 2 * n * 7);
        for (std::size_t i = 0; i < 7; ++i) {
          const std::span<const TokenId> states(trajectory.blocks[i].states);
          const auto width = static_cast<std::size_t>(n);
          const auto noisy = std::span(sample.noisy).subspan(i * width, width);
          const auto clean = std::span(sample.clean).subspan(i * width, width);
          const auto fixed = states.last(width);
          ASSERT_TRUE(std::equal(clean.begin(), clean.end(), fixed.begin()));
          const int j = schedule_index(options, trajectory.prompt_id, static_cast<int>(i));
          const double t = window == 1 ? 1.0 : static_cast<double>(j) / (window - 1);
          double best = 2;
          std::size_t best_state = 0;
          for (std::size_t s = 0; s * width < states.size(); ++s) {
            const auto state = states.subspan(s * width, width);
            const double ratio = static_cast<double>(n - converged_prefix(state, fixed)) / n;
            if (std::abs(ratio - t) < best - 1e-12) {
              best = std::abs(ratio - t);
              best_state = s;
            }
          }
          const auto expected = states.subspan(best_state * width, width);
          ASSERT_TRUE(std::equal(noisy.begin(), noisy.end(), expected.begin()))
              << "seed " << seed << " block " << i << " window " << window;
          if (kind == ScheduleKind::linear && window > 1 &&
              i % static_cast<std::size_t>(window) == 0) {
            ASSERT_TRUE(std::equal(noisy.begin(), noisy.end(), clean.begin()));
          }
        }
      }
    }
  }
}

// I7 for compat = "paper": |u − ceil(t·n)| over positions that differ, t = j/w.
TEST(PackedSample, KeepsInvariantSevenWithThePapersRule) {
  int differs_from_default = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    for (const std::int32_t window : {1, 2, 3, 5, 16}) {
      const std::int32_t n = 2 + static_cast<std::int32_t>(seed % 15);
      const auto width = static_cast<std::size_t>(n);
      const Trajectory trajectory = random_trajectory(seed, n, 7);
      auto options = options_with(ScheduleKind::linear, window);
      const PackedSample by_default = make_packed_sample(trajectory, options);
      options.endpoint = ScheduleEndpoint::exclusive;
      options.measure = UnconvergedMeasure::positionwise;
      options.target = ScheduleTarget::ceil_count;
      const PackedSample sample = make_packed_sample(trajectory, options);
      differs_from_default += sample.noisy != by_default.noisy ? 1 : 0;
      for (std::size_t i = 0; i < 7; ++i) {
        const std::vector<TokenId>& states = trajectory.blocks[i].states;
        int wanted = 0;  // ceil(t·n): the smallest count with count·w ≥ j·n
        while (wanted * window < static_cast<int>(i) % window * n) {
          ++wanted;
        }
        int best = n + 1;
        std::size_t best_state = 0;
        for (std::size_t s = 0; s < states.size() / width; ++s) {
          int unconverged = 0;
          for (std::size_t o = 0; o < width; ++o) {
            unconverged += states[s * width + o] != states[states.size() - width + o] ? 1 : 0;
          }
          if (std::abs(unconverged - wanted) < best) {
            best = std::abs(unconverged - wanted);
            best_state = s;
          }
        }
        for (std::size_t o = 0; o < width; ++o) {
          ASSERT_EQ(sample.noisy[i * width + o], states[best_state * width + o])
              << "seed " << seed << " block " << i << " window " << window;
          ASSERT_EQ(sample.clean[i * width + o], states[states.size() - width + o]);
        }
      }
    }
  }
  EXPECT_GT(differs_from_default, 100);
}

// If all states are stored, the authors' first one aliases the fixed point (D1), so the noisiest
// block that can be selected is the state after the first forward.
TEST(SelectState, NeverTakesADroppedInitialState) {
  auto options = options_with(ScheduleKind::linear, 1);  // t = 1
  options.drop_initial_state = true;
  const std::vector<TokenId> states{1, 8, 8, 8, 1, 2, 8, 8, 1, 2, 3, 4};
  EXPECT_EQ(select_state(options, states, 4, 0, 0), 1);
  const std::vector<TokenId> draft_and_fixed_point{1, 8, 8, 8, 1, 2, 3, 4};
  EXPECT_EQ(select_state(options, draft_and_fixed_point, 4, 0, 0), 1);
  const std::vector<TokenId> fixed_point{1, 2, 3, 4};
  EXPECT_EQ(select_state(options, fixed_point, 4, 0, 0), 0);
  // w = 5, j = 1: one token wanted; two and none are equally far, and the alias comes first.
  options.window = 5;
  EXPECT_EQ(select_state(options, states, 4, 0, 1), 2);
  options.drop_initial_state = false;
  EXPECT_EQ(select_state(options, states, 4, 0, 1), 1);
}

// The authors' serialised list: the fixed point overwrites states[0].
TEST(PackedSample, DroppingTheInitialStateEqualsTheAuthorsAlias) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const std::int32_t n = 2 + static_cast<std::int32_t>(seed % 15);
    for (const std::int32_t window : {1, 4, 16}) {
      const Trajectory trajectory = random_trajectory(seed, n, 9);
      Trajectory aliased = trajectory;
      for (TrajectoryBlock& block : aliased.blocks) {
        std::copy(block.states.end() - n, block.states.end(), block.states.begin());
      }
      auto options = options_with(ScheduleKind::linear, window);
      const PackedSample theirs = make_packed_sample(aliased, options);
      options.drop_initial_state = true;
      EXPECT_EQ(make_packed_sample(trajectory, options).noisy, theirs.noisy);
    }
  }
}

TEST(PackedSample, StoredPairGivesTheSameSampleAsAllStates) {
  const auto options = options_with(ScheduleKind::random, 6);
  const Trajectory all = random_trajectory(9, 8, 12);
  Trajectory pairs = all;
  for (std::size_t i = 0; i < pairs.blocks.size(); ++i) {
    TrajectoryBlock& block = pairs.blocks[i];
    block.selected_state =
        select_state(options, block.states, 8, all.prompt_id, static_cast<int>(i));
    const auto begin = block.states.begin() + block.selected_state * 8;
    std::vector<TokenId> kept(begin, begin + 8);
    kept.insert(kept.end(), block.states.end() - 8, block.states.end());
    block.states = kept;
  }
  const PackedSample from_all = make_packed_sample(all, options);
  const PackedSample from_pairs = make_packed_sample(pairs, options);
  EXPECT_EQ(from_all.noisy, from_pairs.noisy);
  EXPECT_EQ(from_all.clean, from_pairs.clean);
  EXPECT_EQ(from_pairs.window, 6);
}

TEST(PackedSample, MalformedTrajectoriesAreNamed) {
  const auto options = options_with(ScheduleKind::linear, 4);
  Trajectory trajectory = random_trajectory(3, 5, 3);
  trajectory.blocks[1].states.pop_back();
  EXPECT_THAT(test::message_of<DataError>([&] { return make_packed_sample(trajectory, options); }),
              testing::HasSubstr("prompt 3, block 1"));
  trajectory = random_trajectory(3, 5, 3);
  trajectory.blocks[2].selected_state = 0;
  trajectory.blocks[2].states.resize(5);
  EXPECT_THROW(static_cast<void>(make_packed_sample(trajectory, options)), DataError);
  trajectory.block_size = 0;
  EXPECT_THROW(static_cast<void>(make_packed_sample(trajectory, options)), DataError);
}

}  // namespace
}  // namespace jforge
