/// Multi-block decoding with rejection recycling: I18 to I22 and I24 over a fake model, also
/// against an adversary, and its rules by hand.

#include "model/decoding/multi_block_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/ngram_pool.h"
#include "tests/unit/model/decoding/fake_decode_model.h"

namespace jforge::test {
namespace {

constexpr std::uint64_t kVocabulary = 17;

FakeDecodeModel fake_model(std::uint64_t local = 5) {
  return FakeDecodeModel({.num_slots = 1, .branch_rows = 8 * 64, .local = local});
}

DecodeRequest request(PromptId id, std::int64_t max_new_tokens) {
  return {.id = id,
          .prompt = random_prompt(id, 1 + static_cast<std::size_t>(id) % 9, kVocabulary),
          .max_new_tokens = max_new_tokens};
}

std::size_t leading_matches(std::span<const TokenId> draft, std::span<const TokenId> predictions) {
  std::size_t accepted = 1;
  while (accepted < draft.size() && draft[accepted] == predictions[accepted - 1]) {
    ++accepted;
  }
  return accepted;
}

/// Replaces unverified predictions: those after a branch's first rejection, and all of pseudo
/// blocks.
class Adversary {
 public:
  explicit Adversary(std::uint64_t seed, TokenId favourite = -1)
      : random_(seed, RandomPurpose::test), favourite_(favourite) {}

  void tamper(const SequenceDecoder& decoder, Predictions& predictions) {
    const auto pending = decoder.pending();
    const std::size_t plain = leading_matches(pending[0].tokens, predictions[0]);
    for (std::size_t i = 0; i < pending.size(); ++i) {
      std::size_t verified = 0;
      if (i == 0) {
        verified = plain;
      } else if (pending[i].alternative) {
        verified = leading_matches(pending[i].tokens, predictions[i]);
      }
      for (std::size_t j = verified; j < predictions[i].size(); ++j) {
        predictions[i][j] = favourite_ >= 0 && random_.below(2) == 0
                                ? favourite_
                                : static_cast<TokenId>(random_.below(kVocabulary));
      }
    }
  }

 private:
  RandomStream random_;
  TokenId favourite_;
};

DecodeResult drive_tampered(SequenceDecoder& decoder, DecodeModel& model, Adversary& adversary) {
  drive_step(decoder, model, [](const Predictions&) {});
  while (!decoder.finished()) {
    drive_step(decoder, model,
               [&](Predictions& predictions) { adversary.tamper(decoder, predictions); });
  }
  return decoder.take_result();
}

struct Grid {
  std::vector<std::int32_t> block_sizes{1, 2, 5, 16, 40};
  std::vector<std::int32_t> blocks{1, 2, 4};
  std::vector<double> ratios{0.2, 0.85};
  std::vector<std::int32_t> verification_sizes{1, 2, 5};
  std::vector<std::int32_t> pools{0, 1, 8};

  void each(const std::function<void(const MultiBlockOptions&)>& visit) const {
    std::uint64_t seed = 0;
    for (const auto n : block_sizes) {
      for (const auto k : blocks) {
        for (const auto r : ratios) {
          for (const auto v : verification_sizes) {
            for (const auto pool : pools) {
              ++seed;
              visit({.block_size = n,
                     .blocks = k,
                     .spawn_ratio = r,
                     .verification_size = v,
                     .ngram_pool = pool,
                     .match_length = static_cast<std::int32_t>(seed % 4),
                     .spawn = seed % 2 == 0 ? SpawnMode::continuation : SpawnMode::clone,
                     .pseudo_on_every_row = seed % 3 == 0,
                     .seed = seed});
            }
          }
        }
      }
    }
  }
};

std::string words(const MultiBlockOptions& options) {
  return "n " + std::to_string(options.block_size) + ", K " + std::to_string(options.blocks) +
         ", r " + std::to_string(options.spawn_ratio) + ", verification size " +
         std::to_string(options.verification_size) + ", pool " +
         std::to_string(options.ngram_pool) + ", match length " +
         std::to_string(options.match_length);
}

void expect_greedy(const DecodeResult& result, const DecodeResult& greedy, std::int32_t n) {
  EXPECT_EQ(result.tokens, greedy.tokens);
  EXPECT_EQ(result.stop, greedy.stop);
  EXPECT_EQ(result.prefill_forwards, 1);
  EXPECT_EQ(result.forwards, std::ssize(result.accepted));
  EXPECT_LE(result.forwards, greedy.forwards);
  EXPECT_EQ(std::accumulate(result.accepted.begin(), result.accepted.end(), std::int64_t{0}),
            std::ssize(result.tokens) - 1);
  EXPECT_TRUE(std::ranges::all_of(
      result.accepted, [&](std::int32_t accepted) { return accepted >= 1 && accepted <= n; }));
}

TEST(MultiBlock, TokensAreGreedysAtEverySettingWhateverTheDraftsAndThePool) {  // I18, I24
  std::int64_t settings = 0;
  std::int64_t ended = 0;
  Grid().each([&](const MultiBlockOptions& options) {
    ++settings;
    SCOPED_TRACE(words(options));
    const auto id = static_cast<PromptId>(options.seed);
    auto fake = fake_model(options.seed % 9);
    for (const std::int64_t limit : {1, 2, 33, 80}) {
      auto asked = request(id, limit);
      if (limit == 80) {
        asked.eos_ids = {fake.greedy(asked.prompt, 40)[39]};
      }
      const auto greedy = drive(*make_greedy_decoder(asked), fake);
      ended += greedy.stop == StopReason::eos ? 1 : 0;
      expect_greedy(drive(*make_multi_block_decoder(asked, options), fake), greedy,
                    options.block_size);
      Adversary adversary(options.seed, asked.eos_ids.empty() ? -1 : asked.eos_ids[0]);
      expect_greedy(drive_tampered(*make_multi_block_decoder(asked, options), fake, adversary),
                    greedy, options.block_size);
    }
  });
  EXPECT_GE(settings, 200);
  EXPECT_GT(ended, settings / 2) << "answers that end by themselves";
}

TEST(MultiBlock, NoRowIsBetterThanTheOneThatIsKept) {  // I19
  std::int64_t gains = 0;
  for (PromptId id = 0; id < 40; ++id) {
    auto fake = fake_model(7);
    const auto decoder = make_multi_block_decoder(
        request(id, 120), {.block_size = 12, .verification_size = 4, .ngram_pool = 8, .seed = 3});
    drive_step(*decoder, fake, [](const Predictions&) {});
    while (!decoder->finished()) {
      const std::int64_t before = decoder->kv_length();
      std::size_t plain = 0;
      std::size_t best = 0;
      drive_step(*decoder, fake, [&](const Predictions& predictions) {
        const auto pending = decoder->pending();
        plain = leading_matches(pending[0].tokens, predictions[0]);
        best = plain;
        for (std::size_t i = 1; i < pending.size(); ++i) {
          if (!pending[i].alternative) {
            continue;
          }
          // That row's whole draft.
          const auto fork = static_cast<std::size_t>(pending[i].first_position - before);
          std::vector<TokenId> draft(pending[0].tokens.begin(),
                                     pending[0].tokens.begin() + static_cast<std::ptrdiff_t>(fork));
          draft.insert(draft.end(), pending[i].tokens.begin(), pending[i].tokens.end());
          std::vector<TokenId> chain(predictions[0].begin(),
                                     predictions[0].begin() + static_cast<std::ptrdiff_t>(fork));
          chain.insert(chain.end(), predictions[i].begin(), predictions[i].end());
          best = std::max(best, leading_matches(draft, chain));
        }
      });
      EXPECT_EQ(decoder->kv_length() - before, static_cast<std::int64_t>(best));
      EXPECT_GE(best, plain);
      gains += best > plain ? 1 : 0;
    }
  }
  EXPECT_GT(gains, 0) << "no candidate ever won: the test says nothing";
}

TEST(MultiBlock, OneBlockAndOneRowAreTheShrinkingWindow) {  // I20
  for (const std::int32_t n : {1, 4, 16, 64}) {
    for (PromptId id = 0; id < 10; ++id) {
      auto fake = fake_model();
      const auto vanilla =
          drive(*make_jacobi_decoder(request(id, 70), {.block_size = n, .seed = 5}), fake);
      const std::int64_t calls = fake.calls();
      const auto result = drive(
          *make_multi_block_decoder(
              request(id, 70), {.block_size = n, .blocks = 1, .verification_size = 1, .seed = 5}),
          fake);
      EXPECT_EQ(result.tokens, vanilla.tokens);
      EXPECT_EQ(result.accepted, vanilla.accepted);
      EXPECT_EQ(fake.calls() - calls, calls);
    }
  }
}

TEST(MultiBlock, PseudoBlocksChangeNeitherCacheNorTextNorEnd) {  // I21
  constexpr TokenId kEos = 3;
  std::int64_t pseudo_ends = 0;
  for (PromptId id = 0; id < 60; ++id) {
    auto fake = fake_model();
    auto asked = request(id, 60);
    asked.eos_ids = {kEos};
    const auto greedy = drive(*make_greedy_decoder(asked), fake);
    const auto decoder = make_multi_block_decoder(
        asked, {.block_size = 6, .blocks = 4, .spawn_ratio = 0.2, .seed = 1});
    std::int64_t length = std::ssize(asked.prompt);
    drive_step(*decoder, fake, [](const Predictions&) {});
    EXPECT_EQ(decoder->kv_length(), length);
    while (!decoder->finished()) {
      std::size_t known = 1;
      drive_step(*decoder, fake, [&](Predictions& predictions) {
        const auto pending = decoder->pending();
        for (std::size_t i = 0; i < pending.size(); ++i) {
          const auto end = pending[i].first_position + std::ssize(pending[i].tokens);
          EXPECT_LE(end, decoder->max_positions());
          if (i > 0 && !pending[i].alternative) {
            std::ranges::fill(predictions[i], kEos);
            ++pseudo_ends;
          }
        }
        known = leading_matches(pending[0].tokens, predictions[0]);
      });
      if (!decoder->finished()) {
        EXPECT_GE(decoder->kv_length(), length + static_cast<std::int64_t>(known));
        length = decoder->kv_length();
      }
    }
    const auto result = decoder->take_result();
    EXPECT_EQ(result.tokens, greedy.tokens);
    EXPECT_EQ(result.stop, greedy.stop);
    EXPECT_EQ(decoder->kv_length(), std::ssize(asked.prompt) + std::ssize(result.tokens) - 1);
  }
  EXPECT_GT(pseudo_ends, 100);
}

TEST(MultiBlock, EveryRowCarriesThePseudoBlocksOfTheAuthors) {
  std::int64_t rows_with_pseudo = 0;
  for (PromptId id = 0; id < 20; ++id) {
    auto fake = fake_model(7);
    const auto decoder = make_multi_block_decoder(request(id, 100), {.block_size = 10,
                                                                     .blocks = 3,
                                                                     .spawn_ratio = 0.2,
                                                                     .verification_size = 4,
                                                                     .ngram_pool = 4,
                                                                     .spawn = SpawnMode::clone,
                                                                     .pseudo_on_every_row = true,
                                                                     .seed = 2});
    drive_step(*decoder, fake, [](const Predictions&) {});
    while (!decoder->finished()) {
      const auto pending = decoder->pending();
      std::vector<TokenId> pseudo;
      std::int64_t rows = 0;
      for (const DraftBranch& branch : pending.subspan(1)) {
        if (!branch.alternative) {
          pseudo.insert(pseudo.end(), branch.tokens.begin(), branch.tokens.end());
          continue;
        }
        const auto tail = branch.tokens.last(pseudo.size());
        EXPECT_TRUE(std::ranges::equal(tail, pseudo));
        const auto fork = branch.first_position - decoder->kv_length();
        EXPECT_EQ(fork + std::ssize(branch.tokens),
                  std::ssize(pending[0].tokens) + std::ssize(pseudo));
        rows += std::ssize(branch.tokens);
        rows_with_pseudo += pseudo.empty() ? 0 : 1;
      }
      EXPECT_LE(rows, decoder->max_branch_rows());
      drive_step(*decoder, fake, [](const Predictions&) {});
    }
  }
  EXPECT_GT(rows_with_pseudo, 50);
}

TEST(MultiBlock, CandidatesBeginAsThePlainDraftAndAreAsLong) {  // I22
  std::size_t most = 0;
  for (PromptId id = 0; id < 20; ++id) {
    auto fake = fake_model(6);
    const auto decoder = make_multi_block_decoder(
        request(id, 100), {.block_size = 10,
                           .verification_size = 4,
                           .ngram_pool = 12,
                           .match_length = static_cast<std::int32_t>(id % 3),
                           .seed = 2});
    drive_step(*decoder, fake, [](const Predictions&) {});
    while (!decoder->finished()) {
      const auto pending = decoder->pending();
      std::set<std::vector<TokenId>> drafts;
      std::int64_t rows = 0;
      for (std::size_t i = 0; i < pending.size(); ++i) {
        const auto fork =
            static_cast<std::size_t>(pending[i].first_position - decoder->kv_length());
        if (i > 0 && !pending[i].alternative) {
          continue;
        }
        EXPECT_EQ(fork > 0, i > 0) << "the first token is shared";
        std::vector<TokenId> draft(pending[0].tokens.begin(),
                                   pending[0].tokens.begin() + static_cast<std::ptrdiff_t>(fork));
        draft.insert(draft.end(), pending[i].tokens.begin(), pending[i].tokens.end());
        EXPECT_EQ(draft.size(), pending[0].tokens.size());
        EXPECT_TRUE(drafts.insert(draft).second) << "a draft twice";
        rows += i > 0 ? std::ssize(pending[i].tokens) : 0;
      }
      EXPECT_LE(drafts.size(), 4U);
      EXPECT_LE(rows, decoder->max_branch_rows());
      most = std::max(most, drafts.size());
      drive_step(*decoder, fake, [](const Predictions&) {});
    }
  }
  EXPECT_EQ(most, 4U) << "never as many as allowed";
}

TEST(NgramPool, KeepsTheNewestDifferentSequences) {  // I22
  const auto from = [](const NgramPool& pool, std::size_t i, TokenId token) {
    const auto found = pool.from(i, token);
    return std::vector<TokenId>(found.begin(), found.end());
  };
  using Ids = std::vector<TokenId>;
  NgramPool pool(2);
  EXPECT_EQ(pool.size(), 0U);
  pool.push(Ids{7});
  EXPECT_EQ(pool.size(), 0U) << "one token continues nothing";
  pool.push(Ids{1, 2, 1, 3});
  pool.push(Ids{4, 5});
  pool.push(Ids{1, 2, 1, 3});
  ASSERT_EQ(pool.size(), 2U);
  EXPECT_EQ(from(pool, 0, 4), (Ids{4, 5}));
  EXPECT_EQ(from(pool, 1, 1), (Ids{1, 2, 1, 3})) << "the first occurrence";
  EXPECT_EQ(from(pool, 1, 4), Ids{});
  pool.push(Ids{8, 9});
  ASSERT_EQ(pool.size(), 2U);
  EXPECT_EQ(from(pool, 0, 9), Ids{9});
  EXPECT_EQ(from(pool, 1, 5), Ids{5}) << "the oldest has gone";
  NgramPool none(0);
  none.push(Ids{1, 2});
  EXPECT_EQ(none.size(), 0U);
}

Commit advance(SequenceDecoder& decoder, const Predictions& predictions) {
  std::vector<BranchOutcome> outcomes;
  for (const auto& own : predictions) {
    outcomes.push_back({own});
  }
  return decoder.advance(outcomes);
}

std::vector<TokenId> ids(std::span<const TokenId> tokens) { return {tokens.begin(), tokens.end()}; }

/// After the prefill, with n = 4 and f = 10.
std::unique_ptr<SequenceDecoder> started(MultiBlockOptions options,
                                         std::int64_t max_new_tokens = 100) {
  options.block_size = 4;
  auto decoder = make_multi_block_decoder(
      {.id = 3, .prompt = {100, 101, 102}, .max_new_tokens = max_new_tokens}, options);
  EXPECT_EQ(decoder->pending().size(), 1U);
  EXPECT_EQ(decoder->pending()[0].first_output, 2U);
  advance(*decoder, {{10}});
  return decoder;
}

TEST(MultiBlock, ABlockIsSpawnedRefinedPromotedAndVerifiedAnew) {
  const auto decoder =
      started({.blocks = 2, .spawn_ratio = 0.75, .verification_size = 1, .ngram_pool = 8});
  const auto draft = ids(decoder->pending()[0].tokens);
  ASSERT_EQ(draft.size(), 4U);
  // Two of four accepted: below three, no block is spawned.
  advance(*decoder, {{draft[1], 50, 51, 52}});
  ASSERT_EQ(decoder->pending().size(), 1U);
  EXPECT_EQ(ids(decoder->pending()[0].tokens), (std::vector<TokenId>{50, 51}));
  // 60 is predicted after the block; the pool cannot continue it.
  advance(*decoder, {{53, 60}});
  auto pending = decoder->pending();
  ASSERT_EQ(pending.size(), 2U);
  EXPECT_EQ(ids(pending[0].tokens), std::vector<TokenId>{53});
  EXPECT_EQ(pending[0].first_position, 6);
  EXPECT_EQ(pending[1].first_position, 7);
  EXPECT_EQ(pending[1].first_output, 0U);
  EXPECT_FALSE(pending[1].alternative);
  const auto pseudo = ids(pending[1].tokens);
  ASSERT_EQ(pseudo.size(), 4U);
  EXPECT_EQ(pseudo[0], 60);
  // The pseudo block accepts two; the real-active one is complete, and 70 replaces 60.
  const Commit commit = advance(*decoder, {{70}, {pseudo[1], 61, 62, 63}});
  EXPECT_EQ(commit.branch, 0U);
  EXPECT_EQ(commit.rows, 1);
  pending = decoder->pending();
  ASSERT_EQ(pending.size(), 1U);
  EXPECT_EQ(decoder->kv_length(), 7);
  EXPECT_EQ(ids(pending[0].tokens), (std::vector<TokenId>{70, pseudo[1], 61, 62}));
  EXPECT_EQ(pending[0].first_output, 0U) << "verified from its begin";
}

TEST(MultiBlock, ConvergedPseudoBlocksWaitAndAreNotForwardedForNothing) {
  const auto decoder =
      started({.blocks = 2, .spawn_ratio = 0.5, .verification_size = 1, .ngram_pool = 0});
  const auto draft = ids(decoder->pending()[0].tokens);
  advance(*decoder, {{draft[1], 50, 51, 52}});
  const auto pseudo = ids(decoder->pending()[1].tokens);
  EXPECT_EQ(pseudo[0], 52);
  advance(*decoder, {{54, 55}, {pseudo[1], pseudo[2], pseudo[3], 99}});
  ASSERT_EQ(decoder->pending().size(), 1U) << "nobody needs its predictions";
  advance(*decoder, {{80}});
  EXPECT_EQ(ids(decoder->pending()[0].tokens),
            (std::vector<TokenId>{80, pseudo[1], pseudo[2], pseudo[3]}));
}

TEST(MultiBlock, ClonesCopyTheRealActiveDraft) {
  const auto decoder = started({.blocks = 2,
                                .spawn_ratio = 0.5,
                                .verification_size = 1,
                                .ngram_pool = 8,
                                .spawn = SpawnMode::clone});
  const auto draft = ids(decoder->pending()[0].tokens);
  advance(*decoder, {{draft[1], 50, 51, 52}});
  const auto pending = decoder->pending();
  ASSERT_EQ(pending.size(), 2U);
  EXPECT_EQ(ids(pending[0].tokens), (std::vector<TokenId>{50, 51}));
  EXPECT_EQ(ids(pending[1].tokens.first(2)), (std::vector<TokenId>{50, 51}));
  EXPECT_EQ(pending[1].tokens.size(), 4U);
}

TEST(MultiBlock, ARejectedTailComesBackAsACandidateAndWins) {
  const auto decoder = started({.blocks = 1, .verification_size = 2, .ngram_pool = 8});
  // The draft and the tail 41, 42, 43 are dropped.
  advance(*decoder, {{40, 41, 42, 43}});
  ASSERT_EQ(decoder->pending().size(), 1U) << "nothing in the pool begins with 40";
  EXPECT_EQ(ids(decoder->pending()[0].tokens), (std::vector<TokenId>{40, 41, 42}));
  // The tail continues 41, completed with the draft's end.
  advance(*decoder, {{41, 20, 21}});
  auto pending = decoder->pending();
  ASSERT_EQ(pending.size(), 1U) << "(40, 41 was right)";
  EXPECT_EQ(ids(pending[0].tokens), std::vector<TokenId>{20});
  advance(*decoder, {{41}});
  // Candidates from the pool, the newest first.
  pending = decoder->pending();
  ASSERT_EQ(pending.size(), 2U);
  const auto plain = ids(pending[0].tokens);
  ASSERT_EQ(plain.size(), 4U);
  EXPECT_EQ(plain[0], 41);
  EXPECT_TRUE(pending[1].alternative);
  EXPECT_EQ(pending[1].first_position, decoder->kv_length() + 1);
  const auto other = ids(pending[1].tokens);
  ASSERT_EQ(other.size(), 3U);
  // Right to its end, unlike the plain draft.
  const std::int64_t before = decoder->kv_length();
  const Commit commit = advance(*decoder, {{other[0], 1, 2, 3}, {other[1], other[2], 90}});
  EXPECT_EQ(commit.branch, 1U);
  EXPECT_EQ(commit.rows, 3);
  EXPECT_EQ(decoder->kv_length(), before + 4);
  EXPECT_EQ(decoder->pending()[0].tokens[0], 90);
}

TEST(MultiBlock, WhatStoodBeforeIsTheFirstCandidate) {
  auto decoder = make_multi_block_decoder(
      {.id = 3, .prompt = {7, 8, 60, 61, 62, 63, 9, 8, 50, 9}, .max_new_tokens = 100},
      {.block_size = 4, .blocks = 1, .verification_size = 2, .ngram_pool = 8, .match_length = 2});
  // Two matching tokens come first, then the newest.
  advance(*decoder, {{8}});
  auto pending = decoder->pending();
  ASSERT_EQ(pending.size(), 2U);
  EXPECT_TRUE(pending[1].alternative);
  EXPECT_EQ(pending[1].first_position, decoder->kv_length() + 1);
  EXPECT_EQ(ids(pending[1].tokens), (std::vector<TokenId>{50, 9, 8}));
  // 70 is new to text and pool.
  EXPECT_EQ(advance(*decoder, {{50, 1, 2, 3}, {9, 70, 71}}).rows, 2);
  EXPECT_EQ(ids(decoder->pending()[0].tokens), (std::vector<TokenId>{70}));
  EXPECT_EQ(decoder->pending().size(), 1U);
  advance(*decoder, {{60}});  // A new block begins with 60, which occurred once, without 70.
  pending = decoder->pending();
  ASSERT_EQ(pending.size(), 2U);
  const std::int64_t shared = pending[1].first_position - decoder->kv_length();
  std::vector<TokenId> draft = ids(pending[0].tokens.first(static_cast<std::size_t>(shared)));
  draft.insert(draft.end(), pending[1].tokens.begin(), pending[1].tokens.end());
  EXPECT_EQ(draft, (std::vector<TokenId>{60, 61, 62, 63})) << "of the prompt";
}

TEST(MultiBlock, ATextThatRepeatsGoesOnPastItsEnd) {
  const auto decoder = make_multi_block_decoder(
      {.id = 3, .prompt = {8, 60, 50}, .max_new_tokens = 100},
      {.block_size = 8, .blocks = 1, .verification_size = 2, .ngram_pool = 0, .match_length = 2});
  advance(*decoder, {{8}});
  ASSERT_EQ(decoder->pending().size(), 2U);
  const std::int64_t shared = decoder->pending()[1].first_position - decoder->kv_length();
  const std::vector<TokenId> copied = {8, 60, 50, 8, 60, 50, 8, 60};
  EXPECT_EQ(ids(decoder->pending()[1].tokens),
            std::vector<TokenId>(copied.begin() + shared, copied.end()));
}

TEST(MultiBlock, WithoutPoolAndBlocksLookupsAloneBeatThePlainDraft) {
  std::vector<TokenId> prompt;  // A text of period 5, which prompt lookup knows.
  for (TokenId i = 0; i < 15; ++i) {
    prompt.push_back(20 + i % 5);
  }
  const auto forwards = [&](std::int32_t match_length) {
    const auto decoder = make_multi_block_decoder({.id = 3, .prompt = prompt, .max_new_tokens = 41},
                                                  {.block_size = 4,
                                                   .blocks = 1,
                                                   .verification_size = 2,
                                                   .ngram_pool = 0,
                                                   .match_length = match_length});
    while (!decoder->finished()) {
      Predictions predictions;
      for (const DraftBranch& branch : decoder->pending()) {
        predictions.emplace_back();
        for (std::size_t i = branch.first_output; i < branch.tokens.size(); ++i) {
          predictions.back().push_back(
              20 +
              static_cast<TokenId>((branch.first_position + static_cast<std::int64_t>(i) + 1) % 5));
        }
      }
      advance(*decoder, predictions);
    }
    return decoder->take_result().forwards;
  };
  EXPECT_EQ(forwards(3), 10) << "a block of 4 each";
  EXPECT_GT(forwards(0), 10);
}

TEST(MultiBlock, BadOptionsAndOutcomesAreRefused) {
  const DecodeRequest asked{.prompt = {1}, .max_new_tokens = 4};
  for (const MultiBlockOptions& bad :
       {MultiBlockOptions{.block_size = 0}, MultiBlockOptions{.blocks = 0},
        MultiBlockOptions{.spawn_ratio = 0}, MultiBlockOptions{.spawn_ratio = 1.01},
        MultiBlockOptions{.spawn_ratio = std::numeric_limits<double>::quiet_NaN()},
        MultiBlockOptions{.verification_size = 0}, MultiBlockOptions{.ngram_pool = -1},
        MultiBlockOptions{.match_length = -1}}) {
    EXPECT_THROW((void)make_multi_block_decoder(asked, bad), ConfigError);
  }
  const auto decoder = started({});
  EXPECT_THROW(advance(*decoder, {}), InternalError);
  EXPECT_THROW(advance(*decoder, {{1, 2, 3}}), InternalError);
  EXPECT_THROW((void)decoder->take_result(), InternalError);
}

}  // namespace
}  // namespace jforge::test
