/// Continuous batching: results do not depend on other sequences, slots are reused.

#include "model/decoding/decode_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "tests/support/message_of.h"
#include "tests/unit/model/decoding/fake_decode_model.h"

namespace jforge::test {
namespace {

constexpr std::uint64_t kVocabulary = 29;
constexpr std::int64_t kRequests = 40;

FakeDecodeModel fake_model(std::int32_t num_slots, std::int32_t slot_capacity = 256) {
  return FakeDecodeModel({.num_slots = num_slots,
                          .slot_capacity = slot_capacity,
                          .branch_rows = 3 * 8,
                          .vocabulary = static_cast<std::int32_t>(kVocabulary)});
}

DecodeRequest request(PromptId id) {
  return {.id = id,
          .prompt = random_prompt(id, 1 + static_cast<std::size_t>(id * 7 % 60), kVocabulary),
          .max_new_tokens = 1 + id * 13 % 50,
          .eos_ids = {3}};
}

std::unique_ptr<SequenceDecoder> decoder_for(PromptId id) {
  switch (id % 5) {
    case 0:
      return make_greedy_decoder(request(id));
    case 1:
      return make_jacobi_decoder(request(id),
                                 {.block_size = 5, .window = DraftWindow::running, .seed = 4});
    case 2:
      return make_jacobi_decoder(request(id), {.block_size = 8, .seed = 4});
    case 3:
      return make_multi_block_decoder(request(id), {.block_size = 8, .blocks = 3, .seed = 4});
    default:
      return make_jacobi_decoder(
          request(id),
          {.block_size = 8, .seed = 4, .complete_blocks = true, .record_states = true});
  }
}

using Decoders = std::vector<std::unique_ptr<SequenceDecoder>>;
using Results = std::map<PromptId, DecodeResult>;

Decoders all_decoders() {
  Decoders decoders;
  for (PromptId id = 0; id < kRequests; ++id) {
    decoders.push_back(decoder_for(id));
  }
  return decoders;
}

Results by_id(std::vector<DecodeResult> all) {
  Results results;
  for (DecodeResult& result : all) {
    const PromptId id = result.id;
    EXPECT_TRUE(results.emplace(id, std::move(result)).second) << "given back twice";
  }
  return results;
}

Results run_all(DecodeModel& model, std::int32_t batch_prompts) {
  DecodeEngine engine(model, batch_prompts);
  return by_id(decode_all(engine, all_decoders()));
}

void expect_equal(const DecodeResult& left, const DecodeResult& right) {
  EXPECT_EQ(left.tokens, right.tokens) << "prompt " << left.id;
  EXPECT_EQ(left.stop, right.stop);
  EXPECT_EQ(left.prefill_forwards, right.prefill_forwards);
  EXPECT_EQ(left.forwards, right.forwards);
  EXPECT_EQ(left.accepted, right.accepted);
  ASSERT_EQ(left.blocks.size(), right.blocks.size());
  for (std::size_t i = 0; i < left.blocks.size(); ++i) {
    EXPECT_EQ(left.blocks[i].states, right.blocks[i].states);
    EXPECT_EQ(left.blocks[i].states_seen, right.blocks[i].states_seen);
  }
}

TEST(DecodeEngine, ResultsDoNotDependOnTheBatch) {
  auto alone = fake_model(1);
  const Results expected = run_all(alone, 1);
  ASSERT_EQ(expected.size(), static_cast<std::size_t>(kRequests));
  for (const auto& [id, result] : expected) {
    const auto text = alone.greedy(request(id).prompt, result.tokens.size());
    EXPECT_EQ(result.tokens, text);
  }
  for (const std::int32_t batch : {3, 8, 32}) {
    auto model = fake_model(batch);
    const Results results = run_all(model, batch);
    ASSERT_EQ(results.size(), expected.size());
    for (const auto& [id, result] : results) {
      expect_equal(result, expected.at(id));
    }
  }
}

TEST(DecodeEngine, UsesNoMoreSequencesThanSlotsOrAsked) {
  auto model = fake_model(2);
  EXPECT_EQ(run_all(model, 99).size(), static_cast<std::size_t>(kRequests));
  auto wide = fake_model(8);
  DecodeEngine engine(wide, 3);
  for (std::size_t admitted = 0; admitted < 3; ++admitted) {
    EXPECT_EQ(engine.free_slots(), 3 - admitted);
    EXPECT_EQ(engine.running(), admitted);
    engine.admit(decoder_for(static_cast<PromptId>(admitted)));
  }
  EXPECT_EQ(engine.free_slots(), 0U);
  EXPECT_THROW(engine.admit(decoder_for(3)), InternalError);
  while (engine.running() == 3) {
    EXPECT_FALSE(engine.take_finished().has_value());
    engine.step();
  }
  EXPECT_GT(engine.free_slots(), 0U);
  EXPECT_TRUE(engine.take_finished().has_value());
  EXPECT_THROW(DecodeEngine(wide, 0), ConfigError);
}

TEST(DecodeEngine, LongPromptsAreCutAndDoNotHoldUpTheOthers) {
  constexpr std::int32_t kCapacity = 3000;
  const auto ask = [](PromptId id) {
    return DecodeRequest{.id = id,
                         .prompt = random_prompt(id, id % 2 == 0 ? 2600 : 4, kVocabulary),
                         .max_new_tokens = 6};
  };
  auto model = fake_model(4, kCapacity);
  DecodeEngine engine(model, 4);
  Decoders decoders;
  for (PromptId id = 0; id < 4; ++id) {
    decoders.push_back(id < 2 ? make_greedy_decoder(ask(id))
                              : make_jacobi_decoder(ask(id), {.block_size = 4, .seed = 1}));
  }
  const auto results = decode_all(engine, std::move(decoders));
  ASSERT_EQ(results.size(), 4U);
  for (const DecodeResult& result : results) {
    EXPECT_EQ(result.prefill_forwards, 1);
    EXPECT_EQ(result.tokens, model.greedy(ask(result.id).prompt, 6));
  }
  EXPECT_LE(model.largest_call(), DecodeEngine::kStepRows);
  EXPECT_EQ(engine.statistics().prefill_rows, 2 * (2600 + 4));
  EXPECT_EQ(engine.statistics().steps, model.calls());
}

TEST(DecodeEngine, StatisticsCountRowsAndShareTime) {
  auto model = fake_model(4);
  DecodeEngine engine(model, 4);
  Decoders decoders;
  for (PromptId id = 1; id <= 5; ++id) {
    decoders.push_back(make_greedy_decoder(
        {.id = id, .prompt = random_prompt(id, 11, kVocabulary), .max_new_tokens = 20}));
  }
  std::int64_t forwards = 0;
  for (const DecodeResult& result : decode_all(engine, std::move(decoders))) {
    forwards += result.forwards;
  }
  const DecodeStatistics& statistics = engine.statistics();
  EXPECT_EQ(forwards, 5 * 19);
  EXPECT_EQ(statistics.prefill_rows, 5 * 11);
  EXPECT_EQ(statistics.rows, 5 * 11 + forwards);
  EXPECT_EQ(statistics.steps, 2 * 20) << "four sequences, then the fifth alone";
  EXPECT_GT(statistics.prefill_seconds, 0);
  EXPECT_GT(statistics.decode_seconds, 0);
}

TEST(DecodeEngine, WhatIsDroppedLeavesNothingBehind) {
  auto model = fake_model(4);
  DecodeEngine engine(model, 4);
  for (PromptId id = 0; id < 4; ++id) {
    engine.admit(decoder_for(id));
  }
  for (int step = 0; step < 7; ++step) {
    engine.step();
  }
  EXPECT_EQ(model.calls(), 7);
  engine.clear();
  EXPECT_EQ(engine.running(), 0U);
  EXPECT_FALSE(engine.take_finished().has_value());
  EXPECT_THROW(engine.step(), InternalError);
  const Results results = by_id(decode_all(engine, all_decoders()));
  auto alone = fake_model(1);
  for (const auto& [id, result] : run_all(alone, 1)) {
    expect_equal(results.at(id), result);
  }
}

constexpr std::int64_t kFullSlot = 4 + 1;  ///< pages of 256 positions and 24 rows of branches

FakeDecodeModel pool_model(std::int32_t num_slots, std::int64_t pages) {
  return FakeDecodeModel({.num_slots = num_slots,
                          .slot_capacity = 256,
                          .branch_rows = 3 * 8,
                          .cache_pages = pages,
                          .vocabulary = static_cast<std::int32_t>(kVocabulary)});
}

std::unique_ptr<SequenceDecoder> greedy_decoder(PromptId id, std::size_t prompt,
                                                std::int64_t max_new_tokens) {
  return make_greedy_decoder({.id = id,
                              .prompt = random_prompt(id, prompt, kVocabulary),
                              .max_new_tokens = max_new_tokens});
}

TEST(DecodeEngine, SequencesWaitForCacheMemoryInTheOrderOfAdmission) {
  auto model = pool_model(4, kFullSlot);
  DecodeEngine engine(model, 4);
  engine.admit(greedy_decoder(0, 70, 9));   // two pages …
  engine.admit(greedy_decoder(1, 70, 4));   // … and two
  engine.admit(greedy_decoder(2, 100, 3));  // two, but only one is left
  engine.admit(greedy_decoder(3, 10, 2));   // one, but it may not overtake
  EXPECT_EQ(engine.running(), 4U);
  EXPECT_EQ(engine.waiting(), 2U);
  EXPECT_EQ(engine.free_slots(), 0U);
  EXPECT_EQ(model.free_pages(), 1);
  std::vector<PromptId> order;
  while (engine.running() > 0) {
    engine.step();
    while (const auto result = engine.take_finished()) {
      order.push_back(result->id);
      EXPECT_EQ(result->tokens, model.greedy(random_prompt(result->id,
                                                           result->id == 2   ? 100
                                                           : result->id == 3 ? 10
                                                                             : 70,
                                                           kVocabulary),
                                             result->tokens.size()));
    }
  }
  // The second ends in step 4; the third and the fourth begin in step 5.
  EXPECT_EQ(order, (std::vector<PromptId>{1, 3, 2, 0}));
  EXPECT_EQ(model.free_pages(), kFullSlot);
  EXPECT_EQ(engine.statistics().prefill_rows, 70 + 70 + 100 + 10);
}

TEST(DecodeEngine, ResultsDoNotDependOnTheCachesSize) {
  auto alone = fake_model(1);
  const Results expected = run_all(alone, 1);
  for (const std::int64_t pages : {kFullSlot, kFullSlot + 1, 2 * kFullSlot, 8 * kFullSlot}) {
    auto model = pool_model(8, pages);
    const Results results = run_all(model, 8);
    ASSERT_EQ(results.size(), expected.size());
    for (const auto& [id, result] : results) {
      expect_equal(result, expected.at(id));
    }
    EXPECT_EQ(model.free_pages(), pages);
  }
}

class ThrowingObserver final : public DecodeObserver {
 public:
  void before_advance(const SequenceDecoder& /*decoder*/) override {
    if (++calls_ == 5) {
      throw NumericalError("in the middle");
    }
  }
  void after_advance(const SequenceDecoder& /*decoder*/, const Commit& /*commit*/) override {}

 private:
  int calls_ = 0;
};

TEST(DecodeEngine, CacheMemoryComesBackHoweverSequencesEnd) {
  auto model = pool_model(3, 2 * kFullSlot);
  {
    DecodeEngine engine(model, 3);
    for (PromptId id = 0; id < 3; ++id) {
      engine.admit(decoder_for(id));
    }
    engine.step();
    EXPECT_LT(model.free_pages(), 2 * kFullSlot);
    engine.clear();
    EXPECT_EQ(model.free_pages(), 2 * kFullSlot);
    engine.admit(decoder_for(4));
    engine.step();
    EXPECT_LT(model.free_pages(), 2 * kFullSlot);
  }
  EXPECT_EQ(model.free_pages(), 2 * kFullSlot) << "the engine is gone";
  ThrowingObserver observer;
  EXPECT_THROW(
      {
        DecodeEngine engine(model, 3);
        engine.set_observer(&observer);
        (void)decode_all(engine, all_decoders());
      },
      NumericalError);
  EXPECT_EQ(model.free_pages(), 2 * kFullSlot);
  const Results results = run_all(model, 3);
  auto alone = fake_model(1);
  for (const auto& [id, result] : run_all(alone, 1)) {
    expect_equal(results.at(id), result);
  }
}

TEST(DecodeEngine, RandomAdmissionsAndCancellationsLeaveNoPageBehind) {
  auto alone = fake_model(1);
  const Results expected = run_all(alone, 1);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    RandomStream random(seed, RandomPurpose::test, 43);
    const auto pages = kFullSlot + static_cast<std::int64_t>(random.below(2 * kFullSlot));
    auto model = pool_model(6, pages);
    DecodeEngine engine(model, 6);
    std::size_t finished = 0;
    for (int turn = 0; turn < 200; ++turn) {
      while (engine.free_slots() > 0 && random.below(3) > 0) {
        engine.admit(decoder_for(static_cast<PromptId>(random.below(kRequests))));
      }
      if (random.below(40) == 0) {
        engine.clear();
        EXPECT_EQ(model.free_pages(), pages);
      }
      if (engine.running() > 0) {
        EXPECT_LT(engine.waiting(), engine.running());
        engine.step();
      }
      while (const auto result = engine.take_finished()) {
        expect_equal(*result, expected.at(result->id));
        ++finished;
      }
    }
    EXPECT_GT(finished, 10U);
    engine.clear();
    EXPECT_EQ(model.free_pages(), pages);
  }
}

TEST(DecodeEngine, ASequenceThatDoesNotFitASlotIsRefusedByName) {
  const auto run_with = [](std::int64_t max_new_tokens, bool greedy) {
    auto model = fake_model(2, 32);
    DecodeEngine engine(model, 2);
    DecodeRequest asked{
        .id = 77, .prompt = random_prompt(1, 12, kVocabulary), .max_new_tokens = max_new_tokens};
    Decoders decoders;
    decoders.push_back(
        greedy ? make_greedy_decoder(std::move(asked))
               : make_jacobi_decoder(std::move(asked), {.block_size = 8, .complete_blocks = true}));
    return decode_all(engine, std::move(decoders)).at(0).tokens.size();
  };
  EXPECT_EQ(run_with(21, true), 21U) << "the last token needs no position";
  EXPECT_EQ(run_with(16, false), 16U);
  EXPECT_THROW(run_with(22, true), DataError);
  EXPECT_THAT(test::message_of<DataError>([&] { run_with(17, false); }),
              ::testing::HasSubstr("prompt 77 needs 36 positions"))
      << "three blocks need 36 positions";
  auto model = fake_model(2);
  DecodeEngine engine(model, 2);
  engine.admit(make_multi_block_decoder(request(9), {.block_size = 9}));
  EXPECT_THROW(engine.admit(make_multi_block_decoder(request(9), {.block_size = 10})), DataError);
}

}  // namespace
}  // namespace jforge::test
