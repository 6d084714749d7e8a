#include "model/transformer/inference_transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "model/transformer/training_transformer.h"
#include "runtime/phase_clock.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

constexpr std::int64_t kVocabulary = 37;

std::vector<DecodeRow> sequence_rows(const std::vector<TokenId>& tokens, std::int32_t slot,
                                     std::int32_t first = 0) {
  std::vector<DecodeRow> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back({.token = tokens[i], .place = {slot, first + static_cast<std::int32_t>(i)}});
  }
  return rows;
}

std::vector<float> logits_of(InferenceTransformer& transformer,
                             const std::vector<DecodeRow>& rows) {
  const auto wanted = std::ranges::count_if(rows, &DecodeRow::wants_output);
  std::vector<float> logits(static_cast<std::size_t>(wanted * kVocabulary));
  transformer.logits(rows, {logits.data(), {wanted, kVocabulary}});
  return logits;
}

std::vector<float> row_of(const std::vector<float>& logits, std::int64_t row) {
  return {logits.begin() + row * kVocabulary, logits.begin() + (row + 1) * kVocabulary};
}

constexpr std::int32_t kBranchRows = 12;
constexpr std::int32_t kCapacity = 64;  ///< 40 positions, rounded up to a page

InferenceTransformer make(TinyModel& model, std::int32_t max_rows, std::int32_t slots = 3,
                          WeightStorage weights = WeightStorage::automatic) {
  return {model.config,
          model.table,
          model.flat(),
          *model.kernels,
          model.account,
          {.num_slots = slots,
           .slot_capacity = 40,
           .branch_rows = kBranchRows,
           .max_rows = max_rows,
           .weights = weights}};
}

void round_matrices(TinyModel& model) {
  for (const ParameterEntry& entry : model.table.entries()) {
    if (entry.shape.rank() == 2) {
      for (float& value : model.table.tensor(model.flat(), entry.name).span<float>()) {
        value = to_float(to_bfloat16(value));
      }
    }
  }
}

struct ModelCase {
  bool tied;
  ModelFamily family = ModelFamily::qwen2;
};

class InferenceTransformerTest : public ::testing::TestWithParam<ModelCase> {
 protected:
  TinyModel model_{GetParam().tied, GetParam().family};
  RandomStream stream_{5, RandomPurpose::test, 2};
};

TEST_P(InferenceTransformerTest, AgreesWithTheTrainingForward) {
  const std::vector<TokenId> tokens = random_tokens(stream_, 30);
  InferenceTransformer inference = make(model_, 0);
  const std::vector<float> logits = logits_of(inference, sequence_rows(tokens, 1));

  TrainingTransformer training(model_.config, model_.table, *model_.kernels, model_.account, {});
  PackedBatch batch;
  append_causal_sequence(batch, tokens, 1, 1.0F);
  const ConstTensorView hidden = training.forward(batch, model_.parameters);
  std::vector<float> expected(logits.size());
  model_.kernels->linear(
      hidden,
      model_.table.tensor(ConstTensorView(model_.flat()),
                          GetParam().tied ? "model.embed_tokens.weight" : "lm_head.weight"),
      {}, {expected.data(), {30, kVocabulary}});
  for (std::size_t i = 0; i < logits.size(); ++i) {
    ASSERT_NEAR(logits[i], expected[i], 2e-4) << i;
  }
}

TEST_P(InferenceTransformerTest, RowsAreBitwiseEqualHoweverTheyAreCut) {
  const std::vector<TokenId> tokens = random_tokens(stream_, 33);
  InferenceTransformer whole = make(model_, 0);
  const std::vector<float> expected = logits_of(whole, sequence_rows(tokens, 0));
  for (const std::int32_t max_rows : {1, 3, 16, 32}) {
    InferenceTransformer cut = make(model_, max_rows);
    EXPECT_EQ(logits_of(cut, sequence_rows(tokens, 2)), expected) << max_rows;
  }
  InferenceTransformer mixed = make(model_, 0);  // a row per call, between other slots
  const std::vector<TokenId> other = random_tokens(stream_, 33);
  for (std::int32_t i = 0; i < 33; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::vector<DecodeRow> rows{
        {other[at], {0, i}}, {tokens[at], {1, i}}, {other[at], {2, i}}};
    ASSERT_EQ(row_of(logits_of(mixed, rows), 1), row_of(expected, i)) << i;
  }
}

TEST_P(InferenceTransformerTest, UnwantedRowsOnlyFillTheCache) {
  const std::vector<TokenId> tokens = random_tokens(stream_, 20);
  InferenceTransformer whole = make(model_, 0);
  const std::vector<float> expected = logits_of(whole, sequence_rows(tokens, 0));
  for (const std::int32_t max_rows : {4, 7, 0}) {
    InferenceTransformer prefill = make(model_, max_rows);
    std::vector<DecodeRow> rows = sequence_rows(tokens, 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].wants_output = i == 5 || i == 6 || i == 19;
    }
    const std::vector<float> logits = logits_of(prefill, rows);
    EXPECT_EQ(row_of(logits, 0), row_of(expected, 5));
    EXPECT_EQ(row_of(logits, 1), row_of(expected, 6));
    EXPECT_EQ(row_of(logits, 2), row_of(expected, 19));
  }
}

TEST_P(InferenceTransformerTest, PredictIsTheArgmaxOfTheLogits) {
  const std::vector<TokenId> tokens = random_tokens(stream_, 25);
  InferenceTransformer inference = make(model_, 6);
  std::vector<DecodeRow> rows = sequence_rows(tokens, 0);
  rows[3].wants_output = false;
  const std::vector<float> logits = logits_of(inference, rows);
  std::vector<TokenId> predictions(24, -1);
  inference.predict(rows, predictions);
  for (std::int64_t row = 0; row < 24; ++row) {
    const std::vector<float> values = row_of(logits, row);
    EXPECT_EQ(predictions[static_cast<std::size_t>(row)],
              std::ranges::max_element(values) - values.begin());
  }
}

TEST_P(InferenceTransformerTest, OverwritingDropsARejectedDraft) {
  const std::vector<TokenId> prompt = random_tokens(stream_, 8);
  const std::vector<TokenId> draft = random_tokens(stream_, 6);
  const std::vector<TokenId> accepted = random_tokens(stream_, 6);
  InferenceTransformer fresh = make(model_, 0);
  logits_of(fresh, sequence_rows(prompt, 0));
  const std::vector<float> expected = logits_of(fresh, sequence_rows(accepted, 0, 8));
  InferenceTransformer reused = make(model_, 0);
  logits_of(reused, sequence_rows(random_tokens(stream_, 30), 0));  // an earlier request
  logits_of(reused, sequence_rows(prompt, 0));
  logits_of(reused, sequence_rows(draft, 0, 8));
  EXPECT_EQ(logits_of(reused, sequence_rows(accepted, 0, 8)), expected);
}

TEST_P(InferenceTransformerTest, AllocatesNothingOnceBuilt) {
  InferenceTransformer inference = make(model_, 0);
  const std::size_t built = model_.account.live_bytes();
  EXPECT_GE(built, 3 * InferenceTransformer::cache_bytes(model_.config, 1, DType::float32));
  std::vector<TokenId> predictions(20);
  inference.predict(sequence_rows(random_tokens(stream_, 20), 0), predictions);
  EXPECT_EQ(model_.account.live_bytes(), built);
  EXPECT_EQ(model_.account.peak_bytes(), built);
}

TEST_P(InferenceTransformerTest, EveryLayerIsASignOfProgress) {
  InferenceTransformer inference = make(model_, 0);
  PhaseClock clock;
  clock.follow_this_thread();
  const std::uint64_t before = clock.read().progress;
  logits_of(inference, sequence_rows(random_tokens(stream_, 6), 0));
  EXPECT_EQ(clock.read().progress - before, model_.config.num_layers);
}

TEST_P(InferenceTransformerTest, ReturnsItsMemory) {
  {
    const InferenceTransformer inference = make(model_, 0);
    EXPECT_GT(model_.account.live_bytes(), 0U);
  }
  EXPECT_EQ(model_.account.live_bytes(), 0U);
}

TEST_P(InferenceTransformerTest, Bfloat16StorageOfBfloat16WeightsChangesNoBit) {
  round_matrices(model_);
  const std::vector<TokenId> tokens = random_tokens(stream_, 33);
  InferenceTransformer wide = make(model_, 0, 3, WeightStorage::float32);
  const std::vector<float> expected = logits_of(wide, sequence_rows(tokens, 0));
  std::vector<TokenId> predictions(33, -1);
  wide.predict(sequence_rows(tokens, 1), predictions);
  for (const WeightStorage storage : {WeightStorage::automatic, WeightStorage::bfloat16}) {
    for (const std::int32_t max_rows : {1, 5, 0}) {
      const std::size_t before = model_.account.live_bytes();
      InferenceTransformer narrow = make(model_, max_rows, 3, storage);
      const std::size_t taken = model_.account.live_bytes() - before;
      EXPECT_LT(taken, InferenceTransformer::bytes(model_.config,
                                                   {.num_slots = 3,
                                                    .slot_capacity = 40,
                                                    .branch_rows = kBranchRows,
                                                    .max_rows = max_rows},
                                                   Device::cpu));
      EXPECT_EQ(logits_of(narrow, sequence_rows(tokens, 0)), expected);
      std::vector<TokenId> chosen(33, -1);
      narrow.predict(sequence_rows(tokens, 1), chosen);
      EXPECT_EQ(chosen, predictions);
    }
  }
}

TEST_P(InferenceTransformerTest, Bfloat16StorageRoundsTheMatricesAndNothingElse) {
  const std::vector<TokenId> tokens = random_tokens(stream_, 33);
  // The embedding lookup is exact; a tied head is rounded.
  InferenceTransformer rounded = make(model_, 0, 3, WeightStorage::bfloat16);
  const std::vector<float> logits = logits_of(rounded, sequence_rows(tokens, 0));
  InferenceTransformer exact = make(model_, 0);
  EXPECT_NE(logits_of(exact, sequence_rows(tokens, 0)), logits);
  const std::vector<float> values = model_.values;
  round_matrices(model_);
  bool looked_up = false;
  const auto read = [&](const ParameterEntry& entry) {
    const bool lookup =
        entry.name == "model.embed_tokens.weight" && !std::exchange(looked_up, true);
    const std::vector<float>& from = lookup ? values : model_.values;
    return ConstTensorView(from.data() + entry.offset, entry.shape);
  };
  InferenceTransformer expected(model_.config, model_.table, read, *model_.kernels, model_.account,
                                {.num_slots = 3,
                                 .slot_capacity = kCapacity,
                                 .branch_rows = kBranchRows,
                                 .weights = WeightStorage::float32});
  EXPECT_EQ(logits_of(expected, sequence_rows(tokens, 0)), logits);
}

TEST_P(InferenceTransformerTest, RefusesMisuse) {
  InferenceTransformer inference = make(model_, 0);
  std::vector<TokenId> one(1);
  const auto predict = [&](const std::vector<DecodeRow>& rows) { inference.predict(rows, one); };
  EXPECT_NO_THROW(predict({{1, {0, 0}}}));
  EXPECT_THROW(predict({{1, {0, 2}}}), InternalError) << "a gap";
  EXPECT_THROW(predict({{1, {3, 0}}}), InternalError) << "no such slot";
  EXPECT_THROW(predict({{1, {-1, 0}}}), InternalError);
  EXPECT_EQ(inference.slot_capacity(), kCapacity);
  EXPECT_THROW(predict({{1, {0, kCapacity}}}), InternalError) << "past the slot";
  EXPECT_THROW(predict({{37, {0, 0}}}), InternalError) << "outside the vocabulary";
  EXPECT_THROW(predict({{-1, {0, 0}}}), InternalError);
  EXPECT_THROW(predict({{1, {0, 0}}, {1, {0, 1}}}), InternalError) << "too few predictions";
  EXPECT_THROW(predict({{1, {0, 1}, false}, {1, {0, 0}}}), InternalError) << "not ascending";
  EXPECT_NO_THROW(inference.predict({}, {}));
  constexpr std::int32_t kFirst = kCapacity;  // first of the slot's branch rows
  EXPECT_NO_THROW(predict({{1, {0, 1, 1, kFirst}}}));
  EXPECT_THROW(predict({{1, {0, 3, 3, kFirst}}}), InternalError) << "forks behind a gap";
  EXPECT_THROW(predict({{1, {0, 2, 1, kFirst}}}), InternalError) << "does not begin at its fork";
  EXPECT_THROW(predict({{1, {0, 1, 1, kFirst - 1}}}), InternalError) << "in the sequence";
  EXPECT_THROW(predict({{1, {0, 1, 1, kFirst + kBranchRows}}}), InternalError) << "past the slot";
  EXPECT_THROW(predict({{1, {0, 1, 1, kFirst}, false}, {1, {0, 3, 1, kFirst}}}), InternalError);
  const auto keep = [&](CacheCopy copy) { inference.keep_branches({&copy, 1}); };
  EXPECT_NO_THROW(keep({0, kFirst, 1}));
  EXPECT_THROW(keep({0, kFirst, 3}), InternalError) << "a gap";
  EXPECT_THROW(keep({0, 0, 1}), InternalError) << "no alternative's row";
  EXPECT_THROW(keep({3, kFirst, 0}), InternalError) << "no such slot";
  EXPECT_THROW(make(model_, 0, 0), InternalError);
}

/// A draft and two branches in one call, in any chunks.
TEST_P(InferenceTransformerTest, AlternativesEqualSequencesOfTheirOwn) {
  const std::vector<TokenId> prompt = random_tokens(stream_, 20);
  const auto with = [&](const std::vector<TokenId>& draft) {
    std::vector<TokenId> all = prompt;
    all.insert(all.end(), draft.begin(), draft.end());
    return all;
  };
  const std::vector<TokenId> plain = random_tokens(stream_, 6);
  std::vector<TokenId> early = random_tokens(stream_, 6);
  early[0] = plain[0];  // forks at position 21
  std::vector<TokenId> late = plain;
  late[4] = plain[4] == 3 ? 4 : 3;  // forks at position 24
  for (const std::int32_t max_rows : {0, 1, 4}) {
    InferenceTransformer inference = make(model_, max_rows);
    (void)logits_of(inference, sequence_rows(prompt, 1));
    std::vector<DecodeRow> rows;
    const auto append = [&](const std::vector<TokenId>& draft, std::int32_t fork,
                            std::int32_t fork_row) {
      for (std::int32_t i = fork == 0 ? 0 : fork - 20; i < 6; ++i) {
        rows.push_back({draft[static_cast<std::size_t>(i)], {1, 20 + i, fork, fork_row}});
      }
    };
    append(plain, 0, 0);
    append(early, 21, kCapacity);
    append(late, 24, kCapacity + 5);
    const std::vector<float> logits = logits_of(inference, rows);
    const auto expect_rows = [&](const std::vector<TokenId>& draft, std::int64_t first,
                                 std::int64_t from) {
      InferenceTransformer alone = make(model_, 0);
      const std::vector<float> expected = logits_of(alone, sequence_rows(with(draft), 0));
      for (std::int64_t i = from; i < 6; ++i) {
        EXPECT_EQ(row_of(logits, first + i - from), row_of(expected, 20 + i)) << i;
      }
    };
    expect_rows(plain, 0, 0);
    expect_rows(early, 6, 1);
    expect_rows(late, 11, 4);
    const std::vector<CacheCopy> kept{
        {1, kCapacity, 21}, {1, kCapacity + 1, 22}, {1, kCapacity + 2, 23}};
    inference.keep_branches(kept);
    const std::vector<DecodeRow> next{{7, {1, 24}}};
    const std::vector<TokenId> known = with({early[0], early[1], early[2], early[3], 7});
    InferenceTransformer alone = make(model_, 0);
    EXPECT_EQ(logits_of(inference, next),
              row_of(logits_of(alone, sequence_rows(known, 0)), std::ssize(known) - 1));
  }
}

/// Three slots of five pages share seven.
TEST_P(InferenceTransformerTest, SlotsShareAPoolOfPages) {
  const auto make_pool = [&](std::int64_t pages) {
    return InferenceTransformer(
        model_.config, model_.table, model_.flat(), *model_.kernels, model_.account,
        {.num_slots = 3, .slot_capacity = 200, .branch_rows = kBranchRows, .cache_pages = pages});
  };
  EXPECT_THROW((void)make_pool(4), InternalError) << "less than a full slot";
  const std::size_t before = model_.account.live_bytes();
  InferenceTransformer shared = make_pool(7);
  const std::size_t few = model_.account.live_bytes() - before;
  InferenceTransformer full = make_pool(0);
  const std::size_t all = model_.account.live_bytes() - before - few;
  EXPECT_EQ(all - few, InferenceTransformer::cache_bytes(model_.config, 3 * 5 - 7, DType::float32));
  const auto expect_row = [&](std::int32_t slot, const std::vector<TokenId>& tokens,
                              std::size_t begin, std::size_t end) {
    const std::vector<TokenId> known(tokens.begin(), tokens.begin() + static_cast<int>(end));
    const std::vector<TokenId> chunk(known.begin() + static_cast<int>(begin), known.end());
    const std::vector<float> logits =
        logits_of(shared, sequence_rows(chunk, slot, static_cast<std::int32_t>(begin)));
    const std::vector<float> expected = logits_of(full, sequence_rows(known, 0));
    ASSERT_EQ(row_of(logits, std::ssize(chunk) - 1), row_of(expected, std::ssize(known) - 1))
        << "slot " << slot << ", rows " << begin << " to " << end;
  };
  const std::vector<TokenId> one = random_tokens(stream_, 180);
  const std::vector<TokenId> two = random_tokens(stream_, 130);
  ASSERT_TRUE(shared.reserve(0, 100, 0));
  ASSERT_TRUE(shared.reserve(1, 180, kBranchRows));
  EXPECT_EQ(shared.free_pages(), 7 - 2 - 4);
  EXPECT_FALSE(shared.reserve(2, 65, 0));
  expect_row(0, two, 0, 50);
  expect_row(1, one, 0, 70);
  expect_row(0, two, 50, 100);
  expect_row(1, one, 70, 140);
  const std::vector<DecodeRow> beyond{{1, {0, 128}}};
  EXPECT_THROW(logits_of(shared, beyond), InternalError) << "a gap";
  shared.release(0);
  EXPECT_EQ(shared.free_pages(), 3);
  const std::vector<DecodeRow> stale{{1, {0, 100}}};
  EXPECT_THROW(logits_of(shared, stale), InternalError) << "released";
  ASSERT_TRUE(shared.reserve(2, 130, 0));
  expect_row(2, two, 0, 130);
  expect_row(1, one, 140, 180);
  shared.release(1);
  ASSERT_TRUE(shared.reserve(0, 180, 0));
  expect_row(0, one, 0, 100);
  expect_row(2, two, 129, 130);
  expect_row(0, one, 100, 180);
  EXPECT_EQ(shared.free_pages(), 1);
  EXPECT_FALSE(shared.reserve(2, 130, 0) && shared.reserve(1, 130, 0)) << "three and three of four";
  shared.release(0);
  shared.release(2);
  shared.release(1);
  EXPECT_EQ(shared.free_pages(), 7);
  ASSERT_TRUE(shared.reserve(0, 10, 0));
  EXPECT_THROW(logits_of(shared, sequence_rows(one, 0)), InternalError) << "more than it reserved";
  EXPECT_THROW((void)shared.reserve(0, 257, 0), InternalError) << "more than a slot holds";
  EXPECT_THROW((void)shared.reserve(0, 10, kBranchRows + 1), InternalError);
}

TEST_P(InferenceTransformerTest, NamesNotANumber) {
  const ParameterEntry& entry = model_.table.entry("model.layers.1.mlp.up_proj.weight");
  model_.values[static_cast<std::size_t>(entry.offset)] = std::numeric_limits<float>::quiet_NaN();
  InferenceTransformer inference = make(model_, 0);
  const DecodeRow row{.token = 1, .place = {0, 0}};
  TokenId prediction = 0;
  EXPECT_THROW(inference.predict({&row, 1}, {&prediction, 1}), NumericalError);
}

std::string model_name(const ::testing::TestParamInfo<ModelCase>& info) {
  return std::string(info.param.tied ? "tied_" : "untied_") +
         traits_of(info.param.family).model_type;
}

INSTANTIATE_TEST_SUITE_P(Models, InferenceTransformerTest,
                         ::testing::Values(ModelCase{false}, ModelCase{true},
                                           ModelCase{false, ModelFamily::qwen3},
                                           ModelCase{true, ModelFamily::smollm3},
                                           ModelCase{false, ModelFamily::olmo2},
                                           ModelCase{true, ModelFamily::granite}),
                         model_name);

constexpr std::int32_t kDraft = 9;

/// Sequences of two slots, each with draft rows and the same tokens as an alternative's.
class DraftingRowsTest
    : public ::testing::TestWithParam<std::tuple<ModelFamily, WeightStorage, BFloat16Sums>> {
 protected:
  [[nodiscard]] InferenceTransformer make_drafting(std::int32_t max_rows, bool adapter = true) {
    return {model_.config,
            model_.table,
            model_.flat(),
            *kernels_,
            model_.account,
            {.num_slots = 2,
             .slot_capacity = kCapacity,
             .branch_rows = kBranchRows,
             .max_rows = max_rows,
             .weights = std::get<1>(GetParam()),
             .adapter = adapter ? &source_ : nullptr}};
  }
  /// Rows of `slot`: its prompt, its draft and the alternative, which drafts if `drafts`.
  [[nodiscard]] std::vector<DecodeRow> rows_of(std::int32_t slot, bool drafts) const {
    const auto& [prompt, draft] = texts_[static_cast<std::size_t>(slot)];
    const auto fork = static_cast<std::int32_t>(prompt.size());
    std::vector<DecodeRow> rows = sequence_rows(prompt, slot);
    for (const DecodeRow& row : sequence_rows(draft, slot, fork)) {
      rows.push_back(row);
    }
    for (std::int32_t i = 0; i < kDraft; ++i) {
      const CacheRow place{slot, fork + i, fork, kCapacity};
      rows.push_back({draft[static_cast<std::size_t>(i)], place, i > 0, drafts});
    }
    return rows;
  }

  DraftedModel model_{std::get<0>(GetParam())};
  DrafterSource source_ = model_.source();
  std::unique_ptr<KernelSet> kernels_ = make_cpu_kernel_set(std::get<2>(GetParam()));
  RandomStream stream_{5, RandomPurpose::test, 3};
  std::array<std::pair<std::vector<TokenId>, std::vector<TokenId>>, 2> texts_{
      std::pair{random_tokens(stream_, 11), random_tokens(stream_, kDraft)},
      std::pair{random_tokens(stream_, 4), random_tokens(stream_, kDraft)}};
};

TEST_P(DraftingRowsTest, ChangeNoOtherRowAndDoNotDependOnTheBatch) {  // I29
  InferenceTransformer plain = make_drafting(0, false);
  InferenceTransformer alone = make_drafting(0);
  std::array<std::vector<float>, 2> parts;  // The models' and the drafting rows of both.
  for (const std::int32_t slot : {0, 1}) {
    const std::vector<float> base = logits_of(plain, rows_of(slot, false));
    EXPECT_EQ(logits_of(alone, rows_of(slot, false)), base) << "an adapter that no row asks for";
    const std::vector<float> own = logits_of(alone, rows_of(slot, true));
    const std::int64_t first = std::ssize(own) / kVocabulary - (kDraft - 1);
    for (std::int64_t row = 0; row < first + kDraft - 1; ++row) {
      EXPECT_EQ(row_of(own, row) == row_of(base, row), row < first) << row;
    }
    const auto drafting = own.begin() + first * kVocabulary;
    parts[0].insert(parts[0].end(), own.begin(), drafting);
    parts[1].insert(parts[1].end(), drafting, own.end());
  }
  std::vector<float> expected = parts[0];
  expected.insert(expected.end(), parts[1].begin(), parts[1].end());
  std::vector<DecodeRow> both = rows_of(0, true);
  const std::vector<DecodeRow> second = rows_of(1, true);
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_THROW((void)logits_of(alone, both), InternalError) << "drafting rows in two places";
  std::ranges::stable_partition(both, [](const DecodeRow& row) { return !row.drafts; });
  for (const std::int32_t max_rows : {0, 1, 4, 17}) {
    InferenceTransformer batched = make_drafting(max_rows);
    EXPECT_EQ(logits_of(batched, both), expected) << max_rows;
    std::vector<TokenId> chosen(expected.size() / kVocabulary);
    batched.predict(both, chosen);
    for (std::int64_t row = 0; row < std::ssize(chosen); ++row) {
      const std::vector<float> values = row_of(expected, row);
      EXPECT_EQ(chosen[static_cast<std::size_t>(row)],
                std::ranges::max_element(values) - values.begin());
    }
  }
}

TEST_P(DraftingRowsTest, HaveTheModelsBitsWhereBIsZero) {
  for (const ParameterEntry& entry : model_.adapter_table.entries()) {
    if (entry.name.find("lora_B") != std::string::npos) {
      std::fill_n(model_.additions.begin() + entry.offset, entry.shape.elements(), 0.0F);
    }
  }
  InferenceTransformer transformer = make_drafting(0);
  const std::vector<float> base = logits_of(transformer, rows_of(0, false));
  EXPECT_EQ(logits_of(transformer, rows_of(0, true)), base);
}

/// METHOD.md §3: a noisy block sees the clean rows before it, then its own.
TEST_P(DraftingRowsTest, AgreeWithTrainingsNoisyRows) {
  const WeightStorage storage = std::get<1>(GetParam());
  const PackedSample sample = random_sample(3, 6, kDraft, 3, 1);
  const PackedBatch batch =
      pack_samples({&sample, 1}, {.mask = MaskKind::clean, .ar_targets = false}, 1.0F);
  TrainingTransformer training(model_.config, model_.table, *model_.kernels, model_.account,
                               {.adapter = model_.shape});
  const ConstTensorView hidden = training.forward(batch, model_.parameters, &model_.lent);
  std::vector<float> expected(static_cast<std::size_t>(hidden.dim(0) * kVocabulary));
  model_.kernels->linear(hidden,
                         model_.table.tensor(ConstTensorView(model_.flat()), "lm_head.weight"), {},
                         {expected.data(), {hidden.dim(0), kVocabulary}});
  InferenceTransformer transformer = make_drafting(0);
  std::vector<TokenId> clean = sample.prompt;
  clean.insert(clean.end(), sample.clean.begin(), sample.clean.end());
  double error = 0;
  double norm = 0;
  for (std::int32_t block = 0; block < 3; ++block) {
    std::vector<DecodeRow> rows = sequence_rows(clean, 0);
    const std::int32_t fork = 6 + block * kDraft;
    for (std::int32_t i = 0; i < kDraft; ++i) {
      rows.push_back({sample.noisy[static_cast<std::size_t>(block * kDraft + i)],
                      {0, fork + i, fork, kCapacity},
                      true,
                      true});
    }
    const std::vector<float> logits = logits_of(transformer, rows);
    for (std::int32_t i = 0; i < kDraft; ++i) {
      const std::vector<float> own = row_of(logits, std::ssize(clean) + i);
      const std::vector<float> trained = row_of(expected, std::ssize(clean) + block * kDraft + i);
      for (std::size_t v = 0; v < own.size(); ++v) {
        error += std::pow(static_cast<double>(own[v] - trained[v]), 2);
        norm += std::pow(static_cast<double>(trained[v]), 2);
      }
    }
  }
  EXPECT_LT(std::sqrt(error / norm), storage == WeightStorage::float32 ? 1e-5 : 0.03);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DraftingRowsTest,
    ::testing::Combine(::testing::Values(ModelFamily::qwen2, ModelFamily::qwen3, ModelFamily::olmo2,
                                         ModelFamily::granite),
                       ::testing::Values(WeightStorage::float32, WeightStorage::bfloat16,
                                         WeightStorage::bfloat16_arithmetic, WeightStorage::int8),
                       ::testing::Values(BFloat16Sums::pairs, BFloat16Sums::groups)));

TEST(DraftingRows, MoreThanAnAdditionTakesAtOnceHaveTheSameBits) {
  DraftedModel model(ModelFamily::qwen3,
                     {.rank = 3, .alpha = 6, .targets = {LayerWeight::v, LayerWeight::up}});
  const DrafterSource source = model.source();
  RandomStream stream(5, RandomPurpose::test, 4);
  std::vector<DecodeRow> rows = sequence_rows(random_tokens(stream, 300), 0);
  for (DecodeRow& row : rows) {
    row.place.fork_row = 320;
    row.drafts = true;
  }
  std::vector<std::vector<float>> logits;
  for (const std::int32_t max_rows : {0, 7}) {
    InferenceTransformer transformer(
        model.config, model.table, model.flat(), *model.kernels, model.account,
        {.slot_capacity = 320, .branch_rows = 300, .max_rows = max_rows, .adapter = &source});
    logits.push_back(logits_of(transformer, rows));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(DraftingRows, AreRefusedWithoutAnAdapterAndInTheSequence) {
  DraftedModel model(ModelFamily::qwen2);
  InferenceTransformer plain = make(model, 0);
  const DrafterSource source = model.source();
  InferenceTransformer drafting(
      model.config, model.table, model.flat(), *model.kernels, model.account,
      {.slot_capacity = kCapacity, .branch_rows = kBranchRows, .adapter = &source});
  const std::vector<DecodeRow> alternative{{1, {0, 0}, false},
                                           {1, {0, 0, 0, kCapacity}, true, true}};
  const std::vector<DecodeRow> own{{1, {0, 0}, true, true}};
  std::vector<TokenId> one(1);
  EXPECT_NO_THROW(drafting.predict(alternative, one));
  EXPECT_THROW(plain.predict(alternative, one), InternalError);
  EXPECT_THROW(drafting.predict(own, one), InternalError);
}

TEST(InferenceTransformer, BytesIsWhatTheConstructorAllocates) {
  TransformerConfig config;  // multiples of 16, so that packing adds no padding
  config.vocabulary_size = 48;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.max_position_embeddings = 64;
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    const ParameterTable table(config, 1);
    const auto kernels = make_cpu_kernel_set();
    MemoryAccount account("inference bytes");
    InferenceTransformer::Options options{
        .num_slots = 3, .slot_capacity = 21, .branch_rows = 4, .max_rows = 7};
    const auto allocated = [&](float value) {
      std::vector<float> weights(static_cast<std::size_t>(table.flat_size()), value);
      const InferenceTransformer transformer(config, table,
                                             ConstTensorView(weights.data(), {table.flat_size()}),
                                             *kernels, account, options);
      return account.live_bytes();
    };
    const std::size_t most = InferenceTransformer::bytes(config, options, Device::cpu);
    EXPECT_EQ(allocated(0.1F), most);
    options.weights = WeightStorage::bfloat16;
    const std::size_t least = InferenceTransformer::bytes(config, options, Device::cpu);
    EXPECT_EQ(allocated(0.1F), least);
    EXPECT_EQ(most - least, 2 * (3 * (32 * 96 + 3 * 32 * 64) + 48 * 32U));
    options.weights = WeightStorage::automatic;
    EXPECT_EQ(allocated(0.5F), least);
    options.weights = WeightStorage::int8;
    const std::size_t bytes = InferenceTransformer::bytes(config, options, Device::cpu);
    EXPECT_EQ(allocated(0.1F) - bytes, 32U * (3 * (2 * 32 + 2 * 16 + 2 * 64) + 48))
        << "rows of 32 steps take 64";
    options.weights = WeightStorage::float32;
    EXPECT_EQ(allocated(0.5F), most);
    EXPECT_EQ(InferenceTransformer::bytes(config, options, Device::cpu), most);
    const AdapterShape shape{.rank = 64};
    const ParameterTable additions(config, shape, 1);
    const std::vector<float> values(static_cast<std::size_t>(additions.flat_size()), 0.1F);
    const DrafterSource adapter{shape, additions, [&](const ParameterEntry& entry) {
                                  return ConstTensorView(values.data() + entry.offset, entry.shape);
                                }};
    for (const WeightStorage weights :
         {WeightStorage::automatic, WeightStorage::float32, WeightStorage::bfloat16,
          WeightStorage::bfloat16_arithmetic, WeightStorage::int8}) {
      options.weights = weights;
      options.adapter = nullptr;
      const std::size_t plain = allocated(0.1F);
      const std::size_t plain_bytes = InferenceTransformer::bytes(config, options, Device::cpu);
      options.adapter = &adapter;
      const std::size_t padding = weights == WeightStorage::int8 ? 32U * 3 * 6 * 64 : 0U;
      EXPECT_EQ(allocated(0.1F) - plain - padding,
                InferenceTransformer::bytes(config, options, Device::cpu) - plain_bytes);
    }
  }
}

}  // namespace
}  // namespace jforge
