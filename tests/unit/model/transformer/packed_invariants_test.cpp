/// Invariants I10, I11, I12, I14, I15, I16 and I17 (METHOD.md §9).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/transformer/training_transformer.h"
#include "tests/support/kernel_calls.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

constexpr MaskKind kMasks[] = {MaskKind::noise, MaskKind::window, MaskKind::clean};
constexpr double kTolerance = 2e-5;

using Tokens = std::vector<TokenId>;

class PackedInvariants : public ::testing::Test {
 protected:
  std::vector<float> hidden_of(const PackedBatch& batch) {
    const ConstTensorView hidden = transformer_.forward(batch, model_.parameters);
    const std::span<const float> values = hidden.span<float>();
    return {values.begin(), values.end()};
  }
  std::vector<float> hidden_of(const PackedSample& sample, MaskKind mask) {
    return hidden_of(pack_samples({&sample, 1}, {.mask = mask}, 1.0F));
  }
  std::vector<float> causal_hidden(const Tokens& tokens) {
    PackedBatch batch;
    append_causal_sequence(batch, tokens, 1, 1.0F);
    return hidden_of(batch);
  }
  double row_difference(const std::vector<float>& left, std::int64_t left_row,
                        const std::vector<float>& right, std::int64_t right_row,
                        std::int64_t count) const {
    const std::int64_t width = model_.config.hidden_size;
    double largest = 0;
    for (std::int64_t i = 0; i < count * width; ++i) {
      const float difference = left.at(static_cast<std::size_t>(left_row * width + i)) -
                               right.at(static_cast<std::size_t>(right_row * width + i));
      largest = std::max(largest, static_cast<double>(std::abs(difference)));
    }
    return largest;
  }
  struct Loss {
    VocabularyLossSums sums;
    std::vector<float> gradients;
  };
  Loss loss_of(const PackedBatch& batch, float consistency_weight, float ar_weight) {
    Loss loss{{}, std::vector<float>(model_.values.size(), 0.0F)};
    accumulate(batch, consistency_weight, ar_weight, loss);
    return loss;
  }
  void accumulate(const PackedBatch& batch, float consistency_weight, float ar_weight, Loss& loss) {
    transformer_.forward(batch, model_.parameters);
    FlatGradients sink = model_.sink(loss.gradients);
    const VocabularyLossSums sums = test::loss_and_backward(
        *model_.kernels, transformer_, model_.parameters, consistency_weight, ar_weight, sink);
    loss.sums.consistency += sums.consistency;
    loss.sums.autoregressive += sums.autoregressive;
  }
  static double relative_difference(const std::vector<float>& left,
                                    const std::vector<float>& right) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
      const double error = static_cast<double>(left[i]) - static_cast<double>(right[i]);
      difference += error * error;
      norm += static_cast<double>(right[i]) * static_cast<double>(right[i]);
    }
    return std::sqrt(difference / norm);
  }

  TinyModel model_;
  TrainingTransformer transformer_{
      model_.config, model_.table, *model_.kernels, model_.account, {}};
};

Tokens joined(const Tokens& left, std::span<const TokenId> right) {
  Tokens tokens = left;
  tokens.insert(tokens.end(), right.begin(), right.end());
  return tokens;
}

std::span<const TokenId> blocks_of(const Tokens& tokens, std::int64_t block_size,
                                   std::int64_t begin, std::int64_t end) {
  return std::span(tokens).subspan(static_cast<std::size_t>(begin * block_size),
                                   static_cast<std::size_t>((end - begin) * block_size));
}

TEST_F(PackedInvariants, I10CleanRowsAreAPlainForwardAndIgnoreNoise) {
  const PackedSample sample = random_sample(1, 5, 4, 5, 2);
  const std::vector<float> plain = causal_hidden(joined(sample.prompt, sample.clean));
  PackedSample other = sample;
  for (TokenId& token : other.noisy) {
    token = (token + 5) % 37;
  }
  const std::int64_t rows = 5 + 4 * 5;
  for (const MaskKind mask : kMasks) {
    const std::vector<float> packed = hidden_of(sample, mask);
    EXPECT_LT(row_difference(packed, 0, plain, 0, rows), kTolerance);
    const std::vector<float> changed = hidden_of(other, mask);
    EXPECT_EQ(
        std::memcmp(packed.data(), changed.data(),
                    static_cast<std::size_t>(rows * model_.config.hidden_size) * sizeof(float)),
        0);
    EXPECT_GT(row_difference(packed, rows, changed, rows, rows - 5), 1e-2);
  }
}

TEST_F(PackedInvariants, I11NoisyRowsAreAPlainForwardOfWhatTheMaskShows) {
  constexpr std::int64_t kBlock = 4;
  constexpr std::int64_t kBlocks = 5;
  for (const std::int32_t window : {1, 2, 3, 5}) {
    // Samples of a batch do not mix.
    const std::vector<PackedSample> samples{random_sample(7, 4, 3, 2, window),
                                            random_sample(2, 6, kBlock, kBlocks, window)};
    const PackedSample& sample = samples[1];
    const std::int64_t noisy_row = samples[0].packed_length() + 6 + kBlock * kBlocks;
    for (const MaskKind mask : kMasks) {
      const std::vector<float> packed = hidden_of(pack_samples(samples, {.mask = mask}, 1.0F));
      for (std::int64_t block = 0; block < kBlocks; ++block) {
        std::int64_t start = block / window * window;
        start = mask == MaskKind::noise ? 0 : mask == MaskKind::clean ? block : start;
        Tokens tokens = joined(sample.prompt, blocks_of(sample.clean, kBlock, 0, start));
        tokens = joined(tokens, blocks_of(sample.noisy, kBlock, start, block + 1));
        const std::vector<float> plain = causal_hidden(tokens);
        EXPECT_LT(
            row_difference(packed, noisy_row + block * kBlock, plain, 6 + block * kBlock, kBlock),
            kTolerance)
            << "mask " << static_cast<int>(mask) << ", window " << window << ", block " << block;
      }
    }
  }
}

TEST_F(PackedInvariants, I12ConvergedBlocksHaveNoConsistencyLoss) {
  PackedSample sample = random_sample(3, 5, 4, 4, 2);
  sample.noisy = sample.clean;
  for (const MaskKind mask : kMasks) {
    const std::vector<float> packed = hidden_of(sample, mask);
    EXPECT_LT(row_difference(packed, 5, packed, 5 + 16, 16), kTolerance);
    const Loss loss =
        loss_of(pack_samples({&sample, 1}, {.mask = mask, .kept = KeptOffsets::all}, 1.0F), 1, 0);
    EXPECT_NEAR(loss.sums.consistency, 0.0, 1e-6);
    EXPECT_GT(loss.sums.autoregressive, 0.1);
  }
  sample.noisy[9] = (sample.clean[9] + 1) % 37;
  const Loss loss = loss_of(pack_samples({&sample, 1}, {.kept = KeptOffsets::all}, 1.0F), 1, 0);
  EXPECT_GT(loss.sums.consistency, 1e-3) << "the loss must see a single wrong token";
}

TEST_F(PackedInvariants, I12UnderTheCleanMaskOffsetsBeforeTheFirstDifferenceAgree) {
  const PackedSample sample = random_sample(4, 5, 6, 6, 2);
  PackedBatch batch =
      pack_samples({&sample, 1}, {.mask = MaskKind::clean, .kept = KeptOffsets::all}, 1.0F);
  const PackedBatch from_difference = pack_samples({&sample, 1}, {.mask = MaskKind::clean}, 1.0F);
  std::vector<std::int32_t> trained;
  for (const LossItem& item : from_difference.loss_items) {
    trained.push_back(item.student_row);
  }
  std::size_t before = 0;
  for (LossItem& item : batch.loss_items) {
    const bool skipped = std::ranges::find(trained, item.student_row) != trained.end();
    item.consistency_weight = skipped || item.student_row < 0 ? 0.0F : 1.0F;
    before += item.consistency_weight > 0 ? 1 : 0;
  }
  ASSERT_GT(before, 3U);
  EXPECT_LE(loss_of(batch, 1, 0).sums.consistency, 1e-6 * static_cast<double>(before));
}

TEST_F(PackedInvariants, I14LogitGradientsAreTheDifferenceOfTheDistributions) {
  // With the identity as head, hidden states are logits.
  constexpr std::int64_t kWidth = 9;
  std::vector<float> head(kWidth * kWidth, 0.0F);
  std::vector<float> logits(2 * kWidth);
  RandomStream stream(1, RandomPurpose::test, 4);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(2 * stream.normal());
  }
  for (std::size_t i = 0; i < kWidth; ++i) {
    head[i * (kWidth + 1)] = 1.0F;
  }
  std::vector<float> gradient(logits.size(), 7.0F);
  std::vector<float> head_gradient(head.size(), 0.0F);
  const LossItem item{.clean_row = 0, .student_row = 1, .consistency_weight = 0.25F};
  const VocabularyLossSums sums = test::vocabulary_loss(
      *model_.kernels, {logits.data(), {2, kWidth}}, {head.data(), {kWidth, kWidth}}, {&item, 1},
      3.0F, 1.0F, {gradient.data(), {2, kWidth}}, {head_gradient.data(), {kWidth, kWidth}});

  const auto softmax = [&](std::size_t row) {
    std::vector<double> values;
    double sum = 0;
    for (std::size_t v = 0; v < kWidth; ++v) {
      values.push_back(std::exp(static_cast<double>(logits[row * kWidth + v])));
      sum += values.back();
    }
    for (double& value : values) {
      value /= sum;
    }
    return values;
  };
  const std::vector<double> teacher = softmax(0);
  const std::vector<double> student = softmax(1);
  double divergence = 0;
  for (std::size_t v = 0; v < kWidth; ++v) {
    divergence += teacher[v] * std::log(teacher[v] / student[v]);
    EXPECT_EQ(gradient[v], 0.0F) << "the teacher is detached";
    EXPECT_NEAR(gradient[kWidth + v], 0.75 * (student[v] - teacher[v]), 1e-6);
  }
  EXPECT_NEAR(sums.consistency, 0.25 * divergence, 1e-6);
  EXPECT_EQ(sums.autoregressive, 0.0);
}

TEST_F(PackedInvariants, I15AutoregressiveLossIsTheOrdinaryOne) {
  const PackedSample sample = random_sample(5, 5, 4, 5, 2);
  const Tokens tokens = joined(sample.prompt, sample.clean);
  for (const bool train_prompt : {false, true}) {
    PackedBatch plain;
    append_causal_sequence(plain, tokens, train_prompt ? 1 : 5, 1.0F);
    const Loss expected = loss_of(plain, 1, 1);
    EXPECT_EQ(expected.sums.consistency, 0.0);
    for (const MaskKind mask : kMasks) {
      const Loss packed = loss_of(
          pack_samples({&sample, 1}, {.mask = mask, .train_prompt = train_prompt}, 1.0F), 0, 1);
      EXPECT_NEAR(packed.sums.autoregressive, expected.sums.autoregressive, 1e-5);
      EXPECT_LT(relative_difference(packed.gradients, expected.gradients), 1e-4);
    }
    PackedSample plain_sample = sample;
    plain_sample.noisy.clear();
    const Loss unpaired =
        loss_of(pack_samples({&plain_sample, 1}, {.train_prompt = train_prompt}, 1.0F), 1, 1);
    EXPECT_NEAR(unpaired.sums.autoregressive, expected.sums.autoregressive, 1e-6);
  }
}

TEST_F(PackedInvariants, I16TokensAfterEndOfSequenceDoNotMatter) {
  constexpr TokenId kEos = 36;
  PackedSample sample = random_sample(6, 5, 4, 5, 2);
  for (Tokens* tokens : {&sample.clean, &sample.noisy}) {
    std::ranges::replace(*tokens, kEos, 3);
  }
  sample.clean[9] = kEos;  // block 2, offset 1
  sample.noisy[8] = (sample.clean[8] + 1) % 36;
  PackedSample other = sample;
  for (std::size_t i = 10; i < other.clean.size(); ++i) {
    other.clean[i] = i == 15 ? kEos : (other.clean[i] + 7) % 36;
    other.noisy[i] = (other.noisy[i] + 11) % 36;
  }
  for (const MaskKind mask : kMasks) {
    for (const KeptOffsets kept : {KeptOffsets::from_first_difference, KeptOffsets::all}) {
      const PackingOptions options{.mask = mask, .kept = kept, .eos_ids = {kEos}};
      const Loss first = loss_of(pack_samples({&sample, 1}, options, 1.0F), 1, 1);
      const Loss second = loss_of(pack_samples({&other, 1}, options, 1.0F), 1, 1);
      EXPECT_GT(first.sums.consistency, 0);
      EXPECT_NEAR(first.sums.consistency, second.sums.consistency, 1e-6);
      EXPECT_NEAR(first.sums.autoregressive, second.sums.autoregressive, 1e-6);
      EXPECT_LT(relative_difference(first.gradients, second.gradients), 1e-5);
    }
  }
  EXPECT_GT(std::abs(loss_of(pack_samples({&sample, 1}, {}, 1.0F), 1, 1).sums.autoregressive -
                     loss_of(pack_samples({&other, 1}, {}, 1.0F), 1, 1).sums.autoregressive),
            1e-3);
}

TEST_F(PackedInvariants, I17MicroBatchesAddUpToTheBatch) {
  const std::vector<PackedSample> samples{
      random_sample(1, 5, 4, 5, 2), random_sample(2, 3, 4, 2, 2), random_sample(3, 8, 4, 3, 2)};
  for (const LossReduction reduction :
       {LossReduction::token_mean, LossReduction::paper, LossReduction::repo}) {
    const PackingOptions options{.reduction = reduction};
    const Loss whole = loss_of(pack_samples(samples, options, 1.0F / 3), 1, 2);
    Loss parts{{}, std::vector<float>(model_.values.size(), 0.0F)};
    accumulate(pack_samples(std::span(samples).first(1), options, 1.0F / 3), 1, 2, parts);
    accumulate(pack_samples(std::span(samples).last(2), options, 1.0F / 3), 1, 2, parts);
    EXPECT_NEAR(whole.sums.consistency, parts.sums.consistency, 1e-5);
    EXPECT_NEAR(whole.sums.autoregressive, parts.sums.autoregressive, 1e-5);
    EXPECT_LT(relative_difference(parts.gradients, whole.gradients), 1e-5);
  }
}

}  // namespace
}  // namespace jforge
