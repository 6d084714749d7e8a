/// Every function of the tested KernelSet against the CPU's on random inputs: equal bits where both
/// do the same operations in the same order, else within the rounding of float32 sums. Decoding's
/// are in decode_kernel_agreement_test.cpp.

#include "tests/gpu/kernel_agreement.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "runtime/error.h"
#include "tests/support/kernel_calls.h"

namespace jforge {
namespace {

using namespace jforge::test;

// ---- types

TEST_F(KernelAgreement, ConvertCopiesFloat32) {
  expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView y = t.blank({300, 70});
    t.kernels.convert(t(random_floats(300 * 70, 2), {300, 70}), y);
    return {y};
  });
}

TEST_F(KernelAgreement, DeviceRefusesBfloat16) {
  const Buffer shorts(24 * 24 * 2, account_, tested_->device());
  const Buffer floats(24 * 24 * 4, account_, tested_->device());
  const TensorView x = shorts.view(DType::bfloat16, {24, 24});
  const TensorView y = floats.floats({24, 24});
  EXPECT_THROW(tested_->convert(y, x), InternalError);
  EXPECT_THROW(tested_->linear(x, x, {}, x), InternalError);
  EXPECT_THROW(tested_->linear_backward_weight(x, x, y, {}), InternalError);
  EXPECT_THROW(tested_->swiglu(x, x, x), InternalError);
}

// ---- row-wise

TEST_F(KernelAgreement, Embedding) {
  const auto tokens = tokens_of(300, 19, 1);  // Every token many times.
  expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView output = t.blank({300, 70});
    embedding(t.kernels, tokens, t(random_floats(19 * 70, 2), {19, 70}), output);
    return {output};
  });
  expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView gradient = t(random_floats(19 * 70, 3), {19, 70});
    embedding_backward(t.kernels, tokens, t(random_floats(300 * 70, 4), {300, 70}), gradient);
    return {gradient};
  });
}

TEST_F(KernelAgreement, RmsNorm) {
  for (const std::int64_t columns : {1, 24, 130, 896}) {
    const std::int64_t rows = 261;  // More than one run of the column sums.
    const Floats x = random_floats(rows * columns, 5, 3.0F);
    const Floats weight = random_floats(columns, 6);
    expect_close([&](Tensors& t) -> std::vector<TensorView> {
      const TensorView y = t.blank({rows, columns});
      const TensorView again = t.blank({rows, columns});
      const TensorView inverse = t.blank({rows});
      t.kernels.rms_norm(t(x, {rows, columns}), t(weight, {columns}), 1e-6F, y, inverse);
      t.kernels.rms_norm(t(x, {rows, columns}), t(weight, {columns}), 1e-6F, again, {});
      return {y, again, inverse};
    });
    expect_close([&](Tensors& t) -> std::vector<TensorView> {
      const TensorView inverse = t.blank({rows});
      const TensorView source = t(x, {rows, columns});
      const TensorView scale = t(weight, {columns});
      t.kernels.rms_norm(source, scale, 1e-6F, t.blank({rows, columns}), inverse);
      const TensorView dx = t(random_floats(rows * columns, 7), {rows, columns});
      const TensorView dw = t(random_floats(columns, 8), {columns});
      t.kernels.rms_norm_backward(t(random_floats(rows * columns, 9), {rows, columns}), source,
                                  scale, inverse, dx, dw);
      return {dx, dw};
    });
  }
}

TEST_F(KernelAgreement, RotaryAndItsInverse) {
  std::vector<std::int32_t> positions(33);
  std::iota(positions.begin(), positions.end(), 0);
  positions[7] = 1500;  // The table grows.
  const Floats x = random_floats(33 * 3 * 10, 10);
  expect_close([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView forward = t(x, {33, 3, 10});
    const TensorView both = t(x, {33, 3, 10});
    const TensorView backward = t(x, {33, 3, 10});
    rotary(t.kernels, forward, positions, {.theta = 10000.0});
    rotary(t.kernels, both, positions, {.theta = 1e6});
    rotary_backward(t.kernels, both, positions, {.theta = 1e6});
    rotary_backward(t.kernels, backward, positions, {.theta = 10000.0});
    const TensorView scaled = t(x, {33, 3, 10});
    rotary(t.kernels, scaled, positions,
           {.theta = 10000.0, .scaling = RotaryScaling::linear, .factor = 3});
    return {forward, both, backward, scaled};
  });
}

TEST_F(KernelAgreement, Swiglu) {
  Floats gate = random_floats(1000, 11, 4.0F);
  gate[0] = 100.0F;
  gate[1] = -100.0F;
  const Floats up = random_floats(1000, 12);
  expect_close([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView y = t.blank({20, 50});
    const TensorView dg = t.blank({20, 50});
    const TensorView du = t.blank({20, 50});
    t.kernels.swiglu(t(gate, {20, 50}), t(up, {20, 50}), y);
    t.kernels.swiglu_backward(t(random_floats(1000, 13), {20, 50}), t(gate, {20, 50}),
                              t(up, {20, 50}), dg, du);
    return {y, dg, du};
  });
}

TEST_F(KernelAgreement, AddAndKeepRows) {
  expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView y = t(random_floats(777, 14), {7, 111});
    t.kernels.add(t(random_floats(777, 15), {7, 111}), y);
    const TensorView kept = t(random_floats(777, 16), {7, 111});
    const std::vector<std::int32_t> rows{1, 2, 5, 6};
    t.kernels.keep_rows(rows, kept);
    const TensorView none = t(random_floats(777, 17), {7, 111});
    t.kernels.keep_rows({}, none);
    return {y, kept.rows(0, 4), none};
  });
}

// ---- training

TEST_F(KernelAgreement, LinearForwardAndBackward) {
  const std::int64_t m = 150;
  const std::int64_t n = 37;
  const std::int64_t k = 53;
  expect_close([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView x = t(random_floats(m * k, 20), {m, k});
    const TensorView weight = t(random_floats(n * k, 21), {n, k});
    const TensorView plain = t.blank({m, n});
    const TensorView with_bias = t.blank({m, n});
    t.kernels.linear(x, weight, {}, plain);
    t.kernels.linear(x, weight, t(random_floats(n, 22), {n}), with_bias);
    const TensorView dy = t(random_floats(m * n, 23), {m, n});
    const TensorView written = t.blank({m, k});
    const TensorView added = t(random_floats(m * k, 24), {m, k});
    t.kernels.linear_backward_input(dy, weight, written, false);
    t.kernels.linear_backward_input(dy, weight, added, true);
    const TensorView dw = t(random_floats(n * k, 25), {n, k});
    const TensorView dw_alone = t(random_floats(n * k, 26), {n, k});
    const TensorView db = t(random_floats(n, 27), {n});
    t.kernels.linear_backward_weight(dy, x, dw, db);
    t.kernels.linear_backward_weight(dy, x, dw_alone, {});
    return {plain, with_bias, written, added, dw, dw_alone, db};
  });
}

struct HeadCase {
  std::int64_t heads, key_heads, dim;
};

TEST_F(KernelAgreement, PackedAttentionForwardAndBackward) {
  const PackedLayout layout = layout_with_prefixes();
  const std::int64_t rows = layout.num_rows;
  for (const auto& [heads, key_heads, dim] :
       {HeadCase{6, 2, 8}, HeadCase{4, 4, 20}, HeadCase{7, 1, 64}, HeadCase{2, 1, 130},
        HeadCase{7, 1, 128}, HeadCase{2, 1, 256}, HeadCase{32, 1, 4}}) {
    SCOPED_TRACE(std::to_string(heads) + " heads of " + std::to_string(dim));
    expect_close(
        [&](Tensors& t) -> std::vector<TensorView> {
          const Shape query{rows, heads, dim};
          const Shape key{rows, key_heads, dim};
          const TensorView q = t(random_floats(query.elements(), 30), query);
          const TensorView k = t(random_floats(key.elements(), 31), key);
          const TensorView v = t(random_floats(key.elements(), 32), key);
          const TensorView output = t.blank(query);
          const TensorView log_sum_exp = t.blank({rows, heads});
          packed_attention(t.kernels, q, k, v, layout, output, log_sum_exp);
          const TensorView dq = t.blank(query);
          const TensorView dk = t.blank(key);
          const TensorView dv = t.blank(key);
          packed_attention_backward(t.kernels, t(random_floats(query.elements(), 33), query), q, k,
                                    v, output, log_sum_exp, layout, dq, dk, dv);
          return {output, log_sum_exp, dq, dk, dv};
        },
        2e-5);
  }
}

/// A poisoned row must not reach rows that do not see it, not even multiplied by zero.
TEST_F(KernelAgreement, WhatARowDoesNotSeeIsNeverRead) {
  const PackedLayout layout = layout_with_prefixes();
  const std::int64_t rows = layout.num_rows;
  const Shape query{rows, 2, 8};
  const Shape key{rows, 1, 8};
  Floats k = random_floats(key.elements(), 41);
  Floats v = random_floats(key.elements(), 42);
  const std::int64_t poisoned = 49;  // The last clean row: seen by itself and by rows 97–119.
  for (std::int64_t d = 0; d < 8; ++d) {
    k[static_cast<std::size_t>(poisoned * 8 + d)] = std::numeric_limits<float>::quiet_NaN();
    v[static_cast<std::size_t>(poisoned * 8 + d)] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::vector<Floats> results = run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const TensorView output = t.blank(query);
    const TensorView log_sum_exp = t.blank({rows, 2});
    const TensorView q = t(random_floats(query.elements(), 40), query);
    packed_attention(t.kernels, q, t(k, key), t(v, key), layout, output, log_sum_exp);
    const TensorView dq = t.blank(query);
    packed_attention_backward(t.kernels, t(random_floats(query.elements(), 43), query), q,
                              t(k, key), t(v, key), output, log_sum_exp, layout, dq, t.blank(key),
                              t.blank(key));
    return {output, dq};
  });
  for (const Floats& result : results) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool sees = row == poisoned || (97 <= row && row < 120);
      EXPECT_EQ(std::isnan(result[static_cast<std::size_t>(row * 16)]), sees) << "row " << row;
    }
  }
}

std::vector<LossItem> random_items(std::int64_t rows, TokenId vocabulary) {
  std::vector<LossItem> items;
  for (std::int32_t row = 0; row < rows / 2; ++row) {
    LossItem item{.clean_row = row};
    if (row % 3 != 0) {
      item.target = (row * 7) % vocabulary;
      item.ar_weight = 0.01F * static_cast<float>(row % 5);
    }
    if (row % 4 != 1) {
      item.student_row = static_cast<std::int32_t>(rows / 2) + row;
      item.consistency_weight = 0.02F * static_cast<float>(1 + row % 3);
    }
    items.push_back(item);
  }
  return items;
}

TEST_F(KernelAgreement, VocabularyLoss) {
  const std::int64_t rows = 1500;  // More gathered rows than a chunk takes.
  const std::int64_t c = 12;
  const std::int64_t v = 300;
  const std::vector<LossItem> items = random_items(rows, static_cast<TokenId>(v));
  for (const float consistency_scale : {0.7F, 0.0F}) {
    std::vector<VocabularyLossSums> sums;
    expect_close(
        [&](Tensors& t) -> std::vector<TensorView> {
          const TensorView dh = t.blank({rows, c});
          const TensorView dhead = t(random_floats(v * c, 50), {v, c});
          sums.push_back(vocabulary_loss(t.kernels, t(random_floats(rows * c, 51), {rows, c}),
                                         t(random_floats(v * c, 52), {v, c}), items,
                                         consistency_scale, 1.3F, dh, dhead));
          return {dh, dhead};
        },
        2e-5);
    ASSERT_EQ(sums.size(), 2U);
    EXPECT_NEAR(sums[0].consistency, sums[1].consistency, 1e-5 * sums[1].consistency);
    EXPECT_NEAR(sums[0].autoregressive, sums[1].autoregressive, 1e-5 * sums[1].autoregressive);
    EXPECT_EQ(sums[1].consistency > 0, consistency_scale != 0.0F);
  }
}

TEST_F(KernelAgreement, VocabularyLossWithASeparateTeacher) {
  const std::int64_t rows = 1500;  // More gathered rows than a chunk takes.
  const std::int64_t c = 12;
  const std::int64_t v = 300;
  std::vector<LossItem> items = random_items(rows, static_cast<TokenId>(v));
  for (LossItem& item : items) {
    item.teacher_row = static_cast<std::int32_t>(rows / 2 - 1) - item.clean_row;
  }
  std::vector<VocabularyLossSums> sums;
  expect_close(
      [&](Tensors& t) -> std::vector<TensorView> {
        const TensorView dh = t.blank({rows, c});
        const TensorView dhead = t(random_floats(v * c, 50), {v, c});
        sums.push_back(vocabulary_loss(t.kernels, t(random_floats(rows * c, 51), {rows, c}),
                                       t(random_floats(v * c, 52), {v, c}), items, 0.7F, 1.3F, dh,
                                       dhead,
                                       {.hidden = t(random_floats(rows / 2 * c, 53), {rows / 2, c}),
                                        .head = t(random_floats(v * c, 54), {v, c})}));
        return {dh, dhead};
      },
      2e-5);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_NEAR(sums[0].consistency, sums[1].consistency, 1e-5 * sums[1].consistency);
  EXPECT_NEAR(sums[0].autoregressive, sums[1].autoregressive, 1e-5 * sums[1].autoregressive);
}

TEST_F(KernelAgreement, VocabularyLossWithoutItems) {
  expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView dh = t.blank({3, 4});
    const TensorView dhead = t(random_floats(20, 53), {5, 4});
    const VocabularyLossSums sums =
        vocabulary_loss(t.kernels, t(random_floats(12, 54), {3, 4}),
                        t(random_floats(20, 55), {5, 4}), {}, 1.0F, 1.0F, dh, dhead);
    EXPECT_EQ(sums.autoregressive, 0.0);
    return {dh, dhead};
  });
}

TEST_F(KernelAgreement, SumOfSquares) {
  for (const std::int64_t count : {0, 1, 16384, 50001}) {
    std::vector<double> sums;
    static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
      sums.push_back(sum_of_squares(t.kernels, t(random_floats(count, 60), {count})));
      return {};
    }));
    EXPECT_NEAR(sums[0], sums[1], 1e-12 * sums[1]) << count;
  }
}

TEST_F(KernelAgreement, ContentHash) {
  for (const std::int64_t count : {0, 1, 200001}) {
    std::vector<std::uint64_t> hashes;
    static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
      hashes.push_back(t.kernels.content_hash(t(random_floats(count, 61), {count}), 3));
      return {};
    }));
    EXPECT_EQ(hashes[0], hashes[1]) << count;
  }
}

TEST_F(KernelAgreement, AdamW) {
  const std::int64_t count = 20011;
  for (const bool decay : {true, false}) {
    expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
      const TensorView parameter = t(random_floats(count, 70), {count});
      const TensorView first = t(random_floats(count, 71, 0.1F), {count});
      Floats squares = random_floats(count, 72, 0.1F);
      for (float& value : squares) {
        value *= value;
      }
      const TensorView second = t(squares, {count});
      AdamWSettings settings{.learning_rate = 1e-2F, .weight_decay = 0.1F, .gradient_scale = 0.5F};
      for (settings.step = 3; settings.step < 6; ++settings.step) {
        t.kernels.adamw(settings, decay, t(random_floats(count, 73), {count}),
                        {parameter, first, second, {}});
      }
      return {parameter, first, second};
    });
  }
}

/// The same call twice gives the same bits, whatever ran before it.
TEST_F(KernelAgreement, TrainingRepeats) {
  const PackedLayout layout = layout_with_prefixes();
  const std::int64_t rows = layout.num_rows;
  const Shape query{rows, 6, 16};
  const Shape key{rows, 2, 16};
  const Work work = [&](Tensors& t) -> std::vector<TensorView> {
    const TensorView q = t(random_floats(query.elements(), 110), query);
    const TensorView k = t(random_floats(key.elements(), 111), key);
    const TensorView v = t(random_floats(key.elements(), 112), key);
    const TensorView output = t.blank(query);
    const TensorView log_sum_exp = t.blank({rows, 6});
    packed_attention(t.kernels, q, k, v, layout, output, log_sum_exp);
    const TensorView dq = t.blank(query);
    const TensorView dk = t.blank(key);
    const TensorView dv = t.blank(key);
    packed_attention_backward(t.kernels, output, q, k, v, output, log_sum_exp, layout, dq, dk, dv);
    const TensorView dw = t.blank({96, 96});
    const TensorView db = t.blank({96});
    t.kernels.linear_backward_weight(output.reshaped({rows, 96}), dq.reshaped({rows, 96}), dw, db);
    return {dq, dk, dv, dw, db};
  };
  const std::vector<Floats> first = run_on(*tested_, work);
  const std::vector<Floats> second = run_on(*tested_, work);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(same_bits(first[i], second[i])) << "tensor " << i;
  }
}

// ---- refusals

TEST_F(KernelAgreement, WrongShapesAreRefused) {
  static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
    KernelSet& kernels = t.kernels;
    const TensorView a = t.blank({4, 6});
    const TensorView b = t.blank({6, 4});
    const TensorView heads = t.blank({4, 3, 2});
    const std::vector<TokenId> tokens{0, 1, 2, 6};
    EXPECT_THROW(embedding(kernels, tokens, b, t.blank({4, 4})), InternalError) << "token 6 of 6";
    EXPECT_THROW(kernels.add(a, b), InternalError);
    EXPECT_THROW(kernels.swiglu(a, b, a), InternalError);
    EXPECT_THROW(kernels.linear(a, b, {}, a), InternalError);
    EXPECT_THROW(kernels.rms_norm(a, t.blank({4}), 1e-6F, a, {}), InternalError);
    const std::vector<std::int32_t> negative{0, 1, 2, -1};
    EXPECT_THROW(rotary(kernels, heads, negative, {.theta = 1e4}), InternalError);
    const std::vector<std::int32_t> descending{1, 0};
    EXPECT_THROW(kernels.keep_rows(descending, a), InternalError);
    PackedLayout gap;
    gap.num_rows = 4;
    gap.segments = {{0, 2, 0, 0, 0}, {3, 4, 3, 3, 3}};
    EXPECT_THROW(
        packed_attention(kernels, heads, heads, heads, gap, t.blank({4, 3, 2}), t.blank({4, 3})),
        InternalError);
    const FullSlots slots(1, 1);
    const Shape pages = slots.shape(3, 2);
    const LayerCache cache{t.blank(pages), t.blank(pages), slots.table()};
    const std::vector<CacheRow> outside{{0, 0}, {0, 1}, {0, 2}, {0, 64}};
    EXPECT_THROW(kernels.cache_write(outside, heads, heads, cache), InternalError);
    EXPECT_THROW(kernels.cached_attention(outside, heads, cache, t.blank({4, 3, 2})),
                 InternalError);
    EXPECT_THROW(kernels.adamw({.step = 0}, false, a, {a, a, a, {}}), InternalError);
    const std::vector<LossItem> items{{.clean_row = 4}};
    EXPECT_THROW(
        vocabulary_loss(kernels, a, t.blank({5, 6}), items, 1, 1, t.blank({4, 6}), t.blank({5, 6})),
        InternalError);
    return {};
  }));
}

TEST_F(KernelAgreement, TensorsElsewhereAreRefused) {
  Floats host(4, 1.0F);
  const TensorView elsewhere(host.data(), DType::float32, {4},
                             tested_->device() == Device::cuda ? Device::cpu : Device::cuda);
  DeviceTensor own(*tested_, account_, host, {4});
  EXPECT_THROW(tested_->add(elsewhere, own.view()), InternalError);
  EXPECT_THROW(tested_->add(own.view(), elsewhere), InternalError);
}

TEST_F(KernelAgreement, TheHostSetTakesHostTensors) {
  Floats x(3, 1.0F);
  Floats y(3, 2.0F);
  tested_->host().add(ConstTensorView(x.data(), {3}), TensorView(y.data(), {3}));
  EXPECT_EQ(y, Floats(3, 3.0F));
  EXPECT_EQ(tested_->host().device(), Device::cpu);
}

}  // namespace
}  // namespace jforge
