/// Invariants I1–I6, I24 and I25 of the method over a fake model (METHOD.md §9).

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "tests/unit/model/decoding/fake_decode_model.h"

namespace jforge::test {
namespace {

constexpr std::uint64_t kVocabulary = 17;

JacobiOptions trajectory_options(std::int32_t block_size, std::uint64_t seed) {
  return {.block_size = block_size,
          .window = DraftWindow::shrinking,
          .seed = seed,
          .complete_blocks = true,
          .record_states = true};
}

JacobiOptions plain_options(std::int32_t block_size, std::uint64_t seed, DraftWindow window) {
  return {.block_size = block_size, .window = window, .seed = seed};
}

std::int64_t sum(const std::vector<std::int32_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::vector<std::vector<TokenId>> states_of(const TrajectoryBlock& block, std::int32_t n) {
  std::vector<std::vector<TokenId>> states;
  for (auto state = block.states.begin(); state != block.states.end(); state += n) {
    states.emplace_back(state, state + n);
  }
  return states;
}

/// d(s): the first position where the states differ.
std::size_t converged(const std::vector<TokenId>& state, const std::vector<TokenId>& fixed_point) {
  return static_cast<std::size_t>(std::ranges::mismatch(state, fixed_point).in1 - state.begin());
}

/// METHOD.md §1 once more, from fresh forwards and a given initial draft.
struct Replay {
  std::vector<std::vector<TokenId>> states;
  std::vector<std::int32_t> accepted;
};
Replay replay_block(const FakeDecodeModel& model, const std::vector<TokenId>& prefix,
                    const std::vector<TokenId>& initial) {
  Replay replay;
  replay.states.push_back(initial);
  std::vector<TokenId> state = initial;
  for (std::size_t committed = 0; committed < initial.size();) {
    std::vector<TokenId> predictions;
    std::vector<TokenId> all = prefix;
    all.insert(all.end(), state.begin(), state.begin() + static_cast<std::ptrdiff_t>(committed));
    for (std::size_t j = committed; j < state.size(); ++j) {
      all.push_back(state[j]);
      predictions.push_back(model.next(all));
    }
    std::size_t accepted = 1;
    while (committed + accepted < state.size() &&
           state[committed + accepted] == predictions[accepted - 1]) {
      ++accepted;
    }
    replay.accepted.push_back(static_cast<std::int32_t>(accepted));
    const std::size_t before = committed;
    committed += accepted;
    if (committed < state.size()) {
      for (std::size_t j = committed; j < state.size(); ++j) {
        state[j] = predictions[j - before - 1];
      }
      replay.states.push_back(state);
    }
  }
  return replay;
}

class JacobiInvariants : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  [[nodiscard]] std::int32_t block_size() const { return std::get<0>(GetParam()); }
  [[nodiscard]] std::uint64_t seed() const {
    return static_cast<std::uint64_t>(std::get<1>(GetParam()));
  }
  /// From nothing guessable to everything.
  [[nodiscard]] FakeDecodeModel model() const {
    return FakeDecodeModel({.local = static_cast<std::uint64_t>(std::get<2>(GetParam()))});
  }
  static DecodeRequest request(PromptId id, std::int64_t max_new_tokens) {
    return {.id = id,
            .prompt = random_prompt(id, 1 + static_cast<std::size_t>(id) % 9, kVocabulary),
            .max_new_tokens = max_new_tokens};
  }
};

TEST_P(JacobiInvariants, TokensEqualGreedyInEveryWindow) {  // I1
  auto fake = model();
  for (PromptId id = 0; id < 6; ++id) {
    for (const std::int64_t limit : {1, 2, 15, 16, 17, 50}) {
      const auto expected = fake.greedy(request(id, limit).prompt, static_cast<std::size_t>(limit));
      const auto greedy = drive(*make_greedy_decoder(request(id, limit)), fake);
      EXPECT_EQ(greedy.tokens, expected);
      for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
        const auto options = plain_options(block_size(), seed(), window);
        const auto result = drive(*make_jacobi_decoder(request(id, limit), options), fake);
        EXPECT_EQ(result.tokens, expected) << "prompt " << id << ", T " << limit;
        EXPECT_EQ(result.stop, StopReason::length);
      }
      const auto options = trajectory_options(block_size(), seed());
      EXPECT_EQ(drive(*make_jacobi_decoder(request(id, limit), options), fake).tokens, expected);
    }
  }
}

/// (tokens − 1) / forwards is within [1, n]; no other passes than prefill and forwards.
void expect_bounds(const DecodeResult& result, std::int64_t tokens, std::int32_t n,
                   std::int64_t passes) {
  EXPECT_EQ(result.prefill_forwards, 1);
  EXPECT_EQ(result.forwards, std::ssize(result.accepted));
  EXPECT_EQ(passes, 1 + result.forwards);
  EXPECT_EQ(sum(result.accepted), tokens - 1);
  EXPECT_TRUE(std::ranges::all_of(
      result.accepted, [&](std::int32_t accepted) { return accepted >= 1 && accepted <= n; }));
  const DecodingCost cost{.sequences = 1, .tokens = tokens, .forwards = result.forwards};
  const auto tpf = cost.tokens_per_forward();
  ASSERT_EQ(tpf.has_value(), tokens > 1);
  if (tpf) {
    EXPECT_GE(*tpf, 1.0);
    EXPECT_LE(*tpf, n);
  }
  if (n == 1 && tpf) {
    EXPECT_EQ(*tpf, 1.0);
  }
}

TEST_P(JacobiInvariants, TokensPerForwardKeepsItsBoundsHoweverAnAnswerEnds) {  // I2, I24
  auto fake = model();
  const std::int32_t n = block_size();
  std::int64_t ended = 0;
  for (PromptId id = 0; id < 8; ++id) {
    for (const std::int64_t limit : {1, 2, 39, 40}) {
      for (const std::int64_t eos_place : {-1, 1, 6}) {
        auto asked = request(id, limit);
        if (eos_place >= 0) {
          asked.eos_ids = {fake.greedy(asked.prompt, 7)[static_cast<std::size_t>(eos_place)]};
        }
        const auto counted = [&](std::unique_ptr<SequenceDecoder> decoder, std::int64_t& passes) {
          const std::int64_t before = fake.calls();
          auto result = drive(*decoder, fake);
          passes = fake.calls() - before;
          return result;
        };
        std::int64_t passes = 0;
        const auto greedy = counted(make_greedy_decoder(asked), passes);
        const std::int64_t tokens = std::ssize(greedy.tokens);
        expect_bounds(greedy, tokens, 1, passes);
        ended += greedy.stop == StopReason::eos && tokens > 1 ? 1 : 0;
        for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
          const auto result =
              counted(make_jacobi_decoder(asked, plain_options(n, seed(), window)), passes);
          EXPECT_EQ(result.tokens, greedy.tokens);
          EXPECT_EQ(result.stop, greedy.stop);
          expect_bounds(result, tokens, n, passes);
        }
        const auto trajectory =
            counted(make_jacobi_decoder(asked, trajectory_options(n, seed())), passes);
        const std::int64_t num_blocks = std::ssize(trajectory.blocks);
        if (eos_place < 0) {
          EXPECT_EQ(num_blocks, (limit + n - 1) / n);
        }
        expect_bounds(trajectory, num_blocks * n, n, passes);
      }
    }
  }
  EXPECT_GT(ended, 0) << "no answer ended by itself";
}

TEST_P(JacobiInvariants, StatesConvergeAndFollowTheRule) {  // I3, I6
  auto fake = model();
  const std::int32_t n = block_size();
  for (PromptId id = 0; id < 6; ++id) {
    const auto asked = request(id, 50);
    const auto result = drive(*make_jacobi_decoder(asked, trajectory_options(n, seed())), fake);
    std::vector<TokenId> prefix = asked.prompt;
    std::size_t forward = 0;
    for (const TrajectoryBlock& block : result.blocks) {
      const auto states = states_of(block, n);
      ASSERT_EQ(static_cast<std::int32_t>(states.size()), block.states_seen);
      EXPECT_EQ(block.selected_state, -1);
      const auto& fixed_point = states.back();
      EXPECT_EQ(fixed_point, fake.greedy(prefix, static_cast<std::size_t>(n)));
      EXPECT_GE(converged(states[0], fixed_point), 1U);
      if (states.size() > 1) {
        EXPECT_GE(converged(states[1], fixed_point), std::min<std::size_t>(2, states[0].size()));
      }
      for (std::size_t j = 1; j < states.size(); ++j) {
        EXPECT_GT(converged(states[j], fixed_point), converged(states[j - 1], fixed_point));
      }
      auto replay = replay_block(fake, prefix, states[0]);
      EXPECT_EQ(states, replay.states);
      if (&block == &result.blocks.back()) {
        // The last block's last token is known a pass before its commit.
        if (--replay.accepted.back() == 0) {
          replay.accepted.pop_back();
        }
      }
      ASSERT_LE(forward + replay.accepted.size(), result.accepted.size());
      EXPECT_TRUE(std::equal(replay.accepted.begin(), replay.accepted.end(),
                             result.accepted.begin() + static_cast<std::ptrdiff_t>(forward)));
      EXPECT_LE(replay.accepted.size(), static_cast<std::size_t>(n));
      forward += replay.accepted.size();
      prefix.insert(prefix.end(), fixed_point.begin(), fixed_point.end());
    }
    EXPECT_EQ(forward, result.accepted.size());
  }
}

TEST_P(JacobiInvariants, FixedPointIsAcceptedInOneForward) {  // I4
  auto fake = model();
  const std::int32_t n = block_size();
  const auto asked = request(4, 3 * n);
  const auto result = drive(*make_jacobi_decoder(asked, trajectory_options(n, seed())), fake);
  std::vector<TokenId> prefix = asked.prompt;
  for (std::size_t i = 0; i < result.blocks.size(); ++i) {
    const auto fixed_point = states_of(result.blocks[i], n).back();
    const auto replay = replay_block(fake, prefix, fixed_point);
    EXPECT_EQ(replay.accepted, std::vector<std::int32_t>{n});
    prefix.insert(prefix.end(), fixed_point.begin(), fixed_point.end());
    if (i + 1 < result.blocks.size()) {
      EXPECT_EQ(result.blocks[i + 1].states[0], fake.next(prefix)) << "f_next opens the next block";
    }
  }
}

TEST_P(JacobiInvariants, CacheHoldsPromptAndCommittedTokens) {  // I5
  auto fake = model();
  const auto asked = request(5, 40);
  for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
    const auto decoder = make_jacobi_decoder(asked, plain_options(block_size(), seed(), window));
    auto length = static_cast<std::int64_t>(asked.prompt.size());
    std::vector<std::int64_t> lengths;
    const auto result = drive(*decoder, fake, [&](const SequenceDecoder& stepped) {
      lengths.push_back(stepped.kv_length());
      EXPECT_LE(stepped.kv_length(), stepped.max_positions());
    });
    ASSERT_EQ(lengths.size(), result.accepted.size() + 1);
    EXPECT_EQ(lengths[0], length) << "after prefill";
    for (std::size_t i = 0; i < result.accepted.size(); ++i) {
      length += result.accepted[i];
      EXPECT_EQ(lengths[i + 1], length);
    }
  }
}

TEST_P(JacobiInvariants, SeedsChangeStatesAndNothingElse) {  // I25
  auto fake = model();
  const std::int32_t n = block_size();
  const auto once =
      drive(*make_jacobi_decoder(request(7, 64), trajectory_options(n, seed())), fake);
  const auto again =
      drive(*make_jacobi_decoder(request(7, 64), trajectory_options(n, seed())), fake);
  ASSERT_EQ(once.blocks.size(), again.blocks.size());
  for (std::size_t i = 0; i < once.blocks.size(); ++i) {
    EXPECT_EQ(once.blocks[i].states, again.blocks[i].states);
  }
  const auto other =
      drive(*make_jacobi_decoder(request(7, 64), trajectory_options(n, seed() + 1000)), fake);
  auto other_round_options = trajectory_options(n, seed());
  other_round_options.round = 1;
  const auto other_round = drive(*make_jacobi_decoder(request(7, 64), other_round_options), fake);
  EXPECT_EQ(other.tokens, once.tokens);
  EXPECT_EQ(other_round.tokens, once.tokens);
  ASSERT_EQ(other.blocks.size(), once.blocks.size());
  bool seed_matters = false;
  bool round_matters = false;
  for (std::size_t i = 0; i < once.blocks.size(); ++i) {
    seed_matters = seed_matters || other.blocks[i].states != once.blocks[i].states;
    round_matters = round_matters || other_round.blocks[i].states != once.blocks[i].states;
  }
  EXPECT_EQ(seed_matters, n > 1);
  EXPECT_EQ(round_matters, n > 1);
}

INSTANTIATE_TEST_SUITE_P(BlockSizesSeedsAndModels, JacobiInvariants,
                         testing::Combine(testing::Values(1, 2, 4, 16, 64),
                                          testing::Values(0, 1, 99), testing::Values(0, 5, 8)));

TEST(JacobiDrafts, InitialStateIsStoredAndIsNotTheFixedPoint) {  // D1
  FakeDecodeModel fake({.local = 0});
  int noisy = 0;
  int blocks = 0;
  for (PromptId id = 0; id < 20; ++id) {
    const auto result =
        drive(*make_jacobi_decoder(
                  {.id = id, .prompt = random_prompt(id, 9, kVocabulary), .max_new_tokens = 64},
                  trajectory_options(16, 3)),
              fake);
    for (const TrajectoryBlock& block : result.blocks) {
      const auto states = states_of(block, 16);
      noisy += states.front() != states.back() ? 1 : 0;
      ++blocks;
    }
  }
  EXPECT_EQ(noisy, blocks);
}

TEST(JacobiDrafts, DrawsComeFromTheNamedStreamOverAllIdsSoFar) {
  FakeDecodeModel fake({});
  const std::int32_t n = 8;
  const DecodeRequest asked{
      .id = 12, .prompt = random_prompt(12, 6, kVocabulary), .max_new_tokens = 3 * n};
  auto options = trajectory_options(n, 42);
  options.round = 2;
  const auto result = drive(*make_jacobi_decoder(asked, options), fake);
  std::vector<TokenId> context = asked.prompt;
  for (std::size_t block = 0; block < result.blocks.size(); ++block) {
    RandomStream stream(42, RandomPurpose::jacobi_draft, 2, 12, block);
    const auto states = states_of(result.blocks[block], n);
    EXPECT_EQ(states[0][0], fake.next(context));
    for (std::size_t j = 1; j < static_cast<std::size_t>(n); ++j) {
      EXPECT_EQ(states[0][j], context[static_cast<std::size_t>(stream.below(context.size()))]);
    }
    context.insert(context.end(), states.back().begin(), states.back().end());
  }
}

TEST(JacobiDrafts, IrreproducibleArithmeticStillEndsEachBlockWithinNForwards) {
  FakeDecodeModel fake({.flip_rate = 0.3});
  const std::int32_t n = 16;
  for (PromptId id = 0; id < 10; ++id) {
    const auto result =
        drive(*make_jacobi_decoder(
                  {.id = id, .prompt = random_prompt(id, 5, kVocabulary), .max_new_tokens = 64},
                  trajectory_options(n, 1)),
              fake);
    ASSERT_EQ(result.blocks.size(), 4U);
    EXPECT_EQ(result.tokens.size(), 64U);
    for (std::size_t i = 0; i < result.blocks.size(); ++i) {
      const auto states = states_of(result.blocks[i], n);
      EXPECT_LE(states.size(), static_cast<std::size_t>(n));
      EXPECT_TRUE(std::equal(states.back().begin(), states.back().end(),
                             result.tokens.begin() + static_cast<std::ptrdiff_t>(i) * n));
    }
  }
}

}  // namespace
}  // namespace jforge::test
