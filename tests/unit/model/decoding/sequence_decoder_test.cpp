/// Decoders by hand: exact drafts, every place of an end of sequence, limits, misuse.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <ranges>
#include <set>

#include "model/decoding/drafted_decoder.h"
#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/prompt_lookup_decoder.h"
#include "tests/unit/model/decoding/fake_decode_model.h"

namespace jforge::test {
namespace {

constexpr std::uint64_t kVocabulary = 4096;

std::vector<TokenId> ids(std::span<const TokenId> tokens) { return {tokens.begin(), tokens.end()}; }

Commit advance_all(SequenceDecoder& decoder, const std::vector<std::vector<TokenId>>& predictions) {
  return decoder.advance(std::vector<BranchOutcome>(predictions.begin(), predictions.end()));
}

void advance(SequenceDecoder& decoder, const std::vector<TokenId>& predictions) {
  (void)advance_all(decoder, {predictions});
}

std::span<const TokenId> draft_of(const SequenceDecoder& decoder) {
  EXPECT_EQ(decoder.pending().size(), 1U);
  EXPECT_EQ(decoder.pending().front().first_position, decoder.kv_length());
  return decoder.pending().front().tokens;
}

bool drawn_from(std::span<const TokenId> drawn, const std::vector<TokenId>& population) {
  return std::ranges::all_of(drawn, [&](TokenId token) {
    return std::ranges::find(population, token) != population.end();
  });
}

TEST(GreedyDecoder, PrefillGivesTheFirstTokenAndEachForwardOneMore) {
  const auto decoder = make_greedy_decoder({.id = 1, .prompt = {5, 6, 7}, .max_new_tokens = 2});
  EXPECT_EQ(decoder->max_positions(), 4);
  EXPECT_EQ(ids(draft_of(*decoder)), (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(decoder->pending().front().first_output, 2U);
  advance(*decoder, {8});
  EXPECT_EQ(decoder->kv_length(), 3);
  EXPECT_EQ(ids(draft_of(*decoder)), std::vector<TokenId>{8});
  EXPECT_EQ(decoder->pending().front().first_output, 0U);
  EXPECT_FALSE(decoder->finished());
  EXPECT_THROW((void)decoder->take_result(), InternalError);
  advance(*decoder, {9});
  ASSERT_TRUE(decoder->finished());
  EXPECT_EQ(decoder->kv_length(), decoder->max_positions());
  EXPECT_THROW(advance(*decoder, {1}), InternalError);
  const auto result = decoder->take_result();
  EXPECT_EQ(result.id, 1);
  EXPECT_EQ(result.tokens, (std::vector<TokenId>{8, 9}));
  EXPECT_EQ(result.forwards, 1);
  EXPECT_EQ(result.prefill_forwards, 1);
  EXPECT_EQ(result.stop, StopReason::length);
}

TEST(DecodingCost, TheFirstTokenOfEachSequenceIsThePrefills) {
  DecodingCost cost{.sequences = 1, .tokens = 9, .forwards = 4};
  EXPECT_EQ(cost.tokens_per_forward(), 2.0);
  EXPECT_EQ(cost.tokens_per_forward_with_prefill(), 9.0 / 5.0);
  cost += {.sequences = 2, .tokens = 2, .forwards = 0};
  EXPECT_EQ(cost.tokens_per_forward(), 2.0) << "answers that prefill gave take and add nothing";
  EXPECT_EQ(cost.tokens_per_forward_with_prefill(), 11.0 / 7.0);
  EXPECT_FALSE((DecodingCost{.sequences = 2, .tokens = 2}.tokens_per_forward().has_value()));
  EXPECT_FALSE(DecodingCost{}.tokens_per_forward_with_prefill().has_value());
}

/// After the prefill, with f = 10 and the draft [10, r_1 … r_{n−1}].
std::unique_ptr<SequenceDecoder> started(DraftWindow window, std::int64_t max_new_tokens,
                                         std::vector<TokenId> eos_ids = {}) {
  auto decoder = make_jacobi_decoder({.id = 3,
                                      .prompt = {100, 101, 102},
                                      .max_new_tokens = max_new_tokens,
                                      .eos_ids = std::move(eos_ids)},
                                     {.block_size = 4, .window = window, .seed = 5});
  EXPECT_EQ(ids(draft_of(*decoder)), (std::vector<TokenId>{100, 101, 102}));
  EXPECT_EQ(decoder->pending().front().first_output, 2U);
  advance(*decoder, {10});
  return decoder;
}

TEST(RunningWindow, KeepsPredictionsAndFillsFromOneStream) {
  const auto decoder = started(DraftWindow::running, 100);
  RandomStream stream(5, RandomPurpose::jacobi_draft, 0, 3, 0);
  std::vector<TokenId> context{100, 101, 102};
  std::vector<TokenId> draft;
  const auto expect_draft = [&](std::vector<TokenId> expected) {
    while (expected.size() < 4) {
      expected.push_back(context[static_cast<std::size_t>(stream.below(context.size()))]);
    }
    draft = ids(draft_of(*decoder));
    EXPECT_EQ(draft, expected);
    EXPECT_EQ(decoder->kv_length(), std::ssize(context));
  };
  expect_draft({10});
  advance(*decoder, {70, 71, 72, 73});
  context.push_back(10);
  expect_draft({70, 71, 72, 73});  // nothing to fill
  advance(*decoder, {71, 72, 80, 81});
  context.insert(context.end(), {70, 71, 72});
  expect_draft({80, 81});
  advance(*decoder, {draft[1], draft[2], draft[3], 60});
  context.insert(context.end(), draft.begin(), draft.end());
  expect_draft({60});
}

TEST(RunningWindow, DraftIsCutToWhatRemains) {
  const auto decoder = started(DraftWindow::running, 4);
  EXPECT_EQ(draft_of(*decoder).size(), 3U) << "a forward over k rows adds k tokens at most";
  EXPECT_EQ(decoder->max_positions(), 6);
  advance(*decoder, {50, 51, 52});
  EXPECT_EQ(ids(draft_of(*decoder)), (std::vector<TokenId>{50, 51}));
  advance(*decoder, {51, 53});
  ASSERT_TRUE(decoder->finished());
  const auto result = decoder->take_result();
  EXPECT_EQ(result.tokens, (std::vector<TokenId>{10, 50, 51, 53}));
  EXPECT_EQ(result.accepted, (std::vector<std::int32_t>{1, 2}));
}

TEST(ShrinkingWindow, DraftShrinksUntilTheBlockIsDone) {
  const auto decoder = started(DraftWindow::shrinking, 7);
  const auto draft = ids(draft_of(*decoder));
  ASSERT_EQ(draft.size(), 4U);
  advance(*decoder, {draft[1], 50, 51, 52});
  EXPECT_EQ(ids(draft_of(*decoder)), (std::vector<TokenId>{50, 51}));
  advance(*decoder, {53, 54});
  EXPECT_EQ(ids(draft_of(*decoder)), std::vector<TokenId>{53});
  advance(*decoder, {55});
  const auto next = ids(draft_of(*decoder));
  ASSERT_EQ(next.size(), 2U) << "the last block is cut to T";
  EXPECT_EQ(next[0], 55);
  EXPECT_EQ(decoder->kv_length(), 7);
  advance(*decoder, {next[1], 99});
  ASSERT_TRUE(decoder->finished());
  const auto result = decoder->take_result();
  EXPECT_EQ(result.tokens, (std::vector<TokenId>{10, draft[1], 50, 53, 55, next[1], 99}));
  EXPECT_EQ(result.accepted, (std::vector<std::int32_t>{2, 1, 1, 2}));
  EXPECT_TRUE(result.blocks.empty());
}

/// At every offset of the first three blocks.
TEST(EndOfSequence, AnywhereInTheAnswerGivesGreedyTokensInEveryMode) {
  FakeDecodeModel fake({.vocabulary = static_cast<std::int32_t>(kVocabulary)});
  const std::int32_t n = 4;
  int places = 0;
  for (PromptId id = 0; id < 12; ++id) {
    const auto prompt = random_prompt(id, 3, kVocabulary);
    const auto text = fake.greedy(prompt, 20);
    for (std::size_t place = 0; place < 3 * static_cast<std::size_t>(n); ++place) {
      const auto first = std::ranges::find(text, text[place]);
      if (static_cast<std::size_t>(first - text.begin()) != place) {
        continue;  // an earlier occurrence would end the answer
      }
      ++places;
      const DecodeRequest request{
          .id = id, .prompt = prompt, .max_new_tokens = 20, .eos_ids = {text[place]}};
      const std::vector<TokenId> expected(text.begin(), first + 1);
      const auto greedy = drive(*make_greedy_decoder(request), fake);
      EXPECT_EQ(greedy.tokens, expected);
      EXPECT_EQ(greedy.stop, StopReason::eos);
      EXPECT_EQ(greedy.forwards, std::ssize(expected) - 1);
      for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
        const auto result = drive(
            *make_jacobi_decoder(request, {.block_size = n, .window = window, .seed = 8}), fake);
        EXPECT_EQ(result.tokens, expected);
        EXPECT_EQ(result.stop, StopReason::eos);
        EXPECT_LE(result.forwards, greedy.forwards);
        EXPECT_EQ(std::accumulate(result.accepted.begin(), result.accepted.end(), std::size_t{0}),
                  expected.size() - 1);
      }
      const auto blocks =
          drive(*make_jacobi_decoder(
                    request,
                    {.block_size = n, .seed = 8, .complete_blocks = true, .record_states = true}),
                fake);
      EXPECT_EQ(blocks.tokens, expected);
      EXPECT_EQ(blocks.stop, StopReason::eos);
      ASSERT_EQ(blocks.blocks.size(), place / static_cast<std::size_t>(n) + 1);
      const auto& last = blocks.blocks.back().states;
      const auto block_begin = text.begin() + static_cast<std::ptrdiff_t>(place) / n * n;
      EXPECT_TRUE(std::equal(last.end() - n, last.end(), block_begin))
          << "the block is completed past its end of sequence";
    }
  }
  EXPECT_GE(places, 60);
}

TEST(CompleteBlocks, CutTheAnswerAtTAndNotTheBlocks) {
  FakeDecodeModel fake({.vocabulary = static_cast<std::int32_t>(kVocabulary), .local = 0});
  const auto prompt = random_prompt(1, 4, kVocabulary);
  const auto text = fake.greedy(prompt, 12);
  const DecodeRequest request{// in the last block, but after T
                              .id = 1,
                              .prompt = prompt,
                              .max_new_tokens = 9,
                              .eos_ids = {text[10]}};
  ASSERT_EQ(std::ranges::count(text, text[10]), 1);
  const auto decoder = make_jacobi_decoder(
      request, {.block_size = 4, .complete_blocks = true, .record_states = true});
  EXPECT_EQ(decoder->max_positions(), 4 + 12);
  const auto result = drive(*decoder, fake);
  EXPECT_EQ(result.tokens, std::vector<TokenId>(text.begin(), text.begin() + 9));
  EXPECT_EQ(result.stop, StopReason::length);
  EXPECT_EQ(result.blocks.size(), 3U);
  EXPECT_EQ(std::accumulate(result.accepted.begin(), result.accepted.end(), 0), 12 - 1);
}

TEST(PromptLookup, DraftsWhatFollowedTheLastTokensBefore) {
  const auto decoder =
      make_prompt_lookup_decoder({.prompt = {7, 8, 9, 4, 8, 9, 5, 6}, .max_new_tokens = 20},
                                 {.block_size = 4, .match_length = 2});
  EXPECT_EQ(decoder->pending().front().first_output, 7U);
  advance(*decoder, {1});
  EXPECT_EQ(ids(draft_of(*decoder)), std::vector<TokenId>{1}) << "1 never stood there";
  advance(*decoder, {8});
  EXPECT_EQ(ids(draft_of(*decoder)), (std::vector<TokenId>{8, 9, 5, 6})) << "the newest 8";
  advance(*decoder, {9, 4, 30, 31});  // 8 and 9 are right, then comes 4
  EXPECT_EQ(decoder->kv_length(), 11);
  EXPECT_EQ(ids(draft_of(*decoder)), (std::vector<TokenId>{4, 8, 9, 5})) << "9, 4 before 4 alone";
}

TEST(PromptLookup, ATextThatRepeatsGoesOnPastItsEnd) {
  const auto decoder = make_prompt_lookup_decoder({.prompt = {9, 5, 6, 7}, .max_new_tokens = 20},
                                                  {.block_size = 8, .match_length = 3});
  advance(*decoder, {5});
  EXPECT_EQ(ids(draft_of(*decoder)), (std::vector<TokenId>{5, 6, 7, 5, 6, 7, 5, 6}));
  advance(*decoder, {6, 7, 5, 6, 6, 0, 0, 0});  // the last 6 differs from the draft's 7
  EXPECT_EQ(decoder->kv_length(), 4 + 5);
  EXPECT_EQ(ids(draft_of(*decoder)), std::vector<TokenId>(8, 6)) << "6 alone, right before";
  advance(*decoder, std::vector<TokenId>(8, 6));
  EXPECT_EQ(ids(draft_of(*decoder)), std::vector<TokenId>(6, 6)) << "cut to what remains";
}

TEST(Drafted, TheAdapterProposesWhatFollowsTheAcceptedTokens) {
  const auto decoder =
      make_drafted_decoder({.prompt = {7, 8}, .max_new_tokens = 8}, {.block_size = 4, .seed = 1});
  EXPECT_EQ(decoder->max_branch_rows(), 4);
  advance(*decoder, {20});
  ASSERT_EQ(decoder->pending().size(), 2U);
  const std::vector<TokenId> draft = ids(decoder->pending()[0].tokens);
  EXPECT_TRUE(draft.size() == 4 && draft[0] == 20 && drawn_from(draft, {7, 8, 20}));
  const DraftBranch& proposing = decoder->pending()[1];
  EXPECT_EQ(ids(proposing.tokens), draft);
  EXPECT_TRUE(proposing.drafts && proposing.alternative && proposing.first_output == 1);
  EXPECT_EQ(proposing.first_position, decoder->kv_length());
  const Commit commit = advance_all(*decoder, {{draft[1], 50, 51, 52}, {60, 61, 62}});
  EXPECT_TRUE(commit.branch == 0 && commit.rows == 2);
  const std::vector<TokenId> next = ids(decoder->pending()[0].tokens);
  ASSERT_EQ(next.size(), 4U);
  EXPECT_EQ(std::vector(next.begin(), next.begin() + 3), (std::vector<TokenId>{50, 61, 62}));
  EXPECT_TRUE(drawn_from(std::span(next).subspan(3), {7, 8, 20, draft[1]}));
  (void)advance_all(*decoder, {{61, 62, next[3], 70}, {1, 2, 3}});
  ASSERT_EQ(decoder->pending().size(), 1U) << "one row has nothing to propose";
  EXPECT_EQ(ids(draft_of(*decoder)), std::vector<TokenId>{70});
  advance(*decoder, {71});
  EXPECT_EQ(decoder->take_result().accepted, (std::vector<std::int32_t>{2, 4, 1}));
}

TEST(Drafted, ALookedUpAlternativeForksWhereItDiffers) {
  for (const bool right : {true, false}) {
    const auto decoder = make_drafted_decoder({.prompt = {8, 1, 2, 3, 4, 5}, .max_new_tokens = 20},
                                              {.block_size = 5, .match_length = 2, .seed = 1});
    EXPECT_EQ(decoder->max_branch_rows(), 5 + 4);
    advance(*decoder, {30});
    ASSERT_EQ(decoder->pending().size(), 2U) << "30 never stood there";
    ASSERT_NE(decoder->pending()[0].tokens[1], 8);
    (void)advance_all(*decoder, {{8, 0, 0, 0, 0}, {1, 2, 50, 51}});
    ASSERT_EQ(decoder->pending().size(), 3U);
    EXPECT_EQ(ids(decoder->pending()[0].tokens), (std::vector<TokenId>{8, 1, 2, 50, 51}));
    EXPECT_EQ(ids(decoder->pending()[1].tokens), (std::vector<TokenId>{3, 4}));
    EXPECT_EQ(decoder->pending()[1].first_position, 7 + 3);
    EXPECT_TRUE(decoder->pending()[1].alternative && !decoder->pending()[1].drafts);
    const TokenId own = right ? 3 : 60;
    const Commit commit = advance_all(*decoder, {{1, 2, own, 61, 62}, {5, 99}, {70, 71, 72, 73}});
    EXPECT_EQ(commit.branch, right ? 1U : 0U);
    EXPECT_EQ(commit.rows, right ? 1 : 3);
    EXPECT_EQ(decoder->kv_length(), right ? 11 : 10);
    const std::vector<TokenId> next = ids(decoder->pending()[0].tokens);
    EXPECT_EQ(next[0], right ? 5 : 60);
    EXPECT_EQ(next[1], right ? 99 : 72) << "the model's own prediction, or the adapter's";
  }
}

/// Returns the likeliest `count` paths of which at most one position has another than the first
/// choice, of all such paths of this probability or more.
std::set<std::vector<TokenId>> likeliest_paths(const std::vector<LikelyToken>& likely,
                                               std::size_t choices, std::size_t count,
                                               double probability) {
  std::map<std::vector<TokenId>, double> all;
  for (std::size_t length = 1; length <= likely.size() / choices; ++length) {
    for (std::size_t at = 0; at < length; ++at) {
      for (std::size_t choice = 0; choice < choices; ++choice) {
        std::vector<TokenId> path;
        double value = 0;
        for (std::size_t i = 0; i < length; ++i) {
          const LikelyToken& one = likely[i * choices + (i == at ? choice : 0)];
          path.push_back(one.token);
          value += one.log_probability;
        }
        if (std::exp(value) >= probability) {
          all.emplace(std::move(path), value);
        }
      }
    }
  }
  std::vector<std::pair<double, std::vector<TokenId>>> sorted;
  for (const auto& [path, value] : all) {
    sorted.emplace_back(-value, path);
  }
  std::ranges::sort(sorted);
  sorted.resize(std::min(sorted.size(), count));
  const auto paths = std::views::values(sorted);
  return {paths.begin(), paths.end()};
}

TEST(Drafted, ATreeHoldsTheLikeliestPathsAndCommitsTheOneThatIsRight) {
  RandomStream stream(3, RandomPurpose::test);
  std::int64_t of_shoots = 0;
  for (std::int32_t trial = 0; trial < 200; ++trial) {
    const std::size_t choices = 8;
    const std::int32_t rows = 1 + trial % 23;
    const std::int32_t block_size = 1 + trial % 7;
    const double least = trial % 3 * 0.15;
    const auto decoder = make_drafted_decoder(
        {.prompt = {7, 8}, .max_new_tokens = 30},
        {.block_size = block_size, .tree_rows = rows, .min_probability = least, .seed = 1});
    decoder->use_proposals();
    advance(*decoder, {20});
    const auto wanted = decoder->wanted_proposals();
    ASSERT_TRUE(wanted && wanted->newest == 20 && wanted->choices == 8);
    EXPECT_EQ(wanted->count, std::min(block_size, rows) - 1);
    std::vector<LikelyToken> likely;
    for (std::int64_t position = 0; position < wanted->count; ++position) {
      double left = 1;
      for (std::size_t choice = 0; choice < choices; ++choice) {
        const double share = left * (0.3 + 0.6 * stream.uniform());
        likely.push_back({.token = static_cast<TokenId>(100 + std::ssize(likely)),
                          .log_probability = static_cast<float>(std::log(share))});
        left -= share;
      }
      const auto own = std::span(likely).last(choices);
      std::ranges::sort(own, std::greater(), &LikelyToken::log_probability);
    }
    decoder->take_proposals(likely, choices);
    std::set<std::vector<TokenId>> found;
    const auto pending = decoder->pending();
    const std::vector<TokenId> chain = ids(pending[0].tokens);
    std::size_t forwarded = 0;
    for (const DraftBranch& branch : pending) {
      EXPECT_EQ(branch.alternative, &branch != pending.data());
      const auto fork = static_cast<std::size_t>(branch.first_position - decoder->kv_length());
      forwarded += branch.tokens.size();
      for (std::size_t length = 1; length <= branch.tokens.size(); ++length) {
        std::vector<TokenId> path(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(fork));
        path.insert(path.end(), branch.tokens.begin(),
                    branch.tokens.begin() + static_cast<std::ptrdiff_t>(length));
        EXPECT_EQ(path[0], 20);
        path.erase(path.begin());
        EXPECT_TRUE(path.empty() || found.insert(path).second) << "a path twice";
      }
    }
    EXPECT_EQ(found, likeliest_paths(likely, choices, static_cast<std::size_t>(rows) - 1, least));
    EXPECT_LE(forwarded, static_cast<std::size_t>(rows));
    EXPECT_LE(forwarded - chain.size(), static_cast<std::size_t>(decoder->max_branch_rows()));
    // The model agrees with one of the paths, of all that end, and no further.
    std::vector<TokenId> right;
    if (!found.empty()) {
      auto chosen = found.begin();
      std::advance(chosen, stream.below(found.size()));
      right = *chosen;
    }
    std::vector<std::vector<TokenId>> predictions;
    for (const DraftBranch& branch : pending) {
      std::vector<TokenId> path;
      const auto fork = static_cast<std::size_t>(branch.first_position - decoder->kv_length());
      std::vector<TokenId>& of_branch = predictions.emplace_back();
      for (std::size_t i = 0; i < branch.tokens.size(); ++i) {
        path.assign(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(fork));
        path.insert(path.end(), branch.tokens.begin(),
                    branch.tokens.begin() + static_cast<std::ptrdiff_t>(i + 1));
        path.erase(path.begin());
        const bool on_it =
            path.size() < right.size() && std::equal(path.begin(), path.end(), right.begin());
        of_branch.push_back(on_it ? right[path.size()] : 9000 + static_cast<TokenId>(path.size()));
      }
    }
    const std::int64_t known = decoder->kv_length();
    const Commit commit = advance_all(*decoder, predictions);
    of_shoots += commit.branch > 0 ? 1 : 0;
    EXPECT_EQ(decoder->kv_length() - known, std::ssize(right) + 1);
    EXPECT_EQ(decoder->wanted_proposals()->newest, 9000 + static_cast<TokenId>(right.size()));
  }
  EXPECT_GT(of_shoots, 20);
}

TEST(PromptLookup, TokensAreGreedysAtEverySetting) {  // I1, I24
  std::int64_t gains = 0;
  for (PromptId id = 0; id < 30; ++id) {
    FakeDecodeModel fake({.vocabulary = 11, .local = static_cast<std::uint64_t>(id) % 9});
    for (const std::int32_t n : {1, 3, 16}) {
      for (const std::int64_t limit : {1, 2, 50}) {
        const DecodeRequest request{
            .id = id,
            .prompt = random_prompt(id, 1 + static_cast<std::size_t>(id), 11),
            .max_new_tokens = limit,
            .eos_ids = {3}};
        const auto greedy = drive(*make_greedy_decoder(request), fake);
        const auto result = drive(
            *make_prompt_lookup_decoder(request, {.block_size = n, .match_length = 1 + n % 3}),
            fake);
        EXPECT_EQ(result.tokens, greedy.tokens);
        EXPECT_EQ(result.stop, greedy.stop);
        EXPECT_LE(result.forwards, greedy.forwards);
        EXPECT_EQ(std::accumulate(result.accepted.begin(), result.accepted.end(), std::int64_t{0}),
                  std::ssize(result.tokens) - 1);
        EXPECT_TRUE(n > 1 || result.forwards == greedy.forwards);
        gains += result.forwards < greedy.forwards ? 1 : 0;
      }
    }
  }
  EXPECT_GT(gains, 0);
}

TEST(Requests, BadOnesAreRefused) {
  const DecodeRequest good{.id = 1, .prompt = {1}, .max_new_tokens = 4};
  auto empty = good;
  empty.prompt.clear();
  auto negative = good;
  negative.prompt = {1, -3};
  auto none = good;
  none.max_new_tokens = 0;
  auto absurd = good;
  absurd.max_new_tokens = std::int64_t{1} << 40;
  EXPECT_THROW((void)make_greedy_decoder(empty), DataError);
  EXPECT_THROW((void)make_jacobi_decoder(empty, {}), DataError);
  EXPECT_THROW((void)make_greedy_decoder(negative), DataError);
  EXPECT_THROW((void)make_jacobi_decoder(negative, {}), DataError);
  EXPECT_THROW((void)make_greedy_decoder(none), ConfigError);
  EXPECT_THROW((void)make_jacobi_decoder(none, {}), ConfigError);
  EXPECT_THROW((void)make_greedy_decoder(absurd), ConfigError);
  EXPECT_THROW((void)make_jacobi_decoder(absurd, {}), ConfigError);
  EXPECT_THROW((void)make_jacobi_decoder(good, {.block_size = 0}), ConfigError);
  EXPECT_THROW((void)make_jacobi_decoder(good, {.record_states = true}), ConfigError);
  EXPECT_THROW((void)make_prompt_lookup_decoder(good, {.block_size = 0}), ConfigError);
  EXPECT_THROW((void)make_prompt_lookup_decoder(good, {.match_length = 0}), ConfigError);
  EXPECT_THROW((void)make_drafted_decoder(good, {.block_size = 0}), ConfigError);
  EXPECT_THROW((void)make_drafted_decoder(good, {.match_length = -1}), ConfigError);
  EXPECT_THROW(
      (void)make_jacobi_decoder(good, {.window = DraftWindow::running, .complete_blocks = true}),
      ConfigError);
}

TEST(Decoders, RefuseTheWrongNumberOfPredictions) {
  const auto greedy = make_greedy_decoder({.prompt = {1, 2}, .max_new_tokens = 4});
  EXPECT_THROW(advance(*greedy, {1, 2}), InternalError);
  const auto jacobi = started(DraftWindow::running, 100);
  EXPECT_THROW(advance(*jacobi, {1, 2, 3}), InternalError);
  EXPECT_THROW((void)jacobi->take_result(), InternalError);
}

}  // namespace
}  // namespace jforge::test
