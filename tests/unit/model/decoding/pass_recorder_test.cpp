#include "model/decoding/pass_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>

#include "model/decoding/drafted_decoder.h"
#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "model/decoding/prompt_lookup_decoder.h"
#include "tests/unit/model/decoding/fake_decode_model.h"

namespace jforge::test {
namespace {

constexpr std::uint64_t kVocabulary = 11;

DecodeRequest request(PromptId id, std::int64_t max_new_tokens) {
  return {.id = id,
          .prompt = random_prompt(id, 5, kVocabulary),
          .max_new_tokens = max_new_tokens,
          .eos_ids = {3}};
}

std::vector<std::unique_ptr<SequenceDecoder>> methods(PromptId id) {
  std::vector<std::unique_ptr<SequenceDecoder>> decoders;
  decoders.push_back(make_greedy_decoder(request(id, 40)));
  for (const DraftWindow window : {DraftWindow::shrinking, DraftWindow::running}) {
    decoders.push_back(make_jacobi_decoder(request(id, 40), {.block_size = 6, .window = window}));
  }
  decoders.push_back(make_multi_block_decoder(request(id, 40), {.block_size = 6, .blocks = 3}));
  decoders.push_back(make_prompt_lookup_decoder(request(id, 40), {.block_size = 6}));
  decoders.push_back(make_drafted_decoder(request(id, 40), {.block_size = 6, .match_length = 2}));
  return decoders;
}

struct Recorded {
  DecodeResult result;
  std::vector<TraceRow> rows;
  std::vector<TokenId> known;  ///< as reported pass by pass
};

Recorded record(std::unique_ptr<SequenceDecoder> decoder) {
  FakeDecodeModel model({.num_slots = 1,
                         .slot_capacity = 128,
                         .branch_rows = 64,
                         .vocabulary = static_cast<std::int32_t>(kVocabulary)});
  Recorded recorded;
  PassRecorder recorder([&](std::span<const TokenId> known) {
    recorded.known.insert(recorded.known.end(), known.begin(), known.end());
  });
  DecodeEngine engine(model, 1);
  engine.set_observer(&recorder);
  engine.admit(std::move(decoder));
  while (engine.running() > 0) {
    engine.step();
  }
  recorded.result = engine.take_finished().value();
  recorded.rows = recorder.rows(recorded.result.tokens);
  return recorded;
}

bool is_known(const TraceCell& cell) {
  return cell.kind == TraceKind::accepted || cell.kind == TraceKind::recycled;
}

TEST(PassRecorder, KnownTokensOfAllPassesAreTheAnswer) {
  std::array<std::int64_t, 4> kinds{};
  for (PromptId id = 0; id < 30; ++id) {
    for (auto& decoder : methods(id)) {
      const Recorded recorded = record(std::move(decoder));
      const DecodeResult& result = recorded.result;
      ASSERT_EQ(std::ssize(recorded.rows), result.forwards + 1);
      std::vector<TokenId> known;
      for (std::size_t pass = 0; pass < recorded.rows.size(); ++pass) {
        const TraceRow& row = recorded.rows[pass];
        EXPECT_EQ(std::ranges::count_if(row, is_known), pass == 0 ? 1 : result.accepted[pass - 1]);
        for (const TraceCell& cell : row) {
          ++kinds[static_cast<std::size_t>(cell.kind)];
          EXPECT_EQ(cell.position, row.front().position + (&cell - row.data()));
          if (is_known(cell)) {
            EXPECT_EQ(cell.position, std::ssize(known));
            known.push_back(cell.token);
            continue;
          }
          const bool right = cell.position < std::ssize(result.tokens) &&
                             result.tokens[static_cast<std::size_t>(cell.position)] == cell.token;
          EXPECT_EQ(right, cell.kind == TraceKind::stationary);
        }
      }
      EXPECT_EQ(known, result.tokens);
      // Tokens of the last pass may be missing.
      ASSERT_LE(recorded.known.size(), result.tokens.size());
      ASSERT_GE(recorded.known.size() + recorded.rows.back().size(), result.tokens.size());
      EXPECT_TRUE(std::equal(recorded.known.begin(), recorded.known.end(), result.tokens.begin()));
    }
  }
  for (const std::int64_t count : kinds) {
    EXPECT_GT(count, 0) << "a kind that no method shows";
  }
}

TEST(PassRecorder, GreedyDecodingHasNoDraft) {
  const Recorded recorded = record(make_greedy_decoder(request(1, 12)));
  for (const TraceRow& row : recorded.rows) {
    ASSERT_EQ(row.size(), 1U);
    EXPECT_EQ(row[0].kind, TraceKind::accepted);
  }
}

TEST(PassRecorder, OnlyMethodsWithAlternativesRecycle) {
  std::int64_t recycled = 0;
  for (PromptId id = 0; id < 20; ++id) {
    auto decoders = methods(id);
    for (std::size_t i = 0; i < decoders.size(); ++i) {
      for (const TraceRow& row : record(std::move(decoders[i])).rows) {
        const auto count = std::ranges::count(row, TraceKind::recycled, &TraceCell::kind);
        recycled += count;
        EXPECT_TRUE(count == 0 || i == 3 || i == 5);
      }
    }
  }
  EXPECT_GT(recycled, 0);
}

}  // namespace
}  // namespace jforge::test
