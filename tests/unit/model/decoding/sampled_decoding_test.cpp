/// Sampling by every method equals decoding one token at a time (METHOD.md §6.6, I23).

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "model/decoding/decode_engine.h"
#include "model/decoding/drafted_decoder.h"
#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "model/decoding/prompt_lookup_decoder.h"
#include "tests/unit/model/decoding/fake_decode_model.h"
#include "tests/unit/model/kernels/sampling_law.h"

namespace jforge::test {
namespace {

using Maker = std::function<std::unique_ptr<SequenceDecoder>(DecodeRequest)>;

std::map<std::string, Maker> methods() {
  std::map<std::string, Maker> makers;
  for (const std::int32_t n : {1, 2, 5, 16}) {
    for (const std::uint64_t seed : {1, 2}) {
      const std::string end = " " + std::to_string(n) + " " + std::to_string(seed);
      for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
        makers[(window == DraftWindow::running ? "jacobi" : "jacobi_shrinking") + end] =
            [=](DecodeRequest request) {
              return make_jacobi_decoder(std::move(request),
                                         {.block_size = n, .window = window, .seed = seed});
            };
      }
      for (const SpawnMode spawn : {SpawnMode::continuation, SpawnMode::clone}) {
        makers[(spawn == SpawnMode::clone ? "mr_paper" : "mr") + end] = [=](DecodeRequest request) {
          return make_multi_block_decoder(
              std::move(request),
              {.block_size = n, .blocks = 3, .spawn_ratio = 0.4, .spawn = spawn, .seed = seed});
        };
      }
      makers["mr_lookup" + end] = [=](DecodeRequest request) {
        return make_multi_block_decoder(std::move(request),
                                        {.block_size = n,
                                         .spawn_ratio = 0.4,
                                         .match_length = static_cast<std::int32_t>(seed),
                                         .seed = seed});
      };
      for (const std::int32_t match_length : {0, static_cast<std::int32_t>(seed)}) {
        makers[(match_length > 0 ? "draft_lookup" : "draft") + end] = [=](DecodeRequest request) {
          return make_drafted_decoder(
              std::move(request), {.block_size = n, .match_length = match_length, .seed = seed});
        };
      }
      makers["prompt_lookup" + end] = [=](DecodeRequest request) {
        return make_prompt_lookup_decoder(
            std::move(request), {.block_size = n, .match_length = static_cast<std::int32_t>(seed)});
      };
    }
  }
  return makers;
}

constexpr std::int32_t kVocabulary = 17;
constexpr std::int64_t kTokens = 24;
constexpr PromptId kRequests = 12;

FakeDecodeModel fake_model(std::int32_t num_slots) {
  return FakeDecodeModel({.num_slots = num_slots,
                          .slot_capacity = 96,
                          .branch_rows = 16 * 16,
                          .vocabulary = kVocabulary,
                          .local = 7});
}

DecodeRequest request(PromptId id, const SamplingOptions& sampling) {
  return {.id = id,
          .prompt = random_prompt(id, 1 + static_cast<std::size_t>(id) % 9, kVocabulary),
          .max_new_tokens = kTokens,
          .eos_ids = {3},
          .sampling = sampling};
}

std::map<PromptId, DecodeResult> decode(DecodeModel& model, std::int32_t batch, const Maker& make,
                                        const SamplingOptions& sampling) {
  DecodeEngine engine(model, batch);
  std::vector<std::unique_ptr<SequenceDecoder>> decoders;
  for (PromptId id = 0; id < kRequests; ++id) {
    decoders.push_back(make(request(id, sampling)));
  }
  std::map<PromptId, DecodeResult> results;
  for (DecodeResult& result : decode_all(engine, std::move(decoders))) {
    const PromptId id = result.id;
    results.emplace(id, std::move(result));
  }
  return results;
}

const std::map<std::string, SamplingOptions> kSettings{
    {"greedy", {}},
    {"cold", {.temperature = 0.4, .seed = 1}},
    {"warm", {.temperature = 1, .top_p = 0.9, .seed = 2}},
    {"hot", {.temperature = 2, .top_k = 5, .seed = 3}},
    {"penalised", {.temperature = 0.7, .repetition_penalty = 1.4, .seed = 4}},
    {"penalised greedy", {.repetition_penalty = 1.3}}};

TEST(SampledDecoding, EveryMethodGivesArsTokensInAnyBatch) {  // I23
  std::int64_t saved = 0;
  for (const auto& [setting, sampling] : kSettings) {
    auto alone = fake_model(1);
    const auto ar = decode(alone, 1, make_greedy_decoder, sampling);
    for (const auto& [name, make] : methods()) {
      SCOPED_TRACE(testing::Message() << setting << ", " << name);
      auto narrow = fake_model(1);
      auto wide = fake_model(5);
      const auto single = decode(narrow, 1, make, sampling);
      const auto batched = decode(wide, 5, make, sampling);
      for (const auto& [id, expected] : ar) {
        ASSERT_EQ(single.at(id).tokens, expected.tokens);
        ASSERT_EQ(batched.at(id).tokens, expected.tokens);
        EXPECT_EQ(batched.at(id).stop, expected.stop);
        EXPECT_EQ(batched.at(id).accepted, single.at(id).accepted);
        EXPECT_LE(batched.at(id).forwards, expected.forwards);
        saved += expected.forwards - batched.at(id).forwards;
      }
    }
  }
  EXPECT_GT(saved, 0) << "no draft was ever accepted: the test says nothing";
}

/// With penalties for all earlier tokens.
TEST(SampledDecoding, ArSamplesEachTokenBehindAllBeforeIt) {
  auto model = fake_model(3);
  for (const auto& [setting, sampling] : kSettings) {
    SCOPED_TRACE(setting);
    for (const auto& [id, result] : decode(model, 3, make_greedy_decoder, sampling)) {
      TokenSampler sampler;
      std::vector<TokenId> text = request(id, sampling).prompt;
      for (const TokenId token : result.tokens) {
        auto logits = model.next_logits(text);
        ASSERT_EQ(token, sampler.choose(logits, {.options = sampling,
                                                 .request = id,
                                                 .position = std::ssize(text),
                                                 .text = text}));
        text.push_back(token);
      }
    }
  }
}

TEST(SampledDecoding, AGreedySequenceMayShareABatchWithOneThatSamples) {
  auto model = fake_model(2);
  DecodeEngine engine(model, 2);
  engine.admit(make_greedy_decoder(request(7, {.temperature = 1})));
  engine.admit(make_greedy_decoder(request(8, {})));
  std::map<PromptId, std::vector<TokenId>> tokens;
  while (engine.running() > 0) {
    engine.step();
    while (const auto result = engine.take_finished()) {
      tokens[result->id] = result->tokens;
    }
  }
  auto alone = fake_model(1);
  EXPECT_EQ(tokens[8], decode(alone, 1, make_greedy_decoder, {}).at(8).tokens);
  EXPECT_EQ(tokens[7], decode(alone, 1, make_greedy_decoder, {.temperature = 1}).at(7).tokens);
}

/// Verified at the same place by many requests.
class FixedDraft final : public SequenceDecoder {
 public:
  FixedDraft(DecodeRequest request, TokenId first, TokenId draft)
      : request_(std::move(request)), tokens_{first, draft} {
    branch_ = {.tokens = request_.prompt, .first_output = request_.prompt.size() - 1};
  }
  [[nodiscard]] std::span<const DraftBranch> pending() const override { return {&branch_, 1}; }
  [[nodiscard]] std::int64_t kv_length() const override { return branch_.first_position; }
  Commit advance(std::span<const BranchOutcome> outcomes) override {
    if (branch_.first_position == 0) {
      branch_ = {.first_position = std::ssize(request_.prompt), .tokens = tokens_};
      return {.rows = std::ssize(request_.prompt)};
    }
    next_ = outcomes[0].predictions[0];
    finished_ = true;
    return {.rows = 1};
  }
  [[nodiscard]] bool finished() const override { return finished_; }
  [[nodiscard]] DecodeResult take_result() override {
    DecodeResult result;
    result.id = request_.id;
    result.tokens.push_back(next_);
    return result;
  }
  [[nodiscard]] std::int64_t max_positions() const override {
    return std::ssize(request_.prompt) + 2;
  }
  [[nodiscard]] PromptId id() const override { return request_.id; }
  [[nodiscard]] const SamplingOptions& sampling() const override { return request_.sampling; }

 private:
  DecodeRequest request_;
  std::vector<TokenId> tokens_;
  DraftBranch branch_;
  TokenId next_ = -1;
  bool finished_ = false;
};

/// Accepted with probability p(x); a replacement is distributed as the other tokens.
TEST(SampledDecoding, AFixedDraftIsAcceptedByItsProbability) {  // I23
  const std::vector<TokenId> prompt{1, 2, 3, 4};
  const SamplingOptions sampling{.temperature = 1, .top_k = 4, .seed = 6};
  constexpr PromptId kDraws = 3000;
  auto model = fake_model(8);
  const std::vector<TokenId> text{1, 2, 3, 4, 5};
  const auto law = sampling_law(sampling, model.next_logits(text), text);
  for (const TokenId draft : {0, 5, 9}) {
    DecodeEngine engine(model, 8);
    std::vector<std::unique_ptr<SequenceDecoder>> decoders;
    for (PromptId id = 0; id < kDraws; ++id) {
      decoders.push_back(std::make_unique<FixedDraft>(
          DecodeRequest{.id = id, .prompt = prompt, .max_new_tokens = 2, .sampling = sampling}, 5,
          draft));
    }
    std::vector<std::int64_t> counts(kVocabulary);
    for (const DecodeResult& result : decode_all(engine, std::move(decoders))) {
      counts[static_cast<std::size_t>(result.tokens[0])] += 1;
    }
    EXPECT_TRUE(follows(counts, law)) << "draft " << draft;
  }
  const SamplingOptions certain{.temperature = 5, .top_k = 1};
  const auto logits = model.next_logits(text);
  const auto only = static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
  for (PromptId id = 0; id < 100; ++id) {
    DecodeEngine engine(model, 1);
    engine.admit(std::make_unique<FixedDraft>(
        DecodeRequest{.id = id, .prompt = prompt, .max_new_tokens = 2, .sampling = certain}, 5,
        only));
    engine.step();
    engine.step();
    EXPECT_EQ(engine.take_finished()->tokens[0], only);
  }
}

/// Against the product of the tokens' distributions.
TEST(SampledDecoding, AnswersFollowTheLawOfSamplingOneByOne) {  // I23
  constexpr std::int32_t kFew = 4;
  constexpr PromptId kDraws = 3000;
  const std::vector<TokenId> prompt{2, 1, 2};
  const SamplingOptions sampling{
      .temperature = 0.8, .top_p = 0.95, .repetition_penalty = 1.2, .seed = 12};
  FakeDecodeModel model({.num_slots = 16, .branch_rows = 16 * 16, .vocabulary = kFew, .local = 7});
  std::vector<double> law;
  const std::function<void(std::vector<TokenId>, double)> expand = [&](std::vector<TokenId> text,
                                                                       double p) {
    if (text.size() == prompt.size() + 3) {
      law.push_back(p);
      return;
    }
    const auto next = sampling_law(sampling, model.next_logits(text), text);
    for (TokenId token = 0; token < kFew; ++token) {
      auto longer = text;
      longer.push_back(token);
      expand(longer, p * next[static_cast<std::size_t>(token)]);
    }
  };
  expand(prompt, 1);
  auto makers = methods();
  makers["ar"] = make_greedy_decoder;
  for (const auto& [name, make] : makers) {
    if (name.ends_with(" 2") || name.find(" 5") != std::string::npos) {
      continue;
    }
    DecodeEngine engine(model, 16);
    std::vector<std::unique_ptr<SequenceDecoder>> decoders;
    for (PromptId id = 0; id < kDraws; ++id) {
      decoders.push_back(
          make({.id = id, .prompt = prompt, .max_new_tokens = 3, .sampling = sampling}));
    }
    std::vector<std::int64_t> counts(law.size());
    for (const DecodeResult& result : decode_all(engine, std::move(decoders))) {
      std::size_t cell = 0;
      for (const TokenId token : result.tokens) {
        cell = cell * kFew + static_cast<std::size_t>(token);
      }
      counts[cell] += 1;
    }
    EXPECT_TRUE(follows(counts, law)) << name;
  }
}

}  // namespace
}  // namespace jforge::test
