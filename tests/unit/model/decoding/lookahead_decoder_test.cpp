/// Lookahead decoding (METHOD.md §6.3): greedy tokens at every setting, and the mask.

#include "model/decoding/lookahead_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "model/decoding/greedy_decoder.h"
#include "runtime/error.h"
#include "tests/unit/model/decoding/fake_decode_model.h"

namespace jforge::test {
namespace {

constexpr std::int32_t kVocabulary = 17;

FakeDecodeModel fake_model(std::uint64_t local) {
  return FakeDecodeModel({.num_slots = 1, .branch_rows = 512, .local = local});
}

DecodeRequest request(PromptId id, std::int64_t max_new_tokens) {
  return {.id = id,
          .prompt = random_prompt(id, 1 + static_cast<std::size_t>(id) % 13, kVocabulary),
          .max_new_tokens = max_new_tokens};
}

void expect_greedy(const DecodeResult& result, const DecodeResult& greedy, std::int32_t ngram) {
  EXPECT_EQ(result.tokens, greedy.tokens);
  EXPECT_EQ(result.stop, greedy.stop);
  EXPECT_LE(result.forwards, greedy.forwards);
  EXPECT_EQ(result.forwards, std::ssize(result.accepted));
  EXPECT_EQ(std::accumulate(result.accepted.begin(), result.accepted.end(), std::int64_t{0}),
            std::ssize(result.tokens) - 1);
  EXPECT_TRUE(std::ranges::all_of(
      result.accepted, [&](std::int32_t accepted) { return accepted >= 1 && accepted <= ngram; }));
}

TEST(Lookahead, TokensAreGreedysAtEverySettingWhateverTheWindowPredicts) {
  std::int64_t saved = 0;
  std::int64_t settings = 0;
  for (const std::int32_t window : {1, 2, 7, 15}) {
    for (const std::int32_t ngram : {2, 3, 5, 9}) {
      for (const std::int32_t guesses : {0, 1, 6}) {
        for (const std::uint64_t seed : {1, 2}) {
          ++settings;
          const LookaheadOptions options{.window = window,
                                         .ngram = ngram,
                                         .guesses = guesses,
                                         .ngram_pool = settings % 3 == 0 ? 3 : 1024,
                                         .seed = seed};
          SCOPED_TRACE("W " + std::to_string(window) + ", N " + std::to_string(ngram) + ", G " +
                       std::to_string(guesses));
          auto fake = fake_model(4 + 3 * (seed % 2));
          for (const std::int64_t limit : {1, 2, 5, 33, 80}) {
            auto asked = request(settings, limit);
            if (limit == 80) {
              asked.eos_ids = {fake.greedy(asked.prompt, 40)[39]};
            }
            const auto greedy = drive(*make_greedy_decoder(asked), fake);
            const auto result = drive(*make_lookahead_decoder(asked, options), fake);
            expect_greedy(result, greedy, ngram);
            saved += greedy.forwards - result.forwards;
            // Random predictions may cost forwards, never a token.
            RandomStream stream(seed, RandomPurpose::test);
            const auto decoder = make_lookahead_decoder(asked, options);
            while (!decoder->finished()) {
              drive_step(*decoder, fake, [&](Predictions& predictions) {
                for (std::size_t i = 1; i < predictions.size(); ++i) {
                  if (decoder->pending()[i].first_output > 0) {
                    for (TokenId& token : predictions[i]) {
                      token = static_cast<TokenId>(stream.below(kVocabulary));
                    }
                  }
                }
              });
            }
            expect_greedy(decoder->take_result(), greedy, ngram);
          }
        }
      }
    }
  }
  EXPECT_GT(saved, 0) << "no n-gram was ever accepted: the test says nothing";
}

TEST(Lookahead, AColumnSeesTheFirstLevelUpToItselfAndItsOwnTokens) {
  auto fake = fake_model(0);
  const auto asked = request(5, 40);
  const auto decoder = make_lookahead_decoder(asked, {.window = 4, .ngram = 4, .guesses = 2});
  std::vector<TokenId> text = asked.prompt;
  const auto answer = fake.greedy(asked.prompt, 40);
  text.insert(text.end(), answer.begin(), answer.end());
  drive_step(*decoder, fake, [](Predictions&) {});
  std::size_t columns = 0;
  std::size_t deepest = 0;
  while (!decoder->finished()) {
    const auto known = static_cast<std::size_t>(decoder->kv_length());
    drive_step(*decoder, fake, [&](const Predictions& predictions) {
      const auto pending = decoder->pending();
      std::vector<TokenId> own;
      for (std::size_t i = 0; i < pending.size(); ++i) {
        const DraftBranch& branch = pending[i];
        std::vector<TokenId> seen(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(known));
        const auto shared = branch.alternative
                                ? static_cast<std::size_t>(branch.first_position) - known
                                : own.size();
        ASSERT_LE(shared, own.size());
        seen.insert(seen.end(), own.begin(), own.begin() + static_cast<std::ptrdiff_t>(shared));
        for (std::size_t row = 0; row < branch.tokens.size(); ++row) {
          seen.push_back(branch.tokens[row]);
          if (row >= branch.first_output) {
            ASSERT_EQ(predictions[i][row - branch.first_output], fake.next(seen));
          }
        }
        if (!branch.alternative) {
          own.insert(own.end(), branch.tokens.begin(), branch.tokens.end());
        } else if (branch.first_output > 0) {
          ++columns;
          deepest = std::max(deepest, branch.tokens.size());
        }
      }
    });
  }
  EXPECT_GT(columns, 40U);
  EXPECT_EQ(deepest, 2U) << "three levels, the first among the sequence's own rows";
}

/// N tokens at a time.
TEST(Lookahead, ATextOfLocalRulesTakesFewForwards) {
  std::int64_t forwards = 0;
  std::int64_t tokens = 0;
  for (PromptId id = 0; id < 20; ++id) {
    auto fake = fake_model(8);
    const auto result = drive(
        *make_lookahead_decoder(request(id, 100), {.window = 8, .ngram = 4, .guesses = 4}), fake);
    forwards += result.forwards;
    tokens += std::ssize(result.tokens) - 1;
  }
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(forwards), 2.5);
}

TEST(Lookahead, BadValuesAreRefused) {
  EXPECT_NO_THROW(LookaheadOptions{}.validate());
  EXPECT_THROW(LookaheadOptions{.window = 0}.validate(), ConfigError);
  EXPECT_THROW(LookaheadOptions{.ngram = 1}.validate(), ConfigError);
  EXPECT_THROW(LookaheadOptions{.guesses = -1}.validate(), ConfigError);
  EXPECT_THROW(LookaheadOptions{.ngram_pool = -1}.validate(), ConfigError);
}

}  // namespace
}  // namespace jforge::test
