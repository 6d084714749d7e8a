/// A whole model on the tested set and the CPU: training, decoding, freed memory.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "model/decoding/decode_engine.h"
#include "model/decoding/drafted_decoder.h"
#include "model/decoding/greedy_decoder.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/multi_block_decoder.h"
#include "model/kernels/result_sums.h"
#include "model/transformer/cache_pages.h"
#include "model/transformer/flat_parameters.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/training_transformer.h"
#include "model/transformer/weight_init.h"
#include "runtime/content_hash.h"
#include "runtime/log.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/gpu/decoders_of_all_methods.h"
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/log_text.h"
#include "tests/support/digest.h"
#include "tests/support/kernel_calls.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/support/tiny_config.h"
#include "tests/unit/model/transformer/tiny_model.h"

namespace jforge {
namespace {

using test::Floats;
using test::relative_error;

struct Step {
  VocabularyLossSums sums;
  Floats gradients;
  std::vector<std::int32_t> groups;  ///< in order of completion
};

PackedBatch two_samples() {
  const std::vector<PackedSample> samples{random_sample(5, 9, 4, 5, 2),
                                          random_sample(6, 21, 4, 3, 1)};
  return pack_samples(samples, {.mask = MaskKind::window}, 0.5F);
}

/// Two micro-batches accumulate gradients.
Step train(TinyModel& model, const ConstTensorView& weights, KernelSet& kernels,
           bool checkpointing) {
  Step step;
  step.gradients.assign(model.values.size(), 0.25F);
  TrainingTransformer transformer(
      model.config, model.table, kernels, model.account,
      {.activation_checkpointing = checkpointing, .compute = weights.dtype()});
  FlatParameters parameters(model.table, weights, kernels, model.account);
  FlatGradients sink(model.table, {step.gradients.data(), {model.table.flat_size()}}, kernels,
                     model.account, [&](std::int32_t group) { step.groups.push_back(group); });
  const PackedBatch batch = two_samples();
  for (int i = 0; i < 2; ++i) {
    transformer.forward(batch, parameters);
    step.sums = test::loss_and_backward(kernels, transformer, parameters, 0.8F, 1.5F, sink);
  }
  return step;
}

double norm(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares);
}

double distance(std::span<const float> a, std::span<const float> b) {
  Floats difference(a.size());
  std::ranges::transform(a, b, difference.begin(), std::minus());
  return norm(difference);
}

class ModelAgreement : public ::testing::TestWithParam<TransformerConfig> {
 protected:
  std::unique_ptr<KernelSet> tested_ = make_tested_kernel_set();
};

TEST_P(ModelAgreement, LossesAndGradients) {
  for (const bool checkpointing : {false, true}) {
    TinyModel model(GetParam());
    const Step ours = train(model, model.flat(), *tested_, checkpointing);
    const Step reference = train(model, model.flat(), *model.kernels, checkpointing);
    EXPECT_NEAR(ours.sums.consistency, reference.sums.consistency,
                1e-4 * reference.sums.consistency);
    EXPECT_NEAR(ours.sums.autoregressive, reference.sums.autoregressive,
                1e-4 * reference.sums.autoregressive);
    EXPECT_LT(relative_error(ours.gradients, reference.gradients), 1e-4);
    EXPECT_EQ(ours.groups, reference.groups);
    EXPECT_EQ(model.account.live_bytes(), 0U);
    test::print_digest(test::digest_of(ours.gradients, 0));
  }
}

/// Compares errors against float32 with the CPU's bfloat16 errors. Heads of 64 and 128 go to tensor
/// cores.
TEST(Narrow, LossesAndGradientsAreAsCloseToFloat32AsTheCpus) {
  const std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  for (const auto& [family, head_size] : {std::pair(ModelFamily::qwen3, 64),
                                          {ModelFamily::llama, 64},
                                          {ModelFamily::qwen3, 128},
                                          {ModelFamily::olmo2, 64},
                                          {ModelFamily::granite, 64}}) {
    TransformerConfig config = test::tiny_config(head_size == 128, family);
    config.own_head_size = head_size;
    TinyModel model(config);
    const RoundedModel rounded(model);
    const Step exact = train(model, rounded.flat(DType::float32), *model.kernels, false);
    const Step cpus = train(model, rounded.flat(DType::bfloat16), *model.kernels, false);
    const Step ours = train(model, rounded.flat(DType::bfloat16), *kernels, false);
    EXPECT_TRUE(test::same_bits(
        ours.gradients, train(model, rounded.flat(DType::bfloat16), *kernels, true).gradients));
    EXPECT_NEAR(ours.sums.consistency, exact.sums.consistency, 0.01 * exact.sums.consistency);
    EXPECT_NEAR(ours.sums.autoregressive, exact.sums.autoregressive,
                0.01 * exact.sums.autoregressive);
    EXPECT_EQ(ours.groups, exact.groups);
    for (const ParameterEntry& entry : model.table.entries()) {
      const auto part = [&entry](const Step& step) {
        return std::span(step.gradients)
            .subspan(static_cast<std::size_t>(entry.offset),
                     static_cast<std::size_t>(entry.shape.elements()));
      };
      const double error = distance(part(ours), part(exact));
      const double usual = distance(part(cpus), part(exact));
      EXPECT_LT(error, 2 * usual) << entry.name << ", heads of " << head_size;
      EXPECT_GT(error, 0.5 * usual) << entry.name << " was not computed in bfloat16";
      EXPECT_LT(error, 0.1 * norm(part(exact))) << entry.name;
    }
    EXPECT_EQ(model.account.live_bytes(), 0U);
    test::print_digest(test::digest_of(ours.gradients, 0));
  }
}

/// More batches than staged arrays have places, without waiting for the device.
TEST(PlansOfManyBatches, ReachADeviceThatLagsBehind) {
  constexpr std::int64_t kBatches = 20;
  constexpr AttentionHeads kHeads{.heads = 4, .key_heads = 2, .size = 8};
  const auto results = [&](KernelSet& kernels) {
    MemoryAccount account("test");
    const std::unique_ptr<PackedPlan> plan = kernels.make_plan(kHeads, account);
    std::vector<PackedBatch> batches;
    for (std::int32_t i = 0; i < kBatches; ++i) {
      const PackedSample sample = random_sample(static_cast<std::uint64_t>(i), 9, 4, 5, 1 + i % 5);
      batches.push_back(pack_samples({&sample, 1}, {.mask = MaskKind::window}, 1.0F));
    }
    const std::int64_t rows = batches[0].layout.num_rows;
    const auto tensor = [&](unsigned seed, Shape shape) {
      return test::DeviceTensor(kernels, account, test::random_floats(shape.elements(), seed),
                                shape);
    };
    const auto table = tensor(1, {64, 8});
    const auto q = tensor(2, {rows, kHeads.heads, kHeads.size});
    const auto k = tensor(3, {rows, kHeads.key_heads, kHeads.size});
    const auto v = tensor(4, {rows, kHeads.key_heads, kHeads.size});
    const auto embedded = tensor(5, {kBatches * rows, 8});
    const auto attended = tensor(6, {kBatches, rows, kHeads.heads, kHeads.size});
    const auto log_sum_exp = tensor(7, {rows, kHeads.heads});
    const auto table_gradient = tensor(8, {kBatches * 64, 8});
    const auto q_gradient = tensor(9, {rows, kHeads.heads, kHeads.size});
    const auto k_gradient = tensor(10, {kBatches, rows, kHeads.key_heads, kHeads.size});
    const auto v_gradient = tensor(11, {rows, kHeads.key_heads, kHeads.size});
    const auto hidden = tensor(12, {rows, 8});
    const auto hidden_gradient = tensor(13, {kBatches * rows, 8});
    const auto head_gradient = tensor(14, {64, 8});
    ResultSums sums(kernels, account);
    sums.reset(2 * kBatches);
    for (std::int64_t i = 0; i < kBatches; ++i) {
      plan->assign(batches[static_cast<std::size_t>(i)]);
      const auto of_batch = [i](const test::DeviceTensor& all, std::int64_t each) {
        return all.view().rows(i * each, (i + 1) * each);
      };
      kernels.embedding(plan->rows(), table.view(), of_batch(embedded, rows));
      kernels.embedding_backward(*plan, hidden.view(), of_batch(table_gradient, 64));
      kernels.vocabulary_loss(*plan, hidden.view(), table.view(), {0.7F, 1.3F, sums.part(2 * i, 2)},
                              of_batch(hidden_gradient, rows), head_gradient.view());
      const TensorView output = of_batch(attended, 1).reshaped({rows, kHeads.heads, kHeads.size});
      kernels.packed_attention(*plan, q.view(), k.view(), v.view(), output, log_sum_exp.view());
      kernels.packed_attention_backward(
          *plan, q.view(), q.view(), k.view(), v.view(), output, log_sum_exp.view(),
          q_gradient.view(),
          of_batch(k_gradient, 1).reshaped({rows, kHeads.key_heads, kHeads.size}),
          v_gradient.view());
    }
    return std::array{embedded.values(),        table_gradient.values(), attended.values(),
                      hidden_gradient.values(), head_gradient.values(),  k_gradient.values()};
  };
  const auto ours = results(*make_tested_kernel_set());
  const auto reference = results(*make_cpu_kernel_set());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LT(relative_error(ours.at(i), reference.at(i)), 1e-5) << i;
  }
}

TEST_P(ModelAgreement, ABatchWithoutRowsStillReportsItsGroups) {
  TinyModel model(GetParam());
  Floats gradients(model.values.size(), 0.5F);
  TrainingTransformer transformer(model.config, model.table, *tested_, model.account, {});
  std::vector<std::int32_t> groups;
  FlatParameters parameters(model.table, model.flat(), *tested_, model.account);
  FlatGradients sink(model.table, {gradients.data(), {model.table.flat_size()}}, *tested_,
                     model.account, [&](std::int32_t group) { groups.push_back(group); });
  transformer.forward({}, parameters);
  test::loss_and_backward(*tested_, transformer, parameters, 1, 1, sink);
  EXPECT_EQ(groups.size(), model.table.groups().size());
  EXPECT_EQ(gradients, Floats(model.values.size(), 0.5F));
}

/// `predictions` are of the same rows in another slot.
Floats decode(TinyModel& model, KernelSet& kernels, std::int32_t max_rows,
              std::vector<TokenId>& predictions) {
  InferenceTransformer transformer(model.config, model.table, model.flat(), kernels, model.account,
                                   {.num_slots = 2, .slot_capacity = 64, .max_rows = max_rows});
  RandomStream stream(9, RandomPurpose::test);
  std::vector<DecodeRow> rows;
  for (std::int32_t i = 0; i < 40; ++i) {
    const auto token = static_cast<TokenId>(stream.below(37));
    rows.push_back({token, {1, i}, i % 3 != 0});
  }
  const auto wanted = std::ranges::count_if(rows, &DecodeRow::wants_output);
  Floats logits(static_cast<std::size_t>(wanted * model.config.vocabulary_size));
  transformer.logits(rows, {logits.data(), {wanted, model.config.vocabulary_size}});
  predictions.resize(static_cast<std::size_t>(wanted));
  for (DecodeRow& row : rows) {
    row.place.slot = 0;
  }
  transformer.predict(rows, predictions);
  return logits;
}

TEST_P(ModelAgreement, LogitsAndPredictions) {
  TinyModel model(GetParam());
  std::vector<TokenId> ours;
  std::vector<TokenId> reference;
  const Floats logits = decode(model, *tested_, 0, ours);
  EXPECT_LT(relative_error(logits, decode(model, *model.kernels, 0, reference)), 2e-5);
  EXPECT_EQ(ours, reference);
  std::vector<TokenId> chunked;
  EXPECT_TRUE(test::same_bits(logits, decode(model, *tested_, 7, chunked)))
      << "chunks of the prefill change bits";
  EXPECT_EQ(ours, chunked);
  EXPECT_EQ(model.account.live_bytes(), 0U);
  test::print_digest(test::digest_of(logits, 0));
}

/// More chunks than staged arrays have places.
TEST_P(ModelAgreement, ChunksOfAPrefillKeepTheirTurn) {
  TinyModel model(GetParam());
  std::vector<DecodeRow> rows;
  for (std::int32_t i = 0; i < 40; ++i) {
    rows.push_back({i * 7 % 37, {0, i}, i == 39});
  }
  const auto logits = [&](KernelSet& kernels, std::int32_t max_rows) {
    InferenceTransformer transformer(model.config, model.table, model.flat(), kernels,
                                     model.account, {.slot_capacity = 64, .max_rows = max_rows});
    Floats last(static_cast<std::size_t>(model.config.vocabulary_size));
    transformer.logits(rows, {last.data(), {1, model.config.vocabulary_size}});
    return last;
  };
  EXPECT_TRUE(test::same_bits(logits(*tested_, 3), logits(*tested_, 40)));
  EXPECT_LT(relative_error(logits(*tested_, 3), logits(*model.kernels, 3)), 2e-5);
}

TEST_P(ModelAgreement, ParametersThatAreReadOneByOne) {
  TinyModel model(GetParam());
  for (float& value : model.values) {
    value = to_float(to_bfloat16(value));
  }
  std::vector<BFloat16> shorts;
  const ParameterReader read = [&](const ParameterEntry& entry) -> ConstTensorView {
    const float* const values = model.values.data() + entry.offset;
    if (entry.group % 2 == 1) {
      return {values, entry.shape};
    }
    shorts.clear();
    std::transform(values, values + entry.shape.elements(), std::back_inserter(shorts),
                   to_bfloat16);
    return {shorts.data(), entry.shape};
  };
  const std::vector<DecodeRow> rows{{3, {0, 0}}, {5, {0, 1}}, {7, {0, 2}}};
  const auto logits = [&](InferenceTransformer transformer) {
    Floats result(static_cast<std::size_t>(3 * model.config.vocabulary_size));
    transformer.logits(rows, {result.data(), {3, model.config.vocabulary_size}});
    return result;
  };
  for (KernelSet* const kernels : {tested_.get(), model.kernels.get()}) {
    for (const WeightStorage weights : {WeightStorage::automatic, WeightStorage::float32}) {
      const InferenceTransformer::Options options{
          .num_slots = 1, .slot_capacity = 64, .weights = weights};
      const Floats whole = logits({model.config, model.table, ConstTensorView(model.flat()),
                                   *kernels, model.account, options});
      EXPECT_TRUE(test::same_bits(
          whole, logits({model.config, model.table, read, *kernels, model.account, options})));
    }
  }
  EXPECT_EQ(model.account.live_bytes(), 0U);
}

struct Grown {
  std::vector<TokenId> tokens;
  Floats logits;
};

/// Extends by one row, and by several with a branch, past the end of a split.
Grown grow(TinyModel& model, KernelSet& kernels, bool replay, WeightStorage weights,
           std::int64_t& replays) {
  constexpr std::int32_t kCapacity = 192;
  InferenceTransformer transformer(model.config, model.table, model.flat(), kernels, model.account,
                                   {.num_slots = 2,
                                    .slot_capacity = kCapacity,
                                    .branch_rows = 8,
                                    .weights = weights,
                                    .replay = replay});
  RandomStream stream(11, RandomPurpose::test);
  Grown result;
  std::int32_t length = 0;
  const auto pass = [&](std::int32_t count, bool all_outputs, bool with_logits) {
    std::vector<DecodeRow> rows;
    for (std::int32_t slot = 0; slot < 2; ++slot) {
      for (std::int32_t i = 0; i < count; ++i) {
        rows.push_back({static_cast<TokenId>(stream.below(37)),
                        {slot, length + i},
                        all_outputs || i + 1 == count});
      }
      for (std::int32_t i = 0; i < 2 && count > 1 && all_outputs; ++i) {
        rows.push_back({static_cast<TokenId>(stream.below(37)),
                        {slot, length + 1 + i, length + 1, kCapacity}});
      }
    }
    const auto wanted = std::ranges::count_if(rows, &DecodeRow::wants_output);
    std::vector<TokenId> tokens(static_cast<std::size_t>(wanted));
    transformer.predict(rows, tokens);
    result.tokens.insert(result.tokens.end(), tokens.begin(), tokens.end());
    if (with_logits) {
      Floats logits(static_cast<std::size_t>(wanted * model.config.vocabulary_size));
      transformer.logits(rows, {logits.data(), {wanted, model.config.vocabulary_size}});
      result.logits.insert(result.logits.end(), logits.begin(), logits.end());
    }
    length += count;
  };
  pass(100, false, false);
  for (int turn = 0; turn < 9; ++turn) {
    pass(1, true, true);
    pass(5, true, turn == 8);
    pass(2, false, false);
  }
  replays = transformer.replays();
  return result;
}

TEST_P(ModelAgreement, ReplayedPassesHaveTheSameBits) {
  for (const WeightStorage weights :
       {WeightStorage::automatic, WeightStorage::bfloat16_arithmetic}) {
    TinyModel model(GetParam());
    std::int64_t replays = 0;
    const Grown plain = grow(model, *tested_, false, weights, replays);
    EXPECT_EQ(replays, 0);
    const Grown replayed = grow(model, *tested_, true, weights, replays);
    EXPECT_GE(replays, 8);
    EXPECT_EQ(plain.tokens, replayed.tokens);
    EXPECT_TRUE(test::same_bits(plain.logits, replayed.logits));
    const Grown reference = grow(model, *model.kernels, true, weights, replays);
    // A device rounds cache and activations, so near ties may differ.
    const bool narrow = cache_type(weights, tested_->device()) == DType::bfloat16;
    EXPECT_LT(relative_error(plain.logits, reference.logits), narrow ? 2e-2 : 2e-5);
    EXPECT_TRUE(narrow || plain.tokens == reference.tokens);
    EXPECT_EQ(model.account.live_bytes(), 0U);
  }
}

/// 262 to 280 rows, padded to 320 at most.
TEST_P(ModelAgreement, ReplayedPassesOfManyRowsHaveTheSameBits) {
  for (const WeightStorage weights :
       {WeightStorage::automatic, WeightStorage::bfloat16_arithmetic}) {
    TinyModel model(GetParam());
    const auto results = [&](bool replay) {
      InferenceTransformer transformer(
          model.config, model.table, model.flat(), *tested_, model.account,
          {.num_slots = 2, .slot_capacity = 192, .weights = weights, .replay = replay});
      RandomStream stream(13, RandomPurpose::test);
      Floats result;
      for (const std::int32_t count : {137, 131, 140, 132, 138, 131}) {
        const bool all = count > 132;
        std::vector<DecodeRow> rows;
        for (std::int32_t slot = 0; slot < 2; ++slot) {
          for (std::int32_t i = 0; i < count; ++i) {
            rows.push_back(
                {static_cast<TokenId>(stream.below(37)), {slot, i}, all || i + 1 == count});
          }
        }
        const std::int64_t wanted = std::ranges::count_if(rows, &DecodeRow::wants_output);
        std::vector<TokenId> tokens(static_cast<std::size_t>(wanted));
        transformer.predict(rows, tokens);
        result.insert(result.end(), tokens.begin(), tokens.end());
        if (all) {
          Floats logits(static_cast<std::size_t>(wanted * model.config.vocabulary_size));
          transformer.logits(rows, {logits.data(), {wanted, model.config.vocabulary_size}});
          result.insert(result.end(), logits.begin(), logits.end());
        }
      }
      EXPECT_EQ(transformer.replays(), replay ? 3 : 0);
      return result;
    };
    EXPECT_TRUE(test::same_bits(results(false), results(true)));
  }
}

/// Launches run one by one and the log says so, after releasing kept memory. Run with
/// JFORGE_EMULATED_GRAPHS=none, =no-upload and =until-trimmed.
TEST(WithoutGraphs, PassesHaveTheSameBits) {
  const char* const lack = std::getenv("JFORGE_EMULATED_GRAPHS");
  if (lack == nullptr) {
    GTEST_SKIP() << "graphs can be made";
  }
  const bool comes = std::string(lack) == "until-trimmed";
  const test::LogText log;
  const std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  TinyModel model(true);
  std::int64_t replays = 0;
  const Grown plain = grow(model, *kernels, false, WeightStorage::bfloat16_arithmetic, replays);
  const Grown replayed = grow(model, *kernels, true, WeightStorage::bfloat16_arithmetic, replays);
  EXPECT_EQ(replays > 0, comes);
  EXPECT_EQ(log.lines_with("no memory to record a pass"), comes ? 0 : 1) << log.text();
  EXPECT_EQ(plain.tokens, replayed.tokens);
  EXPECT_TRUE(test::same_bits(plain.logits, replayed.logits));
}

/// More than CudaDecodePlan::kMostWorks; one is repeated throughout.
TEST(RecordedPasses, TheOneNotUsedForLongestIsForgotten) {
  constexpr std::int32_t kMostWorks = 64;
  const std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  MemoryAccount account("test");
  const test::DeviceTensor one(*kernels, account, {1}, {1});
  const test::DeviceTensor sum(*kernels, account, {0}, {1});
  const test::FullSlots slots(1, 1);
  const auto plan = kernels->make_decode_plan({.heads = 1, .key_heads = 1, .size = 8},
                                              DType::float32, 1, account);
  const std::vector<CacheRow> rows{{0, 0}};
  const std::vector<std::int32_t> kept{0};
  plan->assign({.tokens = {},
                .places = rows,
                .kept = kept,
                .copies = {},
                .table = slots.table(),
                .padded = true});
  float runs = 0;
  const auto run = [&](std::int32_t step) {
    plan->run(step, [&] { kernels->add(one.view(), sum.view()); });
    ++runs;
  };
  run(0);
  run(0);
  for (std::int32_t step = 1; step <= kMostWorks; ++step) {
    run(step);
    const std::int64_t before = plan->replays();
    run(0);
    EXPECT_EQ(plan->replays(), before + 1) << "behind step " << step;
  }
  EXPECT_EQ(sum.values(), Floats{runs});
}

TEST(Narrow, AttentionWithoutTensorCoresIsSaidOnce) {
  constexpr const char* kSaid = "attention in bfloat16 goes without tensor cores";
  const auto of_heads = [](std::int64_t size) {
    return AttentionHeads{.heads = 2, .key_heads = 1, .size = size};
  };
  const test::LogText log;
  MemoryAccount account("test");
  const std::unique_ptr<KernelSet> decoding = make_tested_kernel_set();
  static_cast<void>(decoding->make_decode_plan(of_heads(64), DType::bfloat16, 1, account));
  static_cast<void>(decoding->make_decode_plan(of_heads(96), DType::float32, 1, account));
  EXPECT_EQ(log.text(), "");
  for (int i = 0; i < 2; ++i) {
    static_cast<void>(decoding->make_decode_plan(of_heads(96), DType::bfloat16, 1, account));
    EXPECT_EQ(log.lines_with(kSaid), 1) << log.text();
  }
  const std::unique_ptr<KernelSet> training = make_tested_kernel_set();
  TinyModel model;
  static_cast<void>(train(model, model.flat(), *training, false));
  EXPECT_EQ(log.lines_with(kSaid), 1) << "of float32";
  const RoundedModel rounded(model);
  static_cast<void>(train(model, rounded.flat(DType::bfloat16), *training, false));
  EXPECT_EQ(log.lines_with(kSaid), 2) << log.text();
}

/// More calls than a plan's array has places, without waiting: the bits of a single call.
TEST(KeptBranches, ReachADeviceThatLagsBehind) {
  constexpr std::int32_t kPrompt = 3;
  constexpr std::int32_t kKept = 20;
  constexpr std::int32_t kCapacity = 64;
  const std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  TinyModel model;
  const auto logits = [&](bool one_by_one) {
    InferenceTransformer transformer(
        model.config, model.table, model.flat(), *kernels, model.account,
        {.slot_capacity = kCapacity, .branch_rows = kKept, .replay = false});
    std::vector<DecodeRow> rows;
    for (std::int32_t i = 0; i < kPrompt; ++i) {
      rows.push_back({2 + i, {0, i}});
    }
    std::vector<CacheCopy> kept;
    for (std::int32_t i = 0; i < kKept; ++i) {
      rows.push_back({5 + i, {0, kPrompt + i, kPrompt, kCapacity}});
      kept.push_back({.slot = 0, .from = kCapacity + i, .to = kPrompt + i});
    }
    std::vector<TokenId> chosen(rows.size());
    transformer.predict(rows, chosen);
    for (std::size_t i = 0; one_by_one && i < kept.size(); ++i) {
      transformer.keep_branches({&kept[i], 1});
    }
    if (!one_by_one) {
      transformer.keep_branches(kept);
    }
    Floats result(static_cast<std::size_t>(model.config.vocabulary_size));
    transformer.logits(std::vector<DecodeRow>{{1, {0, kPrompt + kKept}}},
                       {result.data(), {1, model.config.vocabulary_size}});
    return result;
  };
  EXPECT_TRUE(test::same_bits(logits(true), logits(false)));
}

TEST(Heads, TooManyToAKeyHeadAreRefusedBeforeTheWeights) {
  TransformerConfig config = test::tiny_config(false, ModelFamily::qwen3);
  config.num_heads = 48;
  config.num_kv_heads = 1;
  config.own_head_size = 2;
  config.validate();
  const ParameterTable table(config, 1);
  MemoryAccount account("test");
  const std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  const auto expect_numbers = [](const auto& refused) {
    try {
      refused();
      ADD_FAILURE() << "48 query heads were taken";
    } catch (const EnvironmentError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("48 query heads and 1 key heads, 48 to one"), std::string::npos) << text;
      EXPECT_NE(text.find("at most 32"), std::string::npos) << text;
    }
  };
  const auto read = [](const ParameterEntry& entry) -> ConstTensorView {
    throw InternalError(entry.name + " was read");
  };
  expect_numbers([&] {
    const InferenceTransformer transformer(
        config, table, ParameterReader(read), *kernels, account,
        {.slot_capacity = 64, .max_rows = 8, .weights = WeightStorage::float32});
  });
  expect_numbers([&] { const TrainingTransformer model(config, table, *kernels, account, {}); });
  EXPECT_NO_THROW(TrainingTransformer(config, table, *make_cpu_kernel_set(), account, {}));
}

TEST(Memory, OfDecodingIsNamedByItsUse) {
  const std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  TinyModel model;
  MemoryAccount account("decoding");
  InferenceTransformer transformer(model.config, model.table, model.flat(), *kernels, account,
                                   {.slot_capacity = 64, .max_rows = 8});
  const std::vector<DecodeRow> rows{{3, {0, 0}}, {5, {0, 1}}};
  std::vector<TokenId> chosen(rows.size());
  transformer.predict(rows, chosen);
  transformer.predict_logits(rows, [](std::int64_t, const TensorView&) {});
  EXPECT_EQ(account.live_bytes(MemoryUse::other), 0U);
  for (const MemoryUse use :
       {MemoryUse::weights, MemoryUse::activations, MemoryUse::key_value, MemoryUse::staging}) {
    EXPECT_GT(account.live_bytes(use), 0U) << memory_use_name(use);
  }
}

/// Wrong drafts and another sequence come before. This makes every method's answer the greedy one.
TEST(Drafts, HaveTheBitsOfOneTokenAtATime) {
  const std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  constexpr std::int32_t kPrompt = 125;  // drafts on both sides of a split's end
  constexpr std::int32_t kNew = 6;
  for (const std::int64_t head_size : {8, 64}) {
    TransformerConfig config = test::tiny_config(false, ModelFamily::qwen3);
    config.own_head_size = head_size;
    TinyModel model(config);
    for (const WeightStorage weights :
         {WeightStorage::float32, WeightStorage::bfloat16, WeightStorage::bfloat16_arithmetic}) {
      InferenceTransformer transformer(model.config, model.table, model.flat(), *kernels,
                                       model.account,
                                       {.num_slots = 2, .slot_capacity = 192, .weights = weights});
      RandomStream stream(12, RandomPurpose::test);
      const std::vector<TokenId> prompt = random_tokens(stream, kPrompt);
      const auto prefill = [&](std::int32_t slot) {
        std::vector<DecodeRow> rows;
        for (std::int32_t i = 0; i < kPrompt; ++i) {
          rows.push_back({prompt[static_cast<std::size_t>(i)], {slot, i}, i + 1 == kPrompt});
        }
        TokenId next = 0;
        transformer.predict(rows, {&next, 1});
        return next;
      };
      const auto logits = [&](const std::vector<DecodeRow>& rows) {
        const Shape shape{std::ssize(rows), config.vocabulary_size};
        Floats result(static_cast<std::size_t>(shape.elements()));
        transformer.logits(rows, {result.data(), shape});
        return result;
      };
      std::vector<DecodeRow> drafts{{prefill(0), {0, kPrompt}}};
      Floats one_by_one;
      for (std::int32_t i = 0; i < kNew; ++i) {
        TokenId next = 0;
        transformer.predict({&drafts.back(), 1}, {&next, 1});
        const Floats own = logits({drafts.back()});
        one_by_one.insert(one_by_one.end(), own.begin(), own.end());
        drafts.push_back({next, {0, kPrompt + i + 1}});
      }
      drafts.pop_back();
      static_cast<void>(prefill(1));
      std::vector<DecodeRow> together;
      for (const DecodeRow& row : drafts) {
        together.push_back({row.token == 0 ? 1 : 0, {1, row.place.position}});
      }
      static_cast<void>(logits(together));
      together = drafts;
      for (const DecodeRow& row : drafts) {
        together.push_back({row.token, {1, row.place.position}});
      }
      const Floats found = logits(together);
      const auto middle = found.begin() + std::ssize(one_by_one);
      EXPECT_TRUE(test::same_bits(Floats(found.begin(), middle), one_by_one)) << head_size;
      EXPECT_TRUE(test::same_bits(Floats(middle, found.end()), one_by_one)) << head_size;
      test::print_digest(test::digest_of(found, 0));
      std::vector<TokenId> chosen(drafts.size());
      transformer.predict(drafts, chosen);
      for (std::size_t i = 0; i + 1 < chosen.size(); ++i) {
        EXPECT_EQ(chosen[i], drafts[i + 1].token);
      }
    }
    EXPECT_EQ(model.account.live_bytes(), 0U);
  }
}

constexpr std::uint64_t kRequests = kMethods + 2;

DecodeRequest request_of(std::uint64_t which, RandomStream& stream,
                         const SamplingOptions& sampling) {
  DecodeRequest request = random_request(which, stream, 37);
  request.prompt =
      random_tokens(stream, which == 1 ? 120 : 3 + 5 * static_cast<std::int64_t>(which));
  request.max_new_tokens = 9 + 3 * static_cast<std::int64_t>(which);
  request.sampling = which == 2 ? SamplingOptions{} : sampling;
  return request;
}

/// Sorted by id; token by token if `every_method` is false.
std::vector<DecodeResult> decode_requests(DraftedModel& model, KernelSet& kernels,
                                          InferenceTransformer::Options options, bool every_method,
                                          const SamplingOptions& sampling = {}) {
  options.slot_capacity = 256;
  options.branch_rows = 64;
  const DrafterSource adapter = model.source();
  options.adapter = &adapter;
  InferenceTransformer transformer(model.config, model.table, model.flat(), kernels, model.account,
                                   options);
  DecodeEngine engine(transformer, options.num_slots);
  RandomStream stream(21, RandomPurpose::test);
  std::vector<std::unique_ptr<SequenceDecoder>> decoders;
  for (std::uint64_t i = 0; i < kRequests; ++i) {
    DecodeRequest request = request_of(i, stream, sampling);
    decoders.push_back(
        !every_method  ? make_greedy_decoder(std::move(request))
        : i < kMethods ? make_decoder(i, std::move(request))
                       : make_multi_block_decoder(std::move(request), multi_block_options(15 + i)));
  }
  std::vector<DecodeResult> results = decode_all(engine, std::move(decoders));
  std::ranges::sort(results, {}, &DecodeResult::id);
  EXPECT_EQ(results.size(), kRequests);
  EXPECT_EQ(transformer.free_pages(), options.num_slots * cache_pages(256, options.branch_rows));
  return results;
}

std::uint64_t digest(const std::vector<DecodeResult>& results) {
  std::uint64_t hash = 0;
  const auto add = [&](const auto& values) {
    hash = hash64(std::as_bytes(std::span(values)), hash);
  };
  for (const DecodeResult& result : results) {
    add(result.tokens);
    add(result.accepted);
    add(std::array{result.forwards, static_cast<std::int64_t>(result.stop)});
    for (const TrajectoryBlock& block : result.blocks) {
      add(block.states);
    }
  }
  return hash;
}

TEST(DecodingMethods, GiveTheCpusTokensForwardsAndStates) {  // I1, I18
  const auto kernels = make_tested_kernel_set();
  DraftedModel model(ModelFamily::qwen2);
  const auto cpus = decode_requests(model, *model.kernels, {.num_slots = 4}, true);
  const auto one_by_one = decode_requests(model, *model.kernels, {.num_slots = 4}, false);
  for (const std::int32_t batch : {3, 5}) {
    const auto ours =
        decode_requests(model, *kernels, {.num_slots = batch, .replay = batch == 3}, true);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].tokens, one_by_one[i].tokens) << i;
      EXPECT_EQ(ours[i].forwards, cpus[i].forwards) << i;
    }
    EXPECT_EQ(digest(ours), digest(cpus)) << batch;
    test::print_digest(digest(ours));
  }
  EXPECT_EQ(model.account.live_bytes(), 0U);
}

TEST(SampledOnADevice, HasTheCpusTokensForwardsAndStates) {  // I23
  const auto kernels = make_tested_kernel_set();
  DraftedModel model(ModelFamily::qwen2);
  const std::uint64_t greedy =
      digest(decode_requests(model, *model.kernels, {.num_slots = 3}, true));
  for (const SamplingOptions& sampling :
       {SamplingOptions{.temperature = 1, .seed = 4},
        SamplingOptions{.temperature = 1.5, .top_p = 0.8, .top_k = 12, .seed = 4},
        SamplingOptions{.repetition_penalty = 1.4},
        SamplingOptions{.temperature = 0.3, .top_p = 0.9, .repetition_penalty = 1.1, .seed = 5}}) {
    const std::uint64_t expected =
        digest(decode_requests(model, *model.kernels, {.num_slots = 4}, true, sampling));
    EXPECT_NE(expected, greedy);
    EXPECT_EQ(digest(decode_requests(model, *kernels, {.num_slots = 3}, true, sampling)), expected);
  }
  EXPECT_EQ(model.account.live_bytes(), 0U);
}

/// In the device's arithmetic, rounded or not.
TEST(DraftingRows, ChangeNoOtherRowAndAgreeWithTheCpus) {
  constexpr std::int32_t kPrompt = 70;
  constexpr std::int32_t kDraft = 20;
  const std::unique_ptr<KernelSet> tested = make_tested_kernel_set();
  for (const ModelFamily family : {ModelFamily::qwen3, ModelFamily::olmo2}) {
    DraftedModel model(family);
    const DrafterSource adapter = model.source();
    RandomStream stream(14, RandomPurpose::test);
    const std::vector<TokenId> tokens = random_tokens(stream, kPrompt + kDraft);
    const auto logits = [&](KernelSet& kernels, WeightStorage weights, bool drafts,
                            std::int32_t max_rows) {
      InferenceTransformer transformer(model.config, model.table, model.flat(), kernels,
                                       model.account,
                                       {.slot_capacity = 128,
                                        .branch_rows = kDraft,
                                        .max_rows = max_rows,
                                        .weights = weights,
                                        .adapter = drafts ? &adapter : nullptr});
      std::vector<DecodeRow> rows;
      for (std::int32_t i = 0; i < kPrompt + kDraft; ++i) {
        rows.push_back({tokens[static_cast<std::size_t>(i)], {0, i}, i >= kPrompt});
      }
      for (std::int32_t i = kPrompt; i < kPrompt + kDraft; ++i) {
        rows.push_back(
            {tokens[static_cast<std::size_t>(i)], {0, i, kPrompt, 128}, i > kPrompt, drafts});
      }
      constexpr std::int64_t kWanted = 2 * kDraft - 1;
      Floats result(kWanted * 37);
      transformer.logits(rows, {result.data(), {kWanted, 37}});
      return result;
    };
    for (const WeightStorage weights :
         {WeightStorage::float32, WeightStorage::bfloat16, WeightStorage::bfloat16_arithmetic}) {
      const Floats ours = logits(*tested, weights, true, 0);
      EXPECT_TRUE(test::same_bits(logits(*tested, weights, true, 7), ours));
      const Floats base = logits(*tested, weights, false, 0);
      const auto own = [](const Floats& all) {
        return Floats(all.begin(), all.begin() + kDraft * 37);
      };
      const auto drafted = [](const Floats& all) { return std::span(all).subspan(kDraft * 37); };
      EXPECT_TRUE(test::same_bits(own(ours), own(base)));
      EXPECT_GT(distance(drafted(ours), drafted(base)), 0.2 * norm(drafted(base)));
      const Floats cpus = logits(*model.kernels, weights, true, 0);
      EXPECT_LT(distance(drafted(ours), drafted(cpus)),
                (weights == WeightStorage::float32 ? 1e-4 : 0.03) * norm(drafted(cpus)));
      test::print_digest(test::digest_of(ours, 0));
    }
    EXPECT_EQ(model.account.live_bytes(), 0U);
  }
}

/// The model's and the head's weights rounded to `compute`; returns losses and gradients.
Step train_head(HeadedModel& model, KernelSet& kernels, DType compute) {
  PackedBatch batch =
      pack_samples(std::vector{random_sample(5, 9, 4, 5, 2), random_sample(6, 21, 4, 3, 1)},
                   {.mask = MaskKind::clean,
                    .ar_targets = false,
                    .noisy_last = true,
                    .mask_token = model.shape.mask_token},
                   0.5F);
  const auto rounded = [&](std::span<const float> values) {
    std::vector<BFloat16> shorts(values.size());
    std::ranges::transform(values, shorts.begin(), to_bfloat16);
    return shorts;
  };
  const std::vector<BFloat16> model_shorts = rounded(model.values);
  const std::vector<BFloat16> head_shorts = rounded(model.weights);
  const auto lend = [&](const ParameterTable& table, const std::vector<float>& floats,
                        const std::vector<BFloat16>& shorts) {
    const Shape shape{std::ssize(floats)};
    return FlatParameters(table,
                          compute == DType::float32 ? ConstTensorView(floats.data(), shape)
                                                    : ConstTensorView(shorts.data(), shape),
                          kernels, model.account);
  };
  FlatParameters of_model = lend(model.table, model.values, model_shorts);
  FlatParameters of_head = lend(model.head_table, model.weights, head_shorts);
  Step step;
  step.gradients.assign(model.weights.size(), 0.0F);
  FlatGradients sink(model.head_table, {step.gradients.data(), {std::ssize(step.gradients)}},
                     kernels, model.account);
  TrainingTransformer frozen(
      model.config, model.table, kernels, model.account,
      {.compute = compute, .forward_only = true, .features = model.shape.features});
  TrainingTransformer head(model.head_config, model.head_table, kernels, model.account,
                           {.compute = compute, .head = model.shape});
  PackedBatch clean;
  take_clean_rows(batch, clean);
  const ConstTensorView hidden = frozen.forward(clean, of_model);
  const FrozenForward forward{model.table, of_model, hidden, frozen.features()};
  head.forward_head(batch, forward, of_head);
  step.sums = test::losses_of(kernels, [&](const TensorView& sums) {
    head.loss_and_backward_head(forward, of_head, {.sums = sums}, sink);
  });
  return step;
}

TEST(Heads, TrainAndDecodeAsOnTheCpu) {
  const std::unique_ptr<KernelSet> tested = make_tested_kernel_set();
  HeadedModel model(false);
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    const Step ours = train_head(model, *tested, compute);
    const Step cpus = train_head(model, *model.kernels, compute);
    const bool exact = compute == DType::float32;
    EXPECT_NEAR(ours.sums.consistency, cpus.sums.consistency,
                (exact ? 1e-5 : 0.03) * cpus.sums.consistency);
    EXPECT_LT(distance(ours.gradients, cpus.gradients),
              (exact ? 1e-4 : 0.05) * norm(cpus.gradients));
  }
  const DrafterSource source = model.source();
  const auto decoded = [&](KernelSet& kernels, bool drafts, std::int32_t tree_rows = 0) {
    InferenceTransformer transformer(
        model.config, model.table, model.flat(), kernels, model.account,
        {.num_slots = 3, .slot_capacity = 192, .branch_rows = 24, .adapter = &source});
    DecodeEngine engine(transformer, 3);
    RandomStream stream(22, RandomPurpose::test);
    std::vector<std::unique_ptr<SequenceDecoder>> decoders;
    for (std::uint64_t i = 0; i < 5; ++i) {
      DecodeRequest request = random_request(i, stream, 37);
      request.max_new_tokens = 20;
      decoders.push_back(drafts ? make_drafted_decoder(
                                      std::move(request),
                                      {.block_size = 6, .match_length = 2, .tree_rows = tree_rows})
                                : make_greedy_decoder(std::move(request)));
    }
    std::vector<DecodeResult> results = decode_all(engine, std::move(decoders));
    std::ranges::sort(results, {}, &DecodeResult::id);
    return results;
  };
  const auto one_by_one = decoded(*tested, false);
  for (const std::int32_t tree_rows : {0, 9}) {
    const auto ours = decoded(*tested, true, tree_rows);
    EXPECT_EQ(digest(ours), digest(decoded(*model.kernels, true, tree_rows)));
    std::int64_t saved = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].tokens, one_by_one[i].tokens);
      saved += one_by_one[i].forwards - ours[i].forwards;
    }
    EXPECT_GT(saved, 0);
  }
  EXPECT_EQ(model.account.live_bytes(), 0U);
}

template <class Function>  ///< Null on a real device.
Function* emulators(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

/// One for index data, one for the tokens.
TEST(DecodingMethods, AWarmStepIsTwoCopies) {
  const auto waits = emulators<std::uint64_t()>("jforge_emulated_host_waits");
  const auto keep = emulators<std::uint64_t(int)>("jforge_emulated_keep_work");
  const auto name = emulators<const char*(std::uint64_t)>("jforge_emulated_work_name");
  if (waits == nullptr || keep == nullptr || name == nullptr) {
    GTEST_SKIP() << "nothing but the emulated device counts";
  }
  const auto kernels = make_tested_kernel_set();
  TinyModel model;
  InferenceTransformer transformer(model.config, model.table, model.flat(), *kernels, model.account,
                                   {.num_slots = 2, .slot_capacity = 192});
  DecodeEngine engine(transformer, 2);
  RandomStream stream(10, RandomPurpose::test);
  const auto request = [&](PromptId id) {
    return DecodeRequest{.id = id, .prompt = random_tokens(stream, 9), .max_new_tokens = 150};
  };
  engine.admit(make_greedy_decoder(request(0)));
  engine.admit(make_jacobi_decoder(request(1), {.block_size = 4, .window = DraftWindow::running}));
  for (int step = 0; step < 3; ++step) {  // a prefill, a pass that runs, one that is recorded
    engine.step();
  }
  constexpr std::uint64_t kSteps = 5;
  const std::int64_t replays = transformer.replays();
  const std::uint64_t begin = keep(1);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const std::uint64_t before = waits();
    engine.step();
    EXPECT_LE(waits() - before, 1U) << step;
  }
  std::uint64_t copies = 0;
  const std::uint64_t end = keep(0);
  for (std::uint64_t work = begin; work < end; ++work) {
    copies += std::string_view(name(work)) == "a copy" ? 1 : 0;
  }
  EXPECT_EQ(copies, 2 * kSteps);
  EXPECT_EQ(transformer.replays(), replays + static_cast<std::int64_t>(kSteps));
  EXPECT_EQ(engine.running(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Heads, ModelAgreement,
                         ::testing::Values(test::tiny_config(false), test::tiny_config(true),
                                           test::tiny_config(false, ModelFamily::olmo2),
                                           test::tiny_config(true, ModelFamily::granite)),
                         [](const auto& one) {
                           return std::string(one.param.tie_word_embeddings ? "tied_" : "untied_") +
                                  traits_of(one.param.family).model_type;
                         });

/// The log says why once. Run with JFORGE_EMULATED_MIB=36, of which products take 32.
TEST(LittleDeviceMemory, ASmallerCacheDecodesTheSame) {
  const auto kernels = make_tested_kernel_set();
  constexpr std::uint64_t kLittle = std::uint64_t{4} << 20;
  if (cuda_memory::available().value_or(kLittle + 1) > kLittle) {
    GTEST_SKIP() << "the device has more memory than the test is for";
  }
  TransformerConfig config = test::tiny_config(false, ModelFamily::qwen3);
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.own_head_size = 128;  // 256 KiB a page
  const ParameterTable table(config, 1);
  std::vector<float> weights(static_cast<std::size_t>(table.flat_size()));
  const TensorView flat(weights.data(), {table.flat_size()});
  initialise_weights(table, flat, 5, config.num_layers);
  constexpr std::int64_t kSequences = 6;
  const auto decode = [&](std::int32_t slots, std::int64_t cache_pages = 0) {
    MemoryAccount account("decoding test");
    InferenceTransformer transformer(config, table, flat, *kernels, account,
                                     {.num_slots = slots,
                                      .slot_capacity = 250,
                                      .cache_pages = cache_pages,
                                      .max_rows = 64,
                                      .replay = false});
    DecodeEngine engine(transformer, slots);
    std::vector<std::vector<TokenId>> answers(kSequences);
    std::int64_t admitted = 0;
    for (std::int64_t finished = 0; finished < kSequences;) {
      while (admitted < kSequences && engine.free_slots() > 0) {
        std::vector<TokenId> prompt(130);
        for (std::size_t i = 0; i < prompt.size(); ++i) {
          prompt[i] =
              static_cast<TokenId>(3 + (7 * i + 5 * static_cast<std::size_t>(admitted)) % 30);
        }
        engine.admit(make_greedy_decoder({.id = admitted, .prompt = prompt, .max_new_tokens = 4}));
        ++admitted;
      }
      engine.step();
      while (const auto result = engine.take_finished()) {
        answers[static_cast<std::size_t>(result->id)] = result->tokens;
        ++finished;
      }
    }
    return answers;
  };
  const std::vector<std::vector<TokenId>> one_by_one = decode(1);
  std::string text;
  {
    const test::LogText log;
    EXPECT_EQ(decode(kSequences), one_by_one);
    text = log.text();
  }
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
  EXPECT_NE(text.find("out of device memory: "), std::string::npos) << text;
  EXPECT_NE(text.find("decoding test key/value"), std::string::npos) << text;
  EXPECT_NE(text.find("pages of 0.3 MB instead of 24"), std::string::npos) << text;
  // A cache that just fits leaves no memory for passes.
  constexpr std::size_t kPage = std::size_t{1} << 18;
  for (std::size_t held = 0; held < kPage; held += kPage / 16) {
    MemoryAccount account("others");
    const Buffer others(4 * kPage + held, account, Device::cuda);
    EXPECT_EQ(decode(2), one_by_one) << held;
  }
}

/// Before any read of a weight. A model that may fit is accepted, such as bfloat16 values in
/// float32.
TEST(LittleDeviceMemory, AModelThatDoesNotFitIsRefusedWithSizes) {
  const auto kernels = make_tested_kernel_set();
  constexpr std::uint64_t kLittle = std::uint64_t{4} << 20;
  const std::uint64_t available = cuda_memory::available().value_or(kLittle + 1);
  if (available > kLittle) {
    GTEST_SKIP() << "the device has more memory than the test is for";
  }
  TransformerConfig config = test::tiny_config(false, ModelFamily::qwen3);
  config.intermediate_size = 1024;
  int reads = 0;
  const auto load = [&] {
    const ParameterTable table(config, 1);
    const std::vector<float> ones(static_cast<std::size_t>(table.flat_size()), 1.0F);
    const auto read = [&](const ParameterEntry& entry) {
      ++reads;
      return ConstTensorView(ones.data(), entry.shape);
    };
    MemoryAccount account("a large model");
    const InferenceTransformer transformer(config, table, ParameterReader(read), *kernels, account,
                                           {.slot_capacity = 64, .max_rows = 16});
  };
  // It fits at two bytes an element, but not at four.
  const std::int64_t layer = 2 * 3 * config.hidden_size * config.intermediate_size;
  config.num_layers = 1 + static_cast<std::int64_t>(available) / 2 / layer;
  EXPECT_NO_THROW(load());
  reads = 0;
  config.num_layers *= 3;
  try {
    load();
    FAIL() << "it was loaded";
  } catch (const EnvironmentError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("a large model: decoding takes at least ")) << text;
    EXPECT_NE(text.find("one sequence of 64 positions, and "), std::string::npos) << text;
  }
  EXPECT_EQ(reads, 0);
}

/// The old block may be reused only after the work.
TEST(LittleDeviceMemory, ABufferGrowsBehindWorkUnderWay) {
  const auto kernels = make_tested_kernel_set();
  constexpr std::size_t kLittle = std::size_t{8} << 20;
  const std::uint64_t available = cuda_memory::available().value_or(kLittle + 1);
  if (available > kLittle) {
    GTEST_SKIP() << "the device has more memory than the test is for";
  }
  MemoryAccount account("growing");
  const auto most = static_cast<std::int64_t>(available / 16 * 2);  // half of it, in floats
  Buffer scratch(storage_bytes(most, DType::float32), account, Device::cuda);
  kernels->queue().zero(scratch.floats({most}));
  scratch = Buffer();
  scratch = Buffer(storage_bytes(most + most / 2, DType::float32), account, Device::cuda);
  kernels->queue().zero(scratch.floats({most + most / 2}));
  kernels->queue().synchronize();
}

}  // namespace
}  // namespace jforge
