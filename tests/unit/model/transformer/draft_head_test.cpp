/// A head (drafter.h): training against finite differences, decoding against training.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "model/transformer/training_transformer.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

constexpr float kScale = 1.5F;
constexpr std::pair<bool, ModelFamily> kHeaded[] = {{false, ModelFamily::qwen2},
                                                    {true, ModelFamily::llama},
                                                    {false, ModelFamily::smollm3},
                                                    {true, ModelFamily::olmo2}};

PackedBatch head_batch(const HeadedModel& model) {
  const std::vector<PackedSample> samples{random_sample(1, 3, 4, 5, 2),
                                          random_sample(2, 6, 3, 3, 2)};
  return pack_samples(samples,
                      {.mask = MaskKind::clean,
                       .consistency_decay = 0.8F,
                       .ar_targets = false,
                       .noisy_last = true,
                       .mask_token = model.shape.mask_token},
                      0.5F);
}

/// The frozen model and its head in a pass.
class Passes {
 public:
  explicit Passes(HeadedModel& model, bool checkpointing = false)
      : model_(model),
        frozen_(model.config, model.table, *model.kernels, model.account,
                {.forward_only = true, .features = model.shape.features}),
        head_(model.head_config, model.head_table, *model.kernels, model.account,
              {.activation_checkpointing = checkpointing, .head = model.shape}) {}

  /// Returns the gradients of kScale · loss.
  std::vector<float> run(PackedBatch& batch, double* loss = nullptr) {
    std::vector<float> gradients(model_.weights.size(), 0.0F);
    FlatGradients sink(model_.head_table, {gradients.data(), {std::ssize(gradients)}},
                       *model_.kernels, model_.account);
    std::array<double, 2> sums{};
    PackedBatch clean;
    take_clean_rows(batch, clean);
    const ConstTensorView hidden = frozen_.forward(clean, model_.parameters);
    const FrozenForward forward{model_.table, model_.parameters, hidden, frozen_.features()};
    head_.forward_head(batch, forward, model_.lent);
    head_.loss_and_backward_head(
        forward, model_.lent,
        {.consistency_scale = kScale, .sums = {sums.data(), DType::float64, {2}}}, sink);
    EXPECT_EQ(sums[1], 0.0);
    if (loss != nullptr) {
      *loss = sums[0];
    }
    return gradients;
  }

 private:
  HeadedModel& model_;
  TrainingTransformer frozen_;
  TrainingTransformer head_;
};

TEST(HeadTraining, ABlockIsItsFirstTokenAndMasksAndLearnsItsOwnTokens) {
  PackedSample sample = random_sample(1, 3, 4, 3, 2);
  sample.clean[9] = 40;  // ends the answer in the third block
  PackedBatch batch = pack_samples(std::span(&sample, 1),
                                   {.mask = MaskKind::clean,
                                    .ar_targets = false,
                                    .noisy_last = true,
                                    .mask_token = 36,
                                    .eos_ids = {40}},
                                   1.0F);
  const std::vector<TokenId> noisy(batch.tokens.begin() + 15, batch.tokens.end());
  EXPECT_EQ(noisy, (std::vector<TokenId>{sample.clean[0], 36, 36, 36, sample.clean[4], 36, 36, 36,
                                         sample.clean[8], 36, 36, 36}));
  std::vector<std::pair<std::int32_t, std::int32_t>> taught;
  PackedBatch clean;
  take_clean_rows(batch, clean);
  for (const LossItem& item : batch.loss_items) {
    EXPECT_EQ(item.teacher_row, item.clean_row);
    EXPECT_NEAR(item.consistency_weight, 1.0 / 7, 1e-6);
    taught.emplace_back(item.teacher_row, item.student_row);
  }
  // Rows 3 … 14 are clean, 15 … 26 noisy; the third block teaches its end of sequence alone.
  EXPECT_EQ(taught, (std::vector<std::pair<std::int32_t, std::int32_t>>{
                        {3, 16}, {4, 17}, {5, 18}, {7, 20}, {8, 21}, {9, 22}, {11, 24}}));
  EXPECT_EQ(clean.layout.num_rows, 15);
  EXPECT_TRUE(visible(batch.layout, 24, 10)) << "the clean blocks before";
  EXPECT_FALSE(visible(batch.layout, 24, 11)) << "its own clean block";
}

TEST(HeadTraining, GradientsMatchFiniteDifferencesAndCheckpointingChangesNoBit) {
  for (const auto& [tied, family] : kHeaded) {
    HeadedModel model(tied, family);
    PackedBatch batch = head_batch(model);
    Passes passes(model);
    double loss = 0;
    const std::vector<float> gradients = passes.run(batch, &loss);
    EXPECT_GT(loss, 0.01);
    EXPECT_EQ(Passes(model, true).run(batch), gradients);
    for (const ParameterEntry& entry : model.head_table.entries()) {
      const auto begin = static_cast<std::size_t>(entry.offset);
      const auto count = static_cast<std::size_t>(entry.shape.elements());
      double norm = 0;
      for (std::size_t i = 0; i < count; ++i) {
        norm += std::pow(static_cast<double>(gradients[begin + i]), 2);
      }
      norm = std::sqrt(norm);
      ASSERT_GT(norm, 1e-6) << entry.name;
      const std::vector<float> saved = model.weights;
      const auto loss_at = [&](double step) {
        for (std::size_t i = 0; i < count; ++i) {
          model.weights[begin + i] +=
              static_cast<float>(step * static_cast<double>(gradients[begin + i]) / norm);
        }
        double found = 0;
        (void)passes.run(batch, &found);
        model.weights = saved;
        return static_cast<double>(kScale) * found;
      };
      constexpr double kStep = 2e-3;
      const double coarse = (loss_at(2 * kStep) - loss_at(-2 * kStep)) / (4 * kStep);
      const double fine = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      EXPECT_NEAR((4 * fine - coarse) / 3, norm, 2e-3 * norm + 2e-4) << entry.name;
    }
  }
}

TEST(HeadTraining, ABatchWithoutBlocksReportsItsGroups) {
  HeadedModel model(false);
  PackedBatch empty;
  const std::vector<float> gradients = Passes(model).run(empty);
  EXPECT_TRUE(std::ranges::all_of(gradients, [](float value) { return value == 0; }));
}

/// Returns `choices` proposals for each position of blocks of `size` rows that begin at `starts`.
std::vector<TokenId> proposals_of(HeadedModel& model, InferenceTransformer& transformer,
                                  std::span<const TokenId> tokens, std::int64_t size,
                                  std::span<const std::int64_t> starts, std::int64_t choices) {
  std::vector<TokenId> proposals;
  std::int64_t known = 0;
  for (const std::int64_t start : starts) {
    std::vector<DecodeRow> rows;
    for (std::int64_t i = known; i < start; ++i) {
      rows.push_back({.token = tokens[static_cast<std::size_t>(i)],
                      .place = {0, static_cast<std::int32_t>(i)},
                      .wants_output = false,
                      .proposes = true});
    }
    transformer.predict(rows, {});
    const ProposalRequest request{
        .slot = 0,
        .first_position = known,
        .rows = {RowRange{0, 1}, RowRange{1, std::ssize(rows)}},  // as from two branches
        .newest = tokens[static_cast<std::size_t>(start)],
        .count = size - 1};
    std::vector<LikelyToken> found(static_cast<std::size_t>((size - 1) * choices));
    transformer.propose(std::span(&request, 1), choices, found);
    std::ranges::transform(found, std::back_inserter(proposals), &LikelyToken::token);
    known = start;
  }
  EXPECT_EQ(model.config.vocabulary_size, 37);
  return proposals;
}

TEST(HeadDecoding, ProposesWhatTrainingRowsPredictInAnyChunks) {
  for (const auto& [tied, family] : kHeaded) {
    HeadedModel model(tied, family);
    PackedSample sample = random_sample(3, 7, 4, 6, 2);
    PackedBatch batch = pack_samples(std::span(&sample, 1),
                                     {.mask = MaskKind::clean,
                                      .ar_targets = false,
                                      .noisy_last = true,
                                      .mask_token = model.shape.mask_token},
                                     1.0F);
    PackedBatch clean;
    take_clean_rows(batch, clean);
    TrainingTransformer frozen(model.config, model.table, *model.kernels, model.account,
                               {.forward_only = true, .features = model.shape.features});
    TrainingTransformer head(model.head_config, model.head_table, *model.kernels, model.account,
                             {.head = model.shape});
    const ConstTensorView hidden = frozen.forward(clean, model.parameters);
    const ConstTensorView own = head.forward_head(
        batch, {model.table, model.parameters, hidden, frozen.features()}, model.lent);
    const ConstTensorView matrix = model.table.tensor(
        ConstTensorView(model.flat()), tied ? "model.embed_tokens.weight" : "lm_head.weight");
    const std::int64_t width = model.config.hidden_size;
    std::vector<TokenId> expected, of_three;
    for (std::int64_t row = clean.layout.num_rows; row < batch.layout.num_rows; ++row) {
      if ((row - clean.layout.num_rows) % 4 == 0) {
        continue;
      }
      std::vector<double> logits;
      for (std::int64_t token = 0; token < model.config.vocabulary_size; ++token) {
        double sum = 0;
        for (std::int64_t c = 0; c < width; ++c) {
          sum += static_cast<double>(own.data<float>()[row * width + c]) *
                 static_cast<double>(matrix.data<float>()[token * width + c]);
        }
        logits.push_back(sum);
      }
      for (int choice = 0; choice < 3; ++choice) {
        const auto largest = std::ranges::max_element(logits);
        of_three.push_back(static_cast<TokenId>(largest - logits.begin()));
        *largest = -1e9;
      }
      expected.push_back(of_three[of_three.size() - 3]);
    }
    const std::span<const TokenId> tokens(clean.tokens);
    const std::vector<std::int64_t> starts{7, 11, 15, 19, 23, 27};
    const DrafterSource source = model.source();
    for (const std::int32_t max_rows : {0, 3}) {
      InferenceTransformer transformer(
          model.config, model.table, model.flat(), *model.kernels, model.account,
          {.slot_capacity = 64, .max_rows = max_rows, .adapter = &source});
      EXPECT_TRUE(transformer.proposes());
      EXPECT_EQ(proposals_of(model, transformer, tokens, 4, starts, 1), expected) << max_rows;
      EXPECT_EQ(proposals_of(model, transformer, tokens, 4, starts, 3), of_three) << max_rows;
    }
  }
}

TEST(DraftHead, ShapesThatAModelCannotHaveAreRefused) {
  const TransformerConfig model = test::tiny_config();
  const HeadShape shape = completed({}, model);
  EXPECT_EQ(shape, (HeadShape{.layers = 1, .features = {1}, .mask_token = 36}));
  EXPECT_EQ(default_features(36, 5), (std::vector<std::int32_t>{1, 9, 17, 25, 33}));
  EXPECT_EQ(default_features(3, 2), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(default_features(2, 5), (std::vector<std::int32_t>{0}));
  for (const HeadShape& bad : {HeadShape{.layers = 0, .features = {0}, .mask_token = 0},
                               HeadShape{.layers = 1, .features = {1, 0}, .mask_token = 0},
                               HeadShape{.layers = 1, .features = {2}, .mask_token = 0},
                               HeadShape{.layers = 1, .features = {0}, .mask_token = 37}}) {
    EXPECT_THROW((void)head_config(model, bad), ConfigError);
  }
  EXPECT_THROW((void)head_config(test::tiny_config(false, ModelFamily::granite), shape),
               ConfigError);
}

}  // namespace
}  // namespace jforge
