/// Continuous batching: results do not depend on company, prompts are cut, slots are refilled and
/// reused.

#include "model/decoding/batch_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/unit/model/decoding/fake_decode_model.h"

namespace jforge::test {
namespace {

constexpr std::uint64_t kVocabulary = 29;
constexpr std::int64_t kRequests = 40;

FakeDecodeModel fake_model(std::int32_t num_slots, std::int32_t slot_capacity = 256) {
  return FakeDecodeModel({.num_slots = num_slots,
                          .slot_capacity = slot_capacity,
                          .vocabulary = static_cast<std::int32_t>(kVocabulary)});
}

DecodeRequest request(PromptId id) {
  return {.id = id,
          .prompt = random_prompt(id, 1 + static_cast<std::size_t>(id * 7 % 60), kVocabulary),
          .max_new_tokens = 1 + id * 13 % 50,
          .eos_ids = {3}};
}

/// A mix of all methods, fixed by the request's id.
std::unique_ptr<SequenceDecoder> decoder_for(PromptId id) {
  switch (id % 4) {
    case 0:
      return make_greedy_decoder(request(id));
    case 1:
      return make_jacobi_decoder(request(id),
                                 {.block_size = 5, .window = DraftWindow::running, .seed = 4});
    case 2:
      return make_jacobi_decoder(request(id), {.block_size = 8, .seed = 4});
    default:
      return make_jacobi_decoder(
          request(id),
          {.block_size = 8, .seed = 4, .complete_blocks = true, .record_states = true});
  }
}

BatchDecoder::Source source_of(std::int64_t count, std::int64_t& next) {
  return [count, &next]() -> std::unique_ptr<SequenceDecoder> {
    return next == count ? nullptr : decoder_for(next++);
  };
}

using Results = std::map<PromptId, DecodeResult>;

Results run_all(DecodeModel& model, std::int32_t batch_prompts) {
  BatchDecoder decoder(model, batch_prompts);
  Results results;
  std::int64_t next = 0;
  decoder.run(source_of(kRequests, next), [&](DecodeResult result) {
    const PromptId id = result.id;
    EXPECT_TRUE(results.emplace(id, std::move(result)).second) << "given back twice";
  });
  return results;
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

TEST(BatchDecoder, ResultsDoNotDependOnTheBatch) {
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

TEST(BatchDecoder, UsesNoMoreSequencesThanSlotsOrAsked) {
  auto model = fake_model(2);
  EXPECT_EQ(run_all(model, 99).size(), static_cast<std::size_t>(kRequests));
  auto wide = fake_model(8);
  BatchDecoder decoder(wide, 3);
  std::int64_t next = 0;
  std::int64_t finished = 0;
  std::int64_t most = 0;
  const auto inner = source_of(kRequests, next);
  decoder.run(
      [&] {
        auto given = inner();
        most = std::max(most, next - finished);
        return given;
      },
      [&](const DecodeResult&) { ++finished; });
  EXPECT_EQ(most, 3);
  EXPECT_EQ(finished, kRequests);
  EXPECT_THROW(BatchDecoder(wide, 0), ConfigError);
}

TEST(BatchDecoder, LongPromptsAreCutAndDoNotHoldUpTheOthers) {
  constexpr std::int32_t kCapacity = 3000;
  const auto ask = [](PromptId id) {
    return DecodeRequest{.id = id,
                         .prompt = random_prompt(id, id % 2 == 0 ? 2600 : 4, kVocabulary),
                         .max_new_tokens = 6};
  };
  auto model = fake_model(4, kCapacity);
  BatchDecoder decoder(model, 4);
  PromptId next = 0;
  std::vector<PromptId> order;
  decoder.run(
      [&]() -> std::unique_ptr<SequenceDecoder> {
        if (next == 4) {
          return nullptr;
        }
        const PromptId id = next++;
        return id < 2 ? make_greedy_decoder(ask(id))
                      : make_jacobi_decoder(ask(id), {.block_size = 4, .seed = 1});
      },
      [&](const DecodeResult& result) {
        order.push_back(result.id);
        EXPECT_EQ(result.prefill_forwards, 1);
        EXPECT_EQ(result.tokens, model.greedy(ask(result.id).prompt, 6));
      });
  ASSERT_EQ(order.size(), 4U);
  EXPECT_LE(model.largest_call(), BatchDecoder::kStepRows);
  EXPECT_EQ(decoder.statistics().prefill_rows, 2 * (2600 + 4));
  EXPECT_EQ(decoder.statistics().steps, model.calls());
}

TEST(BatchDecoder, StatisticsCountRowsAndShareTime) {
  auto model = fake_model(4);
  BatchDecoder decoder(model, 4);
  int given = 0;
  std::int64_t forwards = 0;
  decoder.run(
      [&]() -> std::unique_ptr<SequenceDecoder> {
        if (given == 5) {
          return nullptr;
        }
        ++given;
        return make_greedy_decoder(
            {.id = given, .prompt = random_prompt(given, 11, kVocabulary), .max_new_tokens = 20});
      },
      [&](const DecodeResult& result) { forwards += result.forwards; });
  const BatchDecoderStatistics& statistics = decoder.statistics();
  EXPECT_EQ(forwards, 5 * 19);
  EXPECT_EQ(statistics.prefill_rows, 5 * 11);
  EXPECT_EQ(statistics.rows, 5 * 11 + forwards);
  EXPECT_EQ(statistics.steps, 2 * 20) << "four sequences, then the fifth alone";
  EXPECT_GT(statistics.prefill_seconds, 0);
  EXPECT_GT(statistics.decode_seconds, 0);
}

TEST(BatchDecoder, AStopEndsTheRunAfterThatStep) {
  auto model = fake_model(4);
  BatchDecoder decoder(model, 4);
  std::int64_t next = 0;
  std::int64_t steps = 0;
  std::size_t finished = 0;
  decoder.run(
      source_of(kRequests, next), [&](const DecodeResult&) { ++finished; },
      [&] { return steps == 7; }, [&] { ++steps; });
  EXPECT_EQ(model.calls(), 7);
  EXPECT_LT(finished, static_cast<std::size_t>(kRequests));
  // What was dropped leaves nothing behind: the same decoder serves the next run.
  Results results;
  next = 0;
  decoder.run(source_of(kRequests, next), [&](DecodeResult result) {
    const PromptId id = result.id;
    results.emplace(id, std::move(result));
  });
  auto alone = fake_model(1);
  for (const auto& [id, result] : run_all(alone, 1)) {
    expect_equal(results.at(id), result);
  }
}

TEST(BatchDecoder, ASequenceThatDoesNotFitASlotIsRefusedByName) {
  const auto run_with = [](std::int64_t max_new_tokens, bool greedy) {
    auto model = fake_model(2, 32);
    BatchDecoder decoder(model, 2);
    bool given = false;
    std::size_t tokens = 0;
    decoder.run(
        [&]() -> std::unique_ptr<SequenceDecoder> {
          if (std::exchange(given, true)) {
            return nullptr;
          }
          DecodeRequest asked{.id = 77,
                              .prompt = random_prompt(1, 12, kVocabulary),
                              .max_new_tokens = max_new_tokens};
          return greedy ? make_greedy_decoder(std::move(asked))
                        : make_jacobi_decoder(std::move(asked),
                                              {.block_size = 8, .complete_blocks = true});
        },
        [&](const DecodeResult& result) { tokens = result.tokens.size(); });
    return tokens;
  };
  EXPECT_EQ(run_with(21, true), 21U) << "the last token needs no position";
  EXPECT_EQ(run_with(16, false), 16U);
  EXPECT_THROW(run_with(22, true), DataError);
  try {
    run_with(17, false);
    FAIL() << "three blocks need 36 positions";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("prompt 77 needs 36 positions"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace jforge::test
