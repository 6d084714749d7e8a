#include "model/transformer/training_transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "runtime/phase_clock.h"
#include "tests/support/kernel_calls.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

constexpr float kConsistencyWeight = 1.5F;
constexpr float kArWeight = 0.7F;
constexpr std::pair<bool, ModelFamily> kModels[] = {{false, ModelFamily::qwen2},
                                                    {true, ModelFamily::qwen2},
                                                    {true, ModelFamily::qwen3},
                                                    {false, ModelFamily::olmo2},
                                                    {false, ModelFamily::granite}};

PackedBatch make_batch(MaskKind mask, float sample_weight = 0.5F) {
  const std::vector<PackedSample> samples{random_sample(1, 3, 4, 5, 2),
                                          random_sample(2, 6, 3, 3, 2)};
  return pack_samples(samples, {.mask = mask, .kept = KeptOffsets::all}, sample_weight);
}

std::vector<double> log_softmax_row(const TinyModel& model, const float* hidden,
                                    const float* head) {
  const auto vocabulary = static_cast<std::size_t>(model.config.vocabulary_size);
  const auto width = static_cast<std::size_t>(model.config.hidden_size);
  std::vector<double> logits(vocabulary, 0.0);
  double sum = 0;
  for (std::size_t v = 0; v < vocabulary; ++v) {
    for (std::size_t c = 0; c < width; ++c) {
      logits[v] += static_cast<double>(hidden[c]) * static_cast<double>(head[v * width + c]);
    }
    sum += std::exp(logits[v]);
  }
  for (double& logit : logits) {
    logit -= std::log(sum);
  }
  return logits;
}

using LogRows = std::map<std::int32_t, std::vector<double>>;

LogRows log_probabilities(TinyModel& model, TrainingTransformer& transformer,
                          const PackedBatch& batch) {
  const ConstTensorView hidden = transformer.forward(batch, model.parameters);
  const float* const head =
      model.table
          .tensor(model.flat(),
                  model.config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight")
          .data<float>();
  LogRows rows;
  for (const LossItem& item : batch.loss_items) {
    for (const std::int32_t row : {item.clean_row, item.student_row}) {
      if (row >= 0) {
        rows[row] = log_softmax_row(model, hidden.rows(row, row + 1).data<float>(), head);
      }
    }
  }
  return rows;
}

/// METHOD.md §4 in double; `teacher` is detached.
double reference_loss(const PackedBatch& batch, const LogRows& student, const LogRows& teacher,
                      VocabularyLossSums* sums = nullptr) {
  double consistency = 0;
  double autoregressive = 0;
  for (const LossItem& item : batch.loss_items) {
    if (item.target >= 0) {
      autoregressive -= static_cast<double>(item.ar_weight) *
                        student.at(item.clean_row)[static_cast<std::size_t>(item.target)];
    }
    if (item.student_row >= 0) {
      const std::vector<double>& target = teacher.at(item.clean_row);
      const std::vector<double>& ours = student.at(item.student_row);
      for (std::size_t v = 0; v < target.size(); ++v) {
        consistency += static_cast<double>(item.consistency_weight) * std::exp(target[v]) *
                       (target[v] - ours[v]);
      }
    }
  }
  if (sums != nullptr) {
    *sums = {consistency, autoregressive};
  }
  return static_cast<double>(kConsistencyWeight) * consistency +
         static_cast<double>(kArWeight) * autoregressive;
}

std::vector<float> gradients_of(TinyModel& model, TrainingTransformer& transformer,
                                const PackedBatch& batch, VocabularyLossSums* sums = nullptr) {
  std::vector<float> gradients(model.values.size(), 0.0F);
  transformer.forward(batch, model.parameters);
  FlatGradients sink = model.sink(gradients);
  const VocabularyLossSums found = test::loss_and_backward(
      *model.kernels, transformer, model.parameters, kConsistencyWeight, kArWeight, sink);
  if (sums != nullptr) {
    *sums = found;
  }
  return gradients;
}

struct GradientCase {
  MaskKind mask;
  bool tied;
  ModelFamily family = ModelFamily::qwen2;
};

class TrainingGradientTest : public ::testing::TestWithParam<GradientCase> {};

TEST_P(TrainingGradientTest, MatchFiniteDifferencesOfTheWholeLoss) {
  TinyModel model(GetParam().tied, GetParam().family);
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
  const PackedBatch batch = make_batch(GetParam().mask);
  VocabularyLossSums sums;
  const std::vector<float> gradients = gradients_of(model, transformer, batch, &sums);
  const LogRows teacher = log_probabilities(model, transformer, batch);
  VocabularyLossSums expected;
  reference_loss(batch, teacher, teacher, &expected);
  EXPECT_NEAR(sums.consistency, expected.consistency, 1e-5 * expected.consistency);
  EXPECT_NEAR(sums.autoregressive, expected.autoregressive, 1e-5 * expected.autoregressive);
  EXPECT_GT(expected.consistency, 0.1);

  // The slope along the gradient is its norm; a random direction reveals a wrong one.
  RandomStream stream(9, RandomPurpose::test, 3);
  for (const ParameterEntry& entry : model.table.entries()) {
    const auto begin = static_cast<std::size_t>(entry.offset);
    const auto count = static_cast<std::size_t>(entry.shape.elements());
    for (const bool random : {false, true}) {
      std::vector<double> direction(count);
      double norm = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const auto own = static_cast<double>(gradients[begin + i]);
        direction[i] = random ? stream.normal() + own : own;
        norm += direction[i] * direction[i];
      }
      norm = std::sqrt(norm);
      ASSERT_GT(norm, 1e-5) << entry.name;
      double slope = 0;
      double gradient_norm = 0;
      for (std::size_t i = 0; i < count; ++i) {
        direction[i] /= norm;
        slope += direction[i] * static_cast<double>(gradients[begin + i]);
        gradient_norm +=
            static_cast<double>(gradients[begin + i]) * static_cast<double>(gradients[begin + i]);
      }
      const std::vector<float> saved = model.values;
      const auto loss_at = [&](double step) {
        for (std::size_t i = 0; i < count; ++i) {
          model.values[begin + i] =
              static_cast<float>(static_cast<double>(saved[begin + i]) + step * direction[i]);
        }
        const double loss =
            reference_loss(batch, log_probabilities(model, transformer, batch), teacher);
        model.values = saved;
        return loss;
      };
      // Richardson: the step can stay above float32's rounding.
      constexpr double kStep = 6e-3;
      const double coarse = (loss_at(2 * kStep) - loss_at(-2 * kStep)) / (4 * kStep);
      const double fine = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      const double measured = (4 * fine - coarse) / 3;
      EXPECT_NEAR(measured, slope, 2e-3 * std::sqrt(gradient_norm) + 2e-4)
          << entry.name << (random ? ", random direction" : ", along the gradient");
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<GradientCase>& info) {
  const char* const names[] = {"noise", "window", "clean"};
  return std::string(names[static_cast<int>(info.param.mask)]) +
         (info.param.tied ? "_tied" : "_untied") + "_" + traits_of(info.param.family).model_type;
}

INSTANTIATE_TEST_SUITE_P(
    Masks, TrainingGradientTest,
    ::testing::Values(GradientCase{MaskKind::noise, false}, GradientCase{MaskKind::noise, true},
                      GradientCase{MaskKind::window, false}, GradientCase{MaskKind::clean, true},
                      GradientCase{MaskKind::noise, false, ModelFamily::qwen3},
                      GradientCase{MaskKind::noise, false, ModelFamily::smollm3},
                      GradientCase{MaskKind::noise, true, ModelFamily::olmo2},
                      GradientCase{MaskKind::noise, true, ModelFamily::granite}),
    case_name);

TEST(TrainingTransformer, ActivationCheckpointingChangesNoBit) {
  for (const auto& [tied, family] : kModels) {
    TinyModel model(tied, family);
    const PackedBatch batch = make_batch(MaskKind::window);
    TrainingTransformer plain(model.config, model.table, *model.kernels, model.account, {});
    MemoryAccount lean_account("checkpointing");
    TrainingTransformer lean(model.config, model.table, *model.kernels, lean_account,
                             {.activation_checkpointing = true});
    EXPECT_EQ(gradients_of(model, plain, batch), gradients_of(model, lean, batch));
    EXPECT_LT(lean_account.peak_bytes(), model.account.peak_bytes());
  }
}

TEST(TrainingTransformer, MemoryGrowsToTheLargestBatchAndStays) {
  TinyModel model;
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
  const PackedSample small = random_sample(3, 2, 2, 2, 1);
  const PackedBatch small_batch = pack_samples({&small, 1}, {}, 1.0F);
  const PackedBatch large_batch = make_batch(MaskKind::noise);
  const std::vector<float> first = gradients_of(model, transformer, small_batch);
  const std::size_t before = model.account.live_bytes();
  gradients_of(model, transformer, large_batch);
  const std::size_t grown = model.account.live_bytes();
  EXPECT_GT(grown, before);
  EXPECT_EQ(model.account.peak_bytes(), grown) << "the old block must go before the new one comes";
  EXPECT_EQ(gradients_of(model, transformer, small_batch), first) << "stale activations were read";
  EXPECT_EQ(model.account.live_bytes(), grown);
}

TEST(TrainingTransformer, GroupsAreReadyFromHeadToEmbeddingWithFinalGradients) {
  for (const bool tied : {false, true}) {
    TinyModel model(tied);
    TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
    const PackedBatch batch = make_batch(MaskKind::noise);
    const std::vector<float> expected = gradients_of(model, transformer, batch);
    std::vector<float> gradients(expected.size(), 0.0F);
    std::vector<std::int32_t> order;
    transformer.forward(batch, model.parameters);
    FlatGradients sink = model.sink(gradients, [&](std::int32_t group) {
      order.push_back(group);
      const ParameterGroup& ready = model.table.groups()[static_cast<std::size_t>(group)];
      const auto begin = static_cast<std::size_t>(ready.offset);
      EXPECT_EQ(std::memcmp(gradients.data() + begin, expected.data() + begin,
                            static_cast<std::size_t>(ready.padded_size) * sizeof(float)),
                0)
          << ready.name;
    });
    test::loss_and_backward(*model.kernels, transformer, model.parameters, kConsistencyWeight,
                            kArWeight, sink);
    EXPECT_EQ(order, (std::vector<std::int32_t>{4, 3, 2, 1, 0}));
  }
}

/// A Llama is a Qwen2 whose biases stay zero.
TEST(TrainingTransformer, WithoutBiasesIsWithZeroBiasesBitForBit) {
  TinyModel llama(false, ModelFamily::llama);
  TinyModel qwen2;
  EXPECT_LT(llama.table.parameter_count(), qwen2.table.parameter_count());
  const auto same_tensor = [&](const ParameterEntry& entry, std::span<const float> of_qwen2,
                               std::span<const float> of_llama) {
    const ParameterEntry& other = llama.table.entry(entry.name);
    const auto size = static_cast<std::size_t>(entry.shape.elements());
    return std::ranges::equal(of_qwen2.subspan(static_cast<std::size_t>(entry.offset), size),
                              of_llama.subspan(static_cast<std::size_t>(other.offset), size));
  };
  for (const ParameterEntry& entry : qwen2.table.entries()) {
    const auto begin = qwen2.values.begin() + entry.offset;
    if (entry.name.ends_with("bias")) {
      std::fill_n(begin, entry.shape.elements(), 0.0F);
    } else {
      std::copy_n(llama.values.begin() + llama.table.entry(entry.name).offset,
                  entry.shape.elements(), begin);
    }
  }
  const PackedBatch batch = make_batch(MaskKind::noise);
  TrainingTransformer with(qwen2.config, qwen2.table, *qwen2.kernels, qwen2.account, {});
  TrainingTransformer without(llama.config, llama.table, *llama.kernels, llama.account, {});
  VocabularyLossSums expected;
  VocabularyLossSums found;
  const std::vector<float> qwen2_gradients = gradients_of(qwen2, with, batch, &expected);
  const std::vector<float> llama_gradients = gradients_of(llama, without, batch, &found);
  EXPECT_EQ(found.consistency, expected.consistency);
  EXPECT_EQ(found.autoregressive, expected.autoregressive);
  for (const ParameterEntry& entry : qwen2.table.entries()) {
    if (!entry.name.ends_with("bias")) {
      EXPECT_TRUE(same_tensor(entry, qwen2_gradients, llama_gradients)) << entry.name;
    }
  }
}

TEST(TrainingTransformer, GradientsAreAddedAndPaddingStaysZero) {
  TinyModel model;
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
  const PackedBatch batch = make_batch(MaskKind::noise);
  const std::vector<float> once = gradients_of(model, transformer, batch);
  std::vector<float> twice = once;
  transformer.forward(batch, model.parameters);
  FlatGradients sink = model.sink(twice);
  test::loss_and_backward(*model.kernels, transformer, model.parameters, kConsistencyWeight,
                          kArWeight, sink);
  for (std::size_t i = 0; i < once.size(); ++i) {
    ASSERT_NEAR(twice[i], 2 * once[i], 1e-5F + 1e-5F * std::abs(once[i]));
  }
  for (const ParameterGroup& group : model.table.groups()) {
    for (std::int64_t i = group.size; i < group.padded_size; ++i) {
      ASSERT_EQ(once[static_cast<std::size_t>(group.offset + i)], 0.0F);
    }
  }
}

TEST(TrainingTransformer, AnEmptyBatchStillReportsItsGroups) {
  TinyModel model;
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
  std::vector<float> gradients(model.values.size(), 0.0F);
  std::size_t groups = 0;
  const PackedBatch empty;
  FlatGradients sink = model.sink(gradients, [&](std::int32_t) { ++groups; });
  EXPECT_TRUE(transformer.forward(empty, model.parameters).empty());
  const VocabularyLossSums sums =
      test::loss_and_backward(*model.kernels, transformer, model.parameters, 1.0F, 1.0F, sink);
  EXPECT_EQ(sums.consistency, 0.0);
  EXPECT_EQ(sums.autoregressive, 0.0);
  EXPECT_EQ(groups, model.table.groups().size());
  EXPECT_EQ(std::ranges::count(gradients, 0.0F), static_cast<std::ptrdiff_t>(gradients.size()));
}

PackedBatch drafted_batch(bool noisy_last) {
  const std::vector<PackedSample> samples{random_sample(1, 3, 4, 5, 2),
                                          random_sample(2, 6, 3, 3, 2)};
  return pack_samples(
      samples, {.mask = MaskKind::clean, .ar_targets = false, .noisy_last = noisy_last}, 0.5F);
}

std::vector<float> adapter_gradients(DraftedModel& model, TrainingTransformer& transformer,
                                     const PackedBatch& batch, double* loss = nullptr) {
  std::vector<float> gradients(model.additions.size(), 0.0F);
  FlatGradients sink(model.adapter_table, {gradients.data(), {std::ssize(gradients)}},
                     *model.kernels, model.account);
  std::array<double, 2> sums{};
  transformer.forward(batch, model.parameters, &model.lent);
  transformer.loss_and_backward(
      model.parameters, model.lent,
      {.consistency_scale = kConsistencyWeight, .sums = {sums.data(), DType::float64, {2}}}, sink);
  if (loss != nullptr) {
    *loss = sums[0];
  }
  return gradients;
}

TEST(AdapterTraining, GradientsMatchFiniteDifferencesAndCheckpointingChangesNoBit) {
  for (const auto& [tied, family] : kModels) {
    DraftedModel model(family);
    const PackedBatch batch = drafted_batch(true);
    TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account,
                                    {.adapter = model.shape});
    double loss = 0;
    const std::vector<float> gradients = adapter_gradients(model, transformer, batch, &loss);
    EXPECT_GT(loss, 0.01);
    TrainingTransformer lean(model.config, model.table, *model.kernels, model.account,
                             {.activation_checkpointing = true, .adapter = model.shape});
    EXPECT_EQ(adapter_gradients(model, lean, batch), gradients);
    double same_loss = 0;
    const std::vector<float> same =
        adapter_gradients(model, transformer, drafted_batch(false), &same_loss);
    EXPECT_NEAR(same_loss, loss, 1e-5 * loss);
    for (std::size_t i = 0; i < same.size(); ++i) {
      ASSERT_NEAR(same[i], gradients[i], 1e-5F + 1e-4F * std::abs(gradients[i]));
    }
    for (const ParameterEntry& entry : model.adapter_table.entries()) {
      const auto begin = static_cast<std::size_t>(entry.offset);
      const auto count = static_cast<std::size_t>(entry.shape.elements());
      double norm = 0;
      for (std::size_t i = 0; i < count; ++i) {
        norm += std::pow(static_cast<double>(gradients[begin + i]), 2);
      }
      norm = std::sqrt(norm);
      ASSERT_GT(norm, 1e-6) << entry.name;
      const std::vector<float> saved = model.additions;
      const auto loss_at = [&](double step) {
        for (std::size_t i = 0; i < count; ++i) {
          model.additions[begin + i] +=
              static_cast<float>(step * static_cast<double>(gradients[begin + i]) / norm);
        }
        double found = 0;
        adapter_gradients(model, transformer, batch, &found);
        model.additions = saved;
        return static_cast<double>(kConsistencyWeight) * found;
      };
      constexpr double kStep = 6e-3;
      const double coarse = (loss_at(2 * kStep) - loss_at(-2 * kStep)) / (4 * kStep);
      const double fine = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      EXPECT_NEAR((4 * fine - coarse) / 3, norm, 2e-3 * norm + 2e-4) << entry.name;
    }
  }
}

/// Additions of the last layer that leave its keys and values alone act as merged weights.
TEST(AdapterTraining, NoisyRowsAreThoseOfMergedWeightsAndCleanRowsTheModels) {
  using enum LayerWeight;
  for (const auto& [tied, family] : kModels) {
    DraftedModel model(family, {.rank = 3, .alpha = 6, .targets = {q, o, gate, up, down}});
    const auto last = static_cast<std::int32_t>(model.config.num_layers - 1);
    TinyModel merged(false, family);
    for (const PlannedWeight& planned : LayerPlan(model.config).weights) {
      if (std::ranges::find(model.shape.targets, planned.weight) == model.shape.targets.end()) {
        continue;
      }
      for (std::int64_t layer = 0; layer <= last; ++layer) {
        const TensorView in =
            model.adapter_table.tensor(model.adapter_flat(), adapter_in(planned, layer));
        const TensorView out =
            model.adapter_table.tensor(model.adapter_flat(), adapter_out(planned, layer));
        if (layer < last) {
          std::ranges::fill(out.span<float>(), 0.0F);
          continue;
        }
        const TensorView weight = merged.table.tensor(merged.flat(), planned.name_in(layer));
        for (std::int64_t row = 0; row < weight.dim(0); ++row) {
          for (std::int64_t column = 0; column < weight.dim(1); ++column) {
            for (std::int64_t r = 0; r < model.shape.rank; ++r) {
              weight.data<float>()[row * weight.dim(1) + column] +=
                  model.shape.scale() * out.data<float>()[row * model.shape.rank + r] *
                  in.data<float>()[r * weight.dim(1) + column];
            }
          }
        }
      }
    }
    const PackedBatch batch = drafted_batch(false);
    std::vector<RowRange> noisy;
    find_noisy_rows(batch.layout, noisy);
    ASSERT_EQ(noisy.size(), 2U);
    const auto hidden_of = [&](TinyModel& own, ParameterSource* adapter) {
      TrainingTransformer transformer(
          own.config, own.table, *own.kernels, own.account,
          {.adapter = adapter ? std::optional(model.shape) : std::nullopt});
      const auto values = transformer.forward(batch, own.parameters, adapter).span<float>();
      return std::vector<float>(values.begin(), values.end());
    };
    const std::vector<float> drafted = hidden_of(model, &model.lent);
    const std::vector<float> base = hidden_of(model, nullptr);
    const std::vector<float> expected = hidden_of(merged, nullptr);
    std::int64_t differ = 0;
    for (std::int64_t i = 0; i < std::ssize(drafted); ++i) {
      const std::int64_t row = i / model.config.hidden_size;
      const auto at = static_cast<std::size_t>(i);
      if (std::ranges::any_of(noisy, [&](const RowRange& range) {
            return range.begin <= row && row < range.end;
          })) {
        ASSERT_NEAR(drafted[at], expected[at], 1e-4) << "row " << row;
        differ += std::abs(drafted[at] - base[at]) > 1e-3F ? 1 : 0;
      } else {
        ASSERT_EQ(drafted[at], base[at]) << "row " << row;
      }
    }
    EXPECT_GT(differ, 0);
  }
}

class UseRecorder final : public ParameterSource, public GradientSink {
 public:
  explicit UseRecorder(TinyModel& model) : model_(model), sink_(model.sink(gradients_)) {}
  ConstTensorView acquire(std::int32_t group) override {
    uses.push_back({GroupUse::Kind::acquire, group});
    ++lent_[group];
    return model_.parameters.acquire(group);
  }
  void release(std::int32_t group) override { --lent_[group]; }
  TensorView open(std::int32_t group) override { return sink_.open(group); }
  bool undefined(std::int32_t group) const override { return sink_.undefined(group); }
  void ready(std::int32_t group) override { uses.push_back({GroupUse::Kind::ready, group}); }
  [[nodiscard]] bool all_returned() const {
    return std::ranges::all_of(lent_, [](const auto& entry) { return entry.second == 0; });
  }
  std::vector<GroupUse> uses;

 private:
  TinyModel& model_;
  std::vector<float> gradients_ = std::vector<float>(model_.values.size(), 0.0F);
  FlatGradients sink_;
  std::map<std::int32_t, int> lent_;
};

TEST(TrainingTransformer, BorrowsGroupsInTheOrderOfPassUses) {
  for (const bool tied : {false, true}) {
    TinyModel model(tied);
    const PassUses expected(model.table);
    TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
    for (const PackedBatch& batch : {make_batch(MaskKind::noise), PackedBatch()}) {
      UseRecorder recorder(model);
      transformer.forward(batch, recorder);
      EXPECT_EQ(recorder.uses, expected.forward);
      recorder.uses.clear();
      test::loss_and_backward(*model.kernels, transformer, recorder, 1, 1, recorder);
      EXPECT_EQ(recorder.uses, expected.backward);
      EXPECT_TRUE(recorder.all_returned());
    }
  }
}

/// Opens gradients filled with NaN.
class UndefinedGradients final : public GradientSink {
 public:
  explicit UndefinedGradients(FlatGradients sink) : sink_(std::move(sink)) {}
  TensorView open(std::int32_t group) override {
    const TensorView view = sink_.open(group);
    std::ranges::fill(view.span<float>(), std::numeric_limits<float>::quiet_NaN());
    return view;
  }
  bool undefined(std::int32_t /*group*/) const override { return true; }
  void ready(std::int32_t group) override { sink_.ready(group); }

 private:
  FlatGradients sink_;
};

TEST(TrainingTransformer, WritesAllOfAGradientThatIsUndefined) {
  for (const bool tied : {false, true}) {
    TinyModel model(tied);
    TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
    for (const PackedBatch& batch : {make_batch(MaskKind::noise), PackedBatch()}) {
      std::vector<float> added(model.values.size(), 0.0F);
      std::vector<float> written(model.values.size(), 0.0F);
      FlatGradients adding = model.sink(added);
      UndefinedGradients writing(model.sink(written));
      for (GradientSink* sink : std::initializer_list<GradientSink*>{&adding, &writing}) {
        transformer.forward(batch, model.parameters);
        test::loss_and_backward(*model.kernels, transformer, model.parameters, 1, 1, *sink);
      }
      EXPECT_EQ(added, written) << (tied ? "tied head" : "own head");
    }
  }
}

// A layer of a large model may take minutes.
TEST(TrainingTransformer, EveryLayerIsASignOfProgress) {
  TinyModel model;
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
  const PackedBatch batch = make_batch(MaskKind::noise);
  std::vector<float> gradients(model.values.size(), 0.0F);
  FlatGradients sink = model.sink(gradients);
  const auto layers = static_cast<std::uint64_t>(model.config.num_layers);
  PhaseClock clock;
  clock.follow_this_thread();
  transformer.forward(batch, model.parameters);
  EXPECT_EQ(clock.read().progress, layers);
  test::loss_and_backward(*model.kernels, transformer, model.parameters, 1, 1, sink);
  EXPECT_EQ(clock.read().progress, layers + (layers + 2)) << "head, each layer, embedding";
}

TEST(TrainingTransformer, RefusesForeignTokensAndBatches) {
  TinyModel model;
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
  PackedBatch batch = make_batch(MaskKind::noise);
  std::vector<float> gradients(model.values.size(), 0.0F);
  FlatGradients sink = model.sink(gradients);
  EXPECT_THROW(test::loss_and_backward(*model.kernels, transformer, model.parameters, 1, 1, sink),
               InternalError);
  batch.tokens[4] = 37;
  EXPECT_THROW(transformer.forward(batch, model.parameters), DataError);
  batch.tokens[4] = -1;
  EXPECT_THROW(transformer.forward(batch, model.parameters), DataError);
  batch.tokens[4] = 0;
  batch.tokens.pop_back();
  EXPECT_THROW(transformer.forward(batch, model.parameters), InternalError);
}

TEST(TrainingFlops, CountsPackedWorkByVisibleKeys) {
  const TransformerConfig config = test::tiny_config(false);
  PackedBatch batch;
  append_causal_sequence(batch, std::vector<TokenId>{1, 2, 3, 4}, 1, 1.0F);
  // Per row and layer: q, o 24·24; k, v 8·24; three of 24·40. Keys 1+2+3+4, two products of width
  // 24 each.
  const double products = 4 * (2 * 24 * 24 + 2 * 8 * 24 + 3 * 24 * 40) + 2 * 10 * 24;
  const double expected = 2 * 3 * (3 * products + 3 * 24 * 37);
  EXPECT_DOUBLE_EQ(training_flops(LayerPlan(config), 37, batch), expected);

  const PackedSample sample = random_sample(1, 3, 4, 5, 2);
  const PackedBatch packed = pack_samples({&sample, 1}, {.mask = MaskKind::window}, 1.0F);
  std::int64_t seen = 0;
  for (std::int64_t q = 0; q < packed.layout.num_rows; ++q) {
    for (std::int64_t k = 0; k < packed.layout.num_rows; ++k) {
      seen += visible(packed.layout, q, k) ? 1 : 0;
    }
  }
  PackedBatch without_items = packed;
  without_items.loss_items.clear();
  const double rows = static_cast<double>(packed.layout.num_rows);
  EXPECT_DOUBLE_EQ(
      training_flops(LayerPlan(config), 37, without_items),
      2 * 3 * 3 *
          (rows * (2 * 24 * 24 + 2 * 8 * 24 + 3 * 24 * 40) + 2 * static_cast<double>(seen) * 24));
}

TEST(TrainingFlops, ASeparateTeachersLogitsCountOnce) {
  const TransformerConfig config = test::tiny_config(false);
  const PackedSample sample = random_sample(1, 3, 4, 5, 2);
  PackedBatch batch = pack_samples({&sample, 1}, {.kept = KeptOffsets::all}, 1.0F);
  const double detached = training_flops(LayerPlan(config), 37, batch);
  PackedBatch teacher;
  take_teacher_rows(batch, teacher, false);
  // All but the last of 20 kept offsets also have a target.
  EXPECT_DOUBLE_EQ(training_flops(LayerPlan(config), 37, batch) - detached, 2.0 * 19 * 24 * 37);
  take_teacher_rows(batch, teacher, true);
  EXPECT_DOUBLE_EQ(training_flops(LayerPlan(config), 37, batch) - detached, 2.0 * 20 * 24 * 37);
  take_teacher_rows(batch, teacher, false);
  PackedBatch forwarded = teacher;
  EXPECT_DOUBLE_EQ(3 * forward_flops(LayerPlan(config), forwarded),
                   training_flops(LayerPlan(config), 37, forwarded));
}

TEST(TrainingTransformer, ForwardAloneHasTheSameBitsAndLessMemory) {
  TinyModel model;
  const PackedBatch batch = pack_samples(std::vector{random_sample(5, 9, 4, 5, 2)}, {}, 1.0F);
  const TrainingTransformer::Options alone{.forward_only = true};
  TrainingTransformer whole(model.config, model.table, *model.kernels, model.account, {});
  TrainingTransformer forward(model.config, model.table, *model.kernels, model.account, alone);
  const std::size_t before = model.account.live_bytes(MemoryUse::activations);
  const auto hidden = whole.forward(batch, model.parameters).reshaped({batch.layout.num_rows * 24});
  const std::vector<float> expected(hidden.span<float>().begin(), hidden.span<float>().end());
  const std::size_t middle = model.account.live_bytes(MemoryUse::activations);
  const ConstTensorView found = forward.forward(batch, model.parameters);
  EXPECT_TRUE(std::ranges::equal(found.span<float>(), expected));
  const std::size_t taken = model.account.live_bytes(MemoryUse::activations) - middle;
  EXPECT_EQ(taken, TrainingTransformer::bytes(model.config, batch.layout.num_rows, alone));
  EXPECT_LT(2 * taken, middle - before);
  std::vector<float> gradients(model.values.size(), 0.0F);
  FlatGradients sink = model.sink(gradients);
  EXPECT_THROW(test::loss_and_backward(*model.kernels, forward, model.parameters, 1, 1, sink),
               InternalError);
}

TEST(TrainingTransformer, BytesIsWhatForwardAllocates) {
  const PackedBatch batch = pack_samples(std::vector{random_sample(5, 9, 4, 5, 2)}, {}, 1.0F);
  for (const ModelFamily family : {ModelFamily::qwen3, ModelFamily::olmo2}) {
    TinyModel model(true, family);
    const RoundedModel rounded(model);
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      for (const bool checkpointing : {false, true}) {
        const TrainingTransformer::Options options{.activation_checkpointing = checkpointing,
                                                   .compute = compute};
        TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account,
                                        options);
        FlatParameters parameters = rounded.parameters(model, compute);
        const std::size_t before = model.account.live_bytes(MemoryUse::activations);
        transformer.forward(batch, parameters);
        EXPECT_EQ(model.account.live_bytes(MemoryUse::activations) - before,
                  TrainingTransformer::bytes(model.config, batch.layout.num_rows, options));
      }
    }
    EXPECT_EQ(TrainingTransformer::bytes(model.config, 0, {}), 0U);
  }
}

// ---- bfloat16

/// Relative to float32 gradients of the same rounded weights, which are ten times the usual size:
/// four times the 0.6 % of a training's start.
TEST(TrainingTransformerBfloat16, GradientsFollowFloat32) {
  for (const auto& [tied, family] : kModels) {
    TinyModel model(tied, family);
    const RoundedModel rounded(model);
    const PackedBatch batch = make_batch(MaskKind::noise);
    std::vector<std::vector<float>> gradients;
    std::vector<VocabularyLossSums> sums;
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account,
                                      {.compute = compute});
      FlatParameters parameters = rounded.parameters(model, compute);
      gradients.emplace_back(model.values.size(), 0.0F);
      transformer.forward(batch, parameters);
      FlatGradients sink = model.sink(gradients.back());
      sums.push_back(test::loss_and_backward(*model.kernels, transformer, parameters,
                                             kConsistencyWeight, kArWeight, sink));
    }
    EXPECT_NEAR(sums[1].consistency, sums[0].consistency, 0.01 * sums[0].consistency);
    EXPECT_NEAR(sums[1].autoregressive, sums[0].autoregressive, 0.01 * sums[0].autoregressive);
    double all_difference = 0;
    double all_size = 0;
    for (const ParameterEntry& entry : model.table.entries()) {
      double difference = 0;
      double size = 0;
      for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
        const auto at = static_cast<std::size_t>(entry.offset + i);
        const auto expected = static_cast<double>(gradients[0][at]);
        const double error = static_cast<double>(gradients[1][at]) - expected;
        difference += error * error;
        size += expected * expected;
      }
      EXPECT_LT(std::sqrt(difference / size), 0.1) << entry.name;
      EXPECT_GT(difference, 0) << entry.name << " was not computed in bfloat16";
      all_difference += difference;
      all_size += size;
    }
    EXPECT_LT(std::sqrt(all_difference / all_size), 0.05);
  }
}

TEST(TrainingTransformerBfloat16, CheckpointingChangesNoBit) {
  TinyModel model;
  const RoundedModel rounded(model);
  const PackedBatch batch = make_batch(MaskKind::noise);
  FlatParameters parameters = rounded.parameters(model, DType::bfloat16);
  std::vector<std::vector<float>> gradients;
  for (const bool checkpointing : {false, true}) {
    TrainingTransformer transformer(
        model.config, model.table, *model.kernels, model.account,
        {.activation_checkpointing = checkpointing, .compute = DType::bfloat16});
    gradients.emplace_back(model.values.size(), 0.0F);
    transformer.forward(batch, parameters);
    FlatGradients sink = model.sink(gradients.back());
    test::loss_and_backward(*model.kernels, transformer, parameters, kConsistencyWeight, kArWeight,
                            sink);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(TrainingTransformerBfloat16, RefusesWeightsOfAnotherType) {
  TinyModel model;
  const PackedBatch batch = make_batch(MaskKind::noise);
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account,
                                  {.compute = DType::bfloat16});
  EXPECT_THROW(transformer.forward(batch, model.parameters), InternalError);
  EXPECT_THROW(TrainingTransformer(model.config, model.table, *model.kernels, model.account,
                                   {.compute = DType::float16}),
               InternalError);
}

}  // namespace
}  // namespace jforge
