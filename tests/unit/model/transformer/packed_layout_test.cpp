/// Invariants I8, I9, I13 and the loss items, by brute force over small samples.

#include "model/transformer/packed_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

enum class RowType : std::uint8_t { prompt, clean, noisy };

struct Row {
  RowType type;
  std::int64_t block;
  std::int64_t offset;
  std::int64_t position;
};

std::vector<Row> describe(const PackedSample& sample) {
  std::vector<Row> rows;
  const auto prompt = static_cast<std::int64_t>(sample.prompt.size());
  for (std::int64_t p = 0; p < prompt; ++p) {
    rows.push_back({RowType::prompt, -1, p, p});
  }
  for (const RowType type : {RowType::clean, RowType::noisy}) {
    if (type == RowType::noisy && sample.noisy.empty()) {
      continue;
    }
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(sample.clean.size()); ++i) {
      rows.push_back({type, i / sample.block_size, i % sample.block_size, prompt + i});
    }
  }
  return rows;
}

/// METHOD.md §3, word for word.
bool rule(MaskKind mask, std::int64_t window, PromptId prompt, const Row& q, const Row& k) {
  if (q.type == RowType::prompt) {
    return k.type == RowType::prompt && k.offset <= q.offset;
  }
  if (k.type == RowType::prompt) {
    return true;
  }
  const bool up_to_itself = k.block < q.block || (k.block == q.block && k.offset <= q.offset);
  const bool own_run = k.block == q.block && k.offset <= q.offset;
  if (q.type == RowType::clean) {
    return k.type == RowType::clean && up_to_itself;
  }
  const std::int64_t start = q.block / window * window;
  switch (mask) {
    case MaskKind::clean:
      return k.type == RowType::clean ? k.block < q.block : own_run;
    case MaskKind::noise:
      return k.type == RowType::noisy && up_to_itself;
    case MaskKind::window:
      return k.type == RowType::clean ? k.block < start
                                      : (start <= k.block && k.block < q.block) || own_run;
    case MaskKind::mixed:
      return rule(prompt % 2 == 0 ? MaskKind::noise : MaskKind::clean, window, prompt, q, k);
  }
  return false;
}

std::vector<bool> matrix(const PackedLayout& layout) {
  std::vector<bool> cells;
  for (std::int64_t q = 0; q < layout.num_rows; ++q) {
    for (std::int64_t k = 0; k < layout.num_rows; ++k) {
      cells.push_back(visible(layout, q, k));
    }
  }
  return cells;
}

constexpr MaskKind kMasks[] = {MaskKind::noise, MaskKind::window, MaskKind::clean, MaskKind::mixed};

TEST(PackedLayout, MasksFollowTheRulesAndEveryRowSeesEachPositionOnce) {
  for (const MaskKind mask : kMasks) {
    for (const std::int32_t window : {1, 2, 3, 5, 9}) {
      const std::vector<PackedSample> samples{random_sample(1, 3, 4, 5, window),
                                              random_sample(2, 1, 1, 7, window),
                                              random_sample(3, 6, 3, 1, window)};
      const PackedBatch batch = pack_samples(samples, {.mask = mask}, 1.0F);
      std::int64_t base = 0;
      for (const PackedSample& sample : samples) {
        const std::vector<Row> rows = describe(sample);
        ASSERT_EQ(static_cast<std::int64_t>(rows.size()), sample.packed_length());
        for (std::size_t q = 0; q < rows.size(); ++q) {
          const std::int64_t query = base + static_cast<std::int64_t>(q);
          ASSERT_EQ(batch.positions[static_cast<std::size_t>(query)], rows[q].position);
          std::multiset<std::int64_t> seen;
          for (std::int64_t key = 0; key < batch.layout.num_rows; ++key) {
            const std::int64_t local = key - base;
            const bool inside = local >= 0 && local < static_cast<std::int64_t>(rows.size());
            const bool expected = inside && rule(mask, window, sample.prompt_id, rows[q],
                                                 rows[static_cast<std::size_t>(local)]);
            ASSERT_EQ(visible(batch.layout, query, key), expected) << query << " " << key;
            if (expected) {
              seen.insert(batch.positions[static_cast<std::size_t>(key)]);
            }
          }
          ASSERT_EQ(static_cast<std::int64_t>(seen.size()), rows[q].position + 1);
          ASSERT_EQ(static_cast<std::int64_t>(std::set(seen.begin(), seen.end()).size()),
                    rows[q].position + 1);
          ASSERT_EQ(*seen.rbegin(), rows[q].position);
        }
        base += static_cast<std::int64_t>(rows.size());
      }
      EXPECT_EQ(base, batch.layout.num_rows);
    }
  }
}

TEST(PackedLayout, SegmentsTileTheRowsAndPrefixesPrecedeCausalRuns) {
  for (const MaskKind mask : kMasks) {
    const std::vector<PackedSample> samples{random_sample(1, 3, 4, 5, 2),
                                            random_sample(2, 2, 2, 3, 2)};
    const PackedBatch batch = pack_samples(samples, {.mask = mask}, 1.0F);
    std::int64_t reached = 0;
    for (const AttentionSegment& segment : batch.layout.segments) {
      EXPECT_EQ(segment.row_begin, reached);
      EXPECT_LT(segment.row_begin, segment.row_end);
      EXPECT_LE(segment.prefix_begin, segment.prefix_end);
      EXPECT_LE(segment.prefix_end, segment.causal_begin);
      EXPECT_LE(segment.causal_begin, segment.row_begin);
      reached = segment.row_end;
    }
    EXPECT_EQ(reached, batch.layout.num_rows);
  }
}

TEST(PackedLayout, WindowMaskMeetsItsLimits) {
  PackedSample sample = random_sample(4, 3, 2, 6, 1);
  const auto layout_of = [&](MaskKind mask, std::int32_t window) {
    sample.window = window;
    return matrix(pack_samples({&sample, 1}, {.mask = mask}, 1.0F).layout);
  };
  EXPECT_EQ(layout_of(MaskKind::window, 1), layout_of(MaskKind::clean, 3));
  EXPECT_EQ(layout_of(MaskKind::window, 6), layout_of(MaskKind::noise, 3));
  EXPECT_EQ(layout_of(MaskKind::window, 100), layout_of(MaskKind::noise, 3));
  EXPECT_NE(layout_of(MaskKind::window, 2), layout_of(MaskKind::noise, 3));
  EXPECT_NE(layout_of(MaskKind::window, 2), layout_of(MaskKind::clean, 3));
}

TEST(PackedLayout, CleanAndNoisyRowsSharePositions) {
  const PackedSample sample = random_sample(5, 4, 3, 4, 2);
  const PackedBatch batch = pack_samples({&sample, 1}, {}, 1.0F);
  for (std::size_t i = 0; i < sample.clean.size(); ++i) {
    const std::size_t clean = sample.prompt.size() + i;
    const std::size_t noisy = clean + sample.clean.size();
    EXPECT_EQ(batch.positions[clean], static_cast<std::int32_t>(clean));
    EXPECT_EQ(batch.positions[noisy], batch.positions[clean]);
    EXPECT_EQ(batch.tokens[clean], sample.clean[i]);
    EXPECT_EQ(batch.tokens[noisy], sample.noisy[i]);
  }
  EXPECT_EQ(*std::ranges::max_element(batch.positions) + 1, 4 + 3 * 4);
}

/// n = 4, first differences at 1, none, 0; an end of sequence (token 9) in block 2 at offset 2.
PackedSample hand_sample() {
  return {.prompt_id = 0,
          .block_size = 4,
          .window = 2,
          .prompt = {1, 2, 3},
          .noisy = {10, 30, 12, 13, 14, 15, 16, 17, 31, 19, 32, 33, 34, 35, 36, 36},
          .clean = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 9, 21, 22, 9, 24, 25}};
}

std::map<std::int32_t, LossItem> items_by_row(const PackedBatch& batch) {
  std::map<std::int32_t, LossItem> items;
  for (const LossItem& item : batch.loss_items) {
    EXPECT_TRUE(items.empty() || items.rbegin()->first < item.clean_row) << "not ascending";
    items.emplace(item.clean_row, item);
  }
  return items;
}

TEST(PackedLayout, LossItemsOfAnEndedSample) {
  const PackedSample sample = hand_sample();
  const PackedBatch batch = pack_samples({&sample, 1}, {.eos_ids = {8, 9}}, 0.5F);
  EXPECT_EQ(batch.layout.num_rows, 3 + 2 * 12);  // the block after the end is dropped
  EXPECT_EQ(batch.ar_targets, 11);
  EXPECT_EQ(batch.kept_offsets, 3 + 0 + 2);  // offsets 1…3; none; 0…1 before the end at 2
  const auto items = items_by_row(batch);
  ASSERT_EQ(items.size(), 11U);
  for (std::int32_t target = 0; target < 11; ++target) {
    const LossItem& item = items.at(2 + target);
    EXPECT_EQ(item.target, sample.clean[static_cast<std::size_t>(target)]);
    EXPECT_FLOAT_EQ(item.ar_weight, 0.5F / 11);
    const std::int32_t answer = target - 1;
    const bool kept = (answer >= 1 && answer <= 3) || answer == 8 || answer == 9;
    EXPECT_EQ(item.student_row, kept ? 3 + 12 + answer : -1) << answer;
    EXPECT_FLOAT_EQ(item.consistency_weight, kept ? 0.5F / 5 : 0.0F);
  }
}

TEST(PackedLayout, ReductionsAndKeptOffsets) {
  const PackedSample sample = hand_sample();
  const auto weight = [&](LossReduction reduction, KeptOffsets kept) {
    const PackedBatch batch =
        pack_samples({&sample, 1}, {.reduction = reduction, .kept = kept, .eos_ids = {9}}, 1.0F);
    EXPECT_EQ(batch.kept_offsets, kept == KeptOffsets::all ? 10 : 5);
    std::set<float> weights;
    for (const LossItem& item : batch.loss_items) {
      if (item.student_row >= 0) {
        weights.insert(item.consistency_weight);
      }
    }
    EXPECT_EQ(weights.size(), 1U);
    return *weights.begin();
  };
  EXPECT_FLOAT_EQ(weight(LossReduction::token_mean, KeptOffsets::from_first_difference), 1.0F / 5);
  EXPECT_FLOAT_EQ(weight(LossReduction::paper, KeptOffsets::from_first_difference), 1.0F / 3);
  EXPECT_FLOAT_EQ(weight(LossReduction::repo, KeptOffsets::from_first_difference), 1.0F / 15);
  EXPECT_FLOAT_EQ(weight(LossReduction::token_mean, KeptOffsets::all), 1.0F / 10);
  EXPECT_FLOAT_EQ(weight(LossReduction::paper, KeptOffsets::all), 1.0F / 3);
  EXPECT_FLOAT_EQ(weight(LossReduction::repo, KeptOffsets::all), 1.0F / 30);
}

TEST(PackedLayout, KeptOffsetsWeighLessAndLessInABlock) {
  const PackedSample sample = hand_sample();
  const std::map<std::int32_t, double> decayed{{1, 1.0}, {2, 0.5}, {3, 0.25}, {8, 1.0}, {9, 0.5}};
  const auto expect_weights = [&](LossReduction reduction, double divisor) {
    const PackedBatch batch = pack_samples(
        {&sample, 1}, {.reduction = reduction, .consistency_decay = 0.5F, .eos_ids = {9}}, 2.0F);
    EXPECT_EQ(batch.kept_offsets, 5);
    std::map<std::int32_t, double> found;
    for (const LossItem& item : batch.loss_items) {
      if (item.student_row >= 0) {
        found[item.clean_row - 3] = item.consistency_weight;
      }
    }
    ASSERT_EQ(found.size(), decayed.size());
    for (const auto& [answer, weight] : decayed) {
      EXPECT_FLOAT_EQ(static_cast<float>(found.at(answer)),
                      static_cast<float>(2.0 * weight / divisor))
          << answer;
    }
  };
  expect_weights(LossReduction::token_mean, 3.25);  // of a weighted mean, which equals the mean for
                                                    // weight 1
  expect_weights(LossReduction::paper, 3);
  expect_weights(LossReduction::repo, 3.25 * 3);
}

TEST(PackedLayout, WithoutEndOfSequenceEveryTokenIsATarget) {
  const PackedSample sample = hand_sample();
  const PackedBatch batch =
      pack_samples({&sample, 1}, {.kept = KeptOffsets::all, .train_prompt = true}, 1.0F);
  EXPECT_EQ(batch.layout.num_rows, 3 + 2 * 16);
  EXPECT_EQ(batch.ar_targets, 2 + 16);
  EXPECT_EQ(batch.kept_offsets, 16);
  const auto items = items_by_row(batch);
  EXPECT_EQ(items.size(), 2U + 1U + 16U);
  EXPECT_EQ(items.at(0).target, 2);
  EXPECT_EQ(items.at(0).student_row, -1);
  EXPECT_FLOAT_EQ(items.at(0).ar_weight, 1.0F / 18);
  EXPECT_EQ(items.at(18).target, -1);  // the last token teaches, but has no target
  EXPECT_EQ(items.at(18).ar_weight, 0.0F);
  EXPECT_EQ(items.at(18).student_row, 34);
}

TEST(PackedLayout, EndOfSequenceAtTheFirstAndLastOffsetOfABlock) {
  PackedSample sample = hand_sample();
  sample.clean = {10, 11, 12, 13, 9, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25};
  const PackedBatch first =
      pack_samples({&sample, 1}, {.kept = KeptOffsets::all, .eos_ids = {9}}, 1.0F);
  EXPECT_EQ(first.layout.num_rows, 3 + 2 * 8);
  EXPECT_EQ(first.kept_offsets, 4);
  EXPECT_EQ(first.ar_targets, 5);
  sample.clean[3] = 9;
  const PackedBatch last =
      pack_samples({&sample, 1}, {.kept = KeptOffsets::all, .eos_ids = {9}}, 1.0F);
  EXPECT_EQ(last.layout.num_rows, 3 + 2 * 4);
  EXPECT_EQ(last.kept_offsets, 3);
  EXPECT_EQ(last.ar_targets, 4);
}

TEST(PackedLayout, SamplesWithoutNoiseOrDifferencesHaveNoStudents) {
  PackedSample plain = hand_sample();
  plain.noisy.clear();
  PackedSample converged = hand_sample();
  converged.noisy = converged.clean;
  for (const PackedSample& sample : {plain, converged}) {
    const PackedBatch batch = pack_samples({&sample, 1}, {.eos_ids = {9}}, 1.0F);
    EXPECT_EQ(batch.kept_offsets, 0);
    EXPECT_EQ(batch.layout.num_rows, 3 + (sample.noisy.empty() ? 12 : 24));
    for (const LossItem& item : batch.loss_items) {
      EXPECT_EQ(item.student_row, -1);
      EXPECT_EQ(item.consistency_weight, 0.0F);
    }
  }
}

TEST(PackedLayout, WeightsOfSeveralSamplesAddUpToTheMean) {
  const std::vector<PackedSample> samples{random_sample(1, 3, 4, 5, 2),
                                          random_sample(2, 5, 4, 2, 2), hand_sample()};
  const PackedBatch batch = pack_samples(samples, {.eos_ids = {9}}, 1.0F / 3);
  double ar_sum = 0;
  double consistency_sum = 0;
  for (const LossItem& item : batch.loss_items) {
    ar_sum += static_cast<double>(item.ar_weight);
    consistency_sum += static_cast<double>(item.consistency_weight);
  }
  EXPECT_EQ(batch.num_samples, 3);
  EXPECT_NEAR(ar_sum, 1.0, 1e-6);
  EXPECT_NEAR(consistency_sum, 1.0, 1e-6);
}

TEST(PackedLayout, ATeacherTakesPromptAndCleanRowsUpToTheLastThatTeaches) {
  PackedSample converged = hand_sample();
  converged.noisy = converged.clean;
  const PackedSample hand = hand_sample();
  PackedSample endless = random_sample(1, 3, 4, 5, 2);
  std::ranges::replace(endless.clean, 9, 10);
  const std::vector<PackedSample> samples{hand, converged, endless};
  for (const MaskKind mask : {MaskKind::noise, MaskKind::window, MaskKind::clean}) {
    PackedBatch batch;
    append_causal_sequence(batch, std::vector<TokenId>{5, 6, 7}, 1, 0.25F);
    append_samples(batch, samples, {.mask = mask, .kept = KeptOffsets::all, .eos_ids = {9}}, 0.25F);
    PackedBatch teacher;
    teacher.tokens = {1};
    take_teacher_rows(batch, teacher, false);
    // The end of sequence is row 3 + 10 of the first two.
    ASSERT_EQ(teacher.layout.segments.size(), 3U);
    EXPECT_EQ(teacher.layout.num_rows, 2 * (3 + 10) + (3 + 4 * 5));
    EXPECT_EQ(teacher.tokens.size(), static_cast<std::size_t>(teacher.layout.num_rows));
    EXPECT_TRUE(teacher.loss_items.empty());
    std::int64_t taught = 0;
    for (const LossItem& item : batch.loss_items) {
      EXPECT_EQ(item.teacher_row >= 0, item.student_row >= 0);
      if (item.teacher_row < 0) {
        continue;
      }
      ++taught;
      const auto clean = static_cast<std::size_t>(item.clean_row);
      const auto row = static_cast<std::size_t>(item.teacher_row);
      EXPECT_EQ(teacher.tokens[row], batch.tokens[clean]);
      EXPECT_EQ(teacher.positions[row], batch.positions[clean]);
      // It sees its own sequence up to itself.
      for (std::int64_t key = 0; key < teacher.layout.num_rows; ++key) {
        const std::int64_t back = item.teacher_row - key;
        EXPECT_EQ(visible(teacher.layout, item.teacher_row, key),
                  back >= 0 && back <= teacher.positions[row]);
      }
    }
    EXPECT_EQ(taught, batch.kept_offsets);
  }
  PackedBatch causal;
  append_causal_sequence(causal, std::vector<TokenId>{5, 6, 7}, 1, 1.0F);
  PackedBatch teacher;
  take_teacher_rows(causal, teacher, false);
  EXPECT_EQ(teacher.layout.num_rows, 0);
  take_teacher_rows(causal, teacher, true);
  EXPECT_EQ(teacher.tokens, (std::vector<TokenId>{5, 6}));
}

TEST(PackedLayout, ATeacherOfAllItemsHasARowForEachTarget) {
  PackedSample converged = hand_sample();
  converged.noisy = converged.clean;
  const std::vector<PackedSample> samples{hand_sample(), converged};
  PackedBatch batch;
  append_causal_sequence(batch, std::vector<TokenId>{5, 6, 7}, 1, 0.25F);
  append_samples(batch, samples, {.train_prompt = true, .eos_ids = {9}}, 0.25F);
  PackedBatch teacher;
  take_teacher_rows(batch, teacher, true);
  ASSERT_EQ(teacher.layout.segments.size(), 3U);
  std::int64_t targets = 0;
  for (const LossItem& item : batch.loss_items) {
    ASSERT_GE(item.teacher_row, 0);
    targets += item.target >= 0 ? 1 : 0;
    const auto clean = static_cast<std::size_t>(item.clean_row);
    const auto row = static_cast<std::size_t>(item.teacher_row);
    EXPECT_EQ(teacher.tokens[row], batch.tokens[clean]);
    EXPECT_EQ(teacher.positions[row], batch.positions[clean]);
  }
  EXPECT_EQ(targets, batch.ar_targets);
  EXPECT_EQ(teacher.layout.num_rows, 2 + 2 * (3 + 10));
}

TEST(PackedLayout, CausalSequencesFollowOneAnother) {
  PackedBatch batch;
  const std::vector<TokenId> tokens{5, 6, 7, 8, 9};
  append_causal_sequence(batch, tokens, 1, 0.5F);
  append_causal_sequence(batch, tokens, 3, 0.5F);
  EXPECT_EQ(batch.num_samples, 2);
  EXPECT_EQ(batch.ar_targets, 4 + 2);
  EXPECT_EQ(batch.layout.num_rows, 10);
  EXPECT_EQ(batch.positions[7], 2);
  const auto items = items_by_row(batch);
  EXPECT_EQ(items.at(0).target, 6);
  EXPECT_FLOAT_EQ(items.at(0).ar_weight, 0.125F);
  EXPECT_EQ(items.at(7).target, 8);
  EXPECT_FLOAT_EQ(items.at(8).ar_weight, 0.25F);
  EXPECT_FALSE(items.contains(6));
  EXPECT_TRUE(visible(batch.layout, 7, 5));
  EXPECT_FALSE(visible(batch.layout, 7, 4));
  EXPECT_FALSE(visible(batch.layout, 7, 8));
  EXPECT_THROW(append_causal_sequence(batch, tokens, 0, 1.0F), DataError);
  EXPECT_THROW(append_causal_sequence(batch, tokens, 5, 1.0F), DataError);
  EXPECT_THROW(append_causal_sequence(batch, {}, 1, 1.0F), DataError);
  EXPECT_EQ(batch.layout.num_rows, 10) << "a refused sequence must leave the batch alone";
}

TEST(PackedLayout, RefusesSamplesThatDoNotFit) {
  const auto refusal = [](const auto& change, MaskKind mask = MaskKind::noise) -> std::string {
    PackedSample sample = hand_sample();
    sample.prompt_id = 77;
    change(sample);
    return test::message_of<DataError>([&] {
      return pack_samples({&sample, 1}, {.mask = mask}, 1.0F);
    });
  };
  EXPECT_THAT(refusal([](auto& s) { s.prompt.clear(); }), HasSubstr("prompt 77"));
  EXPECT_THAT(refusal([](auto& s) { s.block_size = 0; }), HasSubstr("block size"));
  EXPECT_THAT(refusal([](auto& s) { s.block_size = 5; }), HasSubstr("whole blocks"));
  EXPECT_THAT(refusal([](auto& s) { s.clean.clear(); }), HasSubstr("whole blocks"));
  EXPECT_THAT(refusal([](auto& s) { s.noisy.pop_back(); }), HasSubstr("noisy"));
  EXPECT_THAT(refusal([](auto& s) { s.window = 0; }, MaskKind::window), HasSubstr("window"));
  EXPECT_EQ(refusal([](auto& s) { s.window = 0; }), "nothing thrown");
}

TEST(PackedLayout, VisibleRefusesRowsOutside) {
  const PackedSample sample = hand_sample();
  const PackedBatch batch = pack_samples({&sample, 1}, {}, 1.0F);
  EXPECT_THROW((void)visible(batch.layout, batch.layout.num_rows, 0), InternalError);
  EXPECT_THROW((void)visible(batch.layout, 0, -1), InternalError);
  EXPECT_THROW((void)visible({.num_rows = 3, .segments = {}}, 1, 1), InternalError);
}

TEST(PackedLayout, AReusedBatchHoldsNothingOfTheOneBefore) {
  const PackedSample first = random_sample(5, 4, 3, 4, 2);
  const PackedSample second = hand_sample();
  const PackingOptions options{.train_prompt = true};
  PackedBatch reused;
  append_samples(reused, {&first, 1}, options, 1.0F);
  append_causal_sequence(reused, first.prompt, 1, 1.0F);
  reused.clear();
  append_samples(reused, {&second, 1}, options, 0.5F);
  const PackedBatch fresh = pack_samples({&second, 1}, options, 0.5F);
  EXPECT_EQ(reused.tokens, fresh.tokens);
  EXPECT_EQ(reused.positions, fresh.positions);
  EXPECT_EQ(reused.layout.num_rows, fresh.layout.num_rows);
  EXPECT_EQ(reused.layout.segments.size(), fresh.layout.segments.size());
  ASSERT_EQ(reused.loss_items.size(), fresh.loss_items.size());
  for (std::size_t i = 0; i < fresh.loss_items.size(); ++i) {
    EXPECT_EQ(reused.loss_items[i].clean_row, fresh.loss_items[i].clean_row);
    EXPECT_EQ(reused.loss_items[i].target, fresh.loss_items[i].target);
    EXPECT_EQ(reused.loss_items[i].ar_weight, fresh.loss_items[i].ar_weight);
    EXPECT_EQ(reused.loss_items[i].student_row, fresh.loss_items[i].student_row);
  }
  EXPECT_EQ(reused.num_samples, fresh.num_samples);
  EXPECT_EQ(reused.kept_offsets, fresh.kept_offsets);
  EXPECT_EQ(reused.ar_targets, fresh.ar_targets);
}

}  // namespace
}  // namespace jforge
