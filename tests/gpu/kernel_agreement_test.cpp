/// Equal bits if both sets do the same operations in the same order, else within float32 rounding.

#include "tests/gpu/kernel_agreement.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "runtime/error.h"
#include "tests/support/kernel_calls.h"

namespace jforge {
namespace {

using namespace jforge::test;
using ::testing::HasSubstr;
using ::testing::Not;

// ---- types

TEST_F(KernelAgreement, ConvertCopiesAndScales) {
  expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView y = t.blank({300, 70});
    t.kernels.convert(t(random_floats(300 * 70, 2), {300, 70}), y);
    const TensorView scaled = t.blank({300, 70}, DType::bfloat16);
    t.kernels.convert(y, scaled, 0.7F);
    t.kernels.convert(scaled, scaled, 3.1F);
    return {y, scaled};
  });
}

TEST_F(KernelAgreement, ConvertRoundsAndWidens) {
  Floats values = {0.0F,    -0.0F,    1.00390625F, 1.01171875F,
                   3.4e38F, -3.4e38F, 1e-40F,      std::numeric_limits<float>::infinity()};
  const Floats random = random_floats(992, 2, 1e3F);
  values.insert(values.end(), random.begin(), random.end());
  values[77] = std::bit_cast<float>(0x7F800001U);  // NaN; plain rounding of its bits would give
                                                   // infinity.
  expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
    const TensorView rounded = t.blank({1000}, DType::bfloat16);
    t.kernels.convert(t(values, {1000}), rounded);
    const TensorView widened = t.blank({1000});
    t.kernels.convert(rounded, widened);
    const TensorView copied = t.blank({1000}, DType::bfloat16);
    t.kernels.convert(rounded, copied);
    return {rounded, widened, copied};
  });
}

// ---- row-wise

TEST_F(KernelAgreement, Embedding) {
  const auto tokens = tokens_of(300, 19, 1);
  for (const DType type : kElementTypes) {
    expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
      const TensorView table = t.random({19, 70}, 2, type);
      const TensorView output = t.blank({300, 70}, type);
      embedding(t.kernels, tokens, table, output);
      const TensorView stream = t.blank({300, 70});
      embedding(t.kernels, tokens, table, stream);
      const TensorView gradient = t.random({19, 70}, 3);
      embedding_backward(t.kernels, tokens, t.random({300, 70}, 4, type), gradient);
      return {output, stream, gradient};
    });
  }
}

TEST_F(KernelAgreement, RmsNorm) {
  for (const std::int64_t columns : {1, 24, 130, 896}) {
    const std::int64_t rows = 261;  // more than one run of the column sums
    const Floats x = random_floats(rows * columns, 5, 3.0F);
    for (const DType type : kElementTypes) {
      if (type == DType::bfloat16 && columns > 130) {
        continue;  // the same arithmetic; saves time
      }
      // The residual stream stays float32 beside bfloat16 branches.
      for (const DType stream : {type, DType::float32}) {
        expect_close([&](Tensors& t) -> std::vector<TensorView> {
          const Shape shape{rows, columns};
          const TensorView source = t(x, shape, stream);
          const TensorView weight = t.random({columns}, 6, type);
          const TensorView y = t.blank(shape, type);
          const TensorView again = t.blank(shape, type);
          const TensorView inverse = t.blank({rows});
          t.kernels.rms_norm(source, weight, 1e-6F, y, inverse);
          t.kernels.rms_norm(source, weight, 1e-6F, again, {});
          const TensorView dx = t.random(shape, 7, stream);
          const TensorView dw = t.random({columns}, 8);
          t.kernels.rms_norm_backward(t.random(shape, 9, type), source, weight, inverse, dx, dw);
          return {y, again, inverse, dx, dw};
        });
      }
    }
  }
}

TEST_F(KernelAgreement, RotaryAndItsInverse) {
  std::vector<std::int32_t> positions(33);
  std::iota(positions.begin(), positions.end(), 0);
  positions[7] = 1500;  // forces the table to grow
  const Floats x = random_floats(33 * 3 * 10, 10);
  for (const DType type : kElementTypes) {
    expect_close([&](Tensors& t) -> std::vector<TensorView> {
      const TensorView forward = t(x, {33, 3, 10}, type);
      const TensorView both = t(x, {33, 3, 10}, type);
      const TensorView backward = t(x, {33, 3, 10}, type);
      rotary(t.kernels, forward, positions, {.theta = 10000.0});
      rotary(t.kernels, both, positions, {.theta = 1e6});
      rotary_backward(t.kernels, both, positions, {.theta = 1e6});
      rotary_backward(t.kernels, backward, positions, {.theta = 10000.0});
      const TensorView scaled = t(x, {33, 3, 10}, type);
      rotary(t.kernels, scaled, positions,
             {.theta = 10000.0, .scaling = RotaryScaling::linear, .factor = 3});
      return {forward, both, backward, scaled};
    });
  }
}

TEST_F(KernelAgreement, AddAndNormInOnePass) {
  for (const std::int64_t columns : {1, 130, 576}) {
    const Shape shape{19, columns};
    for (const DType type : kElementTypes) {
      for (const DType stream_type : {type, DType::float32}) {
        const Results results = run([&](Tensors& t) -> std::vector<TensorView> {
          const TensorView weight = t.random({columns}, 16, type);
          const TensorView stream = t.random(shape, 17, stream_type);
          const TensorView inverse = t.blank({19});
          const TensorView y = t.random(shape, 18, type);
          t.kernels.add_rms_norm(y, stream, weight, 1e-6F, y, inverse);
          const TensorView sum = t.random(shape, 17, stream_type);
          const TensorView expected_inverse = t.blank({19});
          const TensorView expected = t.blank(shape, type);
          t.kernels.add(t.random(shape, 18, type), sum);
          t.kernels.rms_norm(sum, weight, 1e-6F, expected, expected_inverse);
          return {y, stream, inverse, expected, sum, expected_inverse};
        });
        for (const auto& found : {results.tested, results.reference}) {
          for (std::size_t i = 0; i < 3; ++i) {
            EXPECT_TRUE(same_bits(found[i], found[i + 3])) << columns << " tensor " << i;
          }
        }
      }
    }
  }
}

TEST_F(KernelAgreement, RotaryOfQueriesAndKeysAtOnce) {
  const std::vector<std::int32_t> positions{0, 5, 3, 99};
  for (const std::int64_t dim : {6, 32}) {
    for (const DType type : kElementTypes) {
      const Results results = run([&](Tensors& t) -> std::vector<TensorView> {
        const TestPlan plan(t.kernels, kOneHead, batch_at(positions));
        const auto q = [&] { return t.random({4, 5, dim}, 19, type); };
        const auto k = [&] { return t.random({4, 2, dim}, 20, type); };
        const std::array<TensorView, 4> together{q(), k(), q(), k()};
        t.kernels.rotary(together[0], together[1], (*plan).rows(), {.theta = 1e4});
        t.kernels.rotary_backward(together[2], together[3], (*plan).rows(), {.theta = 1e4});
        const std::array<TensorView, 4> alone{q(), k(), q(), k()};
        t.kernels.rotary(alone[0], {}, (*plan).rows(), {.theta = 1e4});
        t.kernels.rotary({}, alone[1], (*plan).rows(), {.theta = 1e4});
        t.kernels.rotary_backward(alone[2], {}, (*plan).rows(), {.theta = 1e4});
        t.kernels.rotary_backward({}, alone[3], (*plan).rows(), {.theta = 1e4});
        return {together[0], together[1], together[2], together[3],
                alone[0],    alone[1],    alone[2],    alone[3]};
      });
      for (const auto& found : {results.tested, results.reference}) {
        for (std::size_t i = 0; i < 4; ++i) {
          EXPECT_TRUE(same_bits(found[i], found[i + 4])) << dim << " tensor " << i;
        }
      }
    }
  }
}

TEST_F(KernelAgreement, AlignmentChangesNoBit) {
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kColumns = 64;
  const Shape shape{kRows, kColumns};
  const std::vector<TokenId> tokens{2, 0, 1, 2, 2};
  const std::vector<std::int32_t> positions{4, 0, 7, 1, 1};
  const auto all = [&](Tensors& t, DType type, std::int64_t offset) {
    const auto place = [&](const Floats& values, Shape wanted, DType own) {
      Floats shifted(static_cast<std::size_t>(offset), 0.0F);
      shifted.insert(shifted.end(), values.begin(), values.end());
      const TensorView wide = t(shifted, {std::ssize(shifted)}, own);
      return TensorView(static_cast<std::byte*>(wide.raw()) + storage_bytes(offset, own), own,
                        wanted, wide.device());
    };
    unsigned seed = 21;
    const auto made = [&](Shape wanted, DType own) {
      return place(random_floats(wanted.elements(), ++seed), wanted, own);
    };
    const TensorView rows = made(shape, type);
    const TensorView stream = made(shape, DType::float32);
    const TensorView weight = made({kColumns}, type);
    const TensorView inverse = made({kRows}, DType::float32);
    const TensorView normed = made(shape, type);
    t.kernels.add_rms_norm(rows, stream, weight, 1e-6F, normed, inverse);
    const TensorView weight_gradient = made({kColumns}, DType::float32);
    const TensorView gradient = made(shape, DType::float32);
    t.kernels.rms_norm_backward(rows, stream, weight, inverse, gradient, weight_gradient);
    const TensorView embedded = made(shape, type);
    embedding(t.kernels, tokens, made({3, kColumns}, type), embedded);
    const TensorView heads = made({kRows, 2, kColumns / 2}, type);
    rotary(t.kernels, heads, positions, {.theta = 1e4});
    const TensorView activated = made(shape, type);
    t.kernels.swiglu(rows, embedded, activated);
    const TensorView gate_gradient = made(shape, type);
    const TensorView up_gradient = made(shape, type);
    t.kernels.swiglu_backward(activated, rows, embedded, gate_gradient, up_gradient);
    const TensorView sum = made(shape, DType::float32);
    t.kernels.add(rows, sum);
    const TensorView converted = made(shape, DType::bfloat16);
    t.kernels.convert(sum, converted);
    // A library may compute unaligned matrices differently.
    const TensorView product = t.blank({kRows, 24}, type);
    t.kernels.linear(t.random(shape, 41, type), t.random({24, kColumns}, 42, type),
                     made({24}, type), product);
    return std::vector<TensorView>{product,         stream,   normed,   inverse,   gradient,
                                   weight_gradient, embedded, heads,    activated, gate_gradient,
                                   up_gradient,     sum,      converted};
  };
  for (const DType type : kElementTypes) {
    const auto aligned = run_on(*tested_, [&](Tensors& t) { return all(t, type, 0); });
    const auto shifted = run_on(*tested_, [&](Tensors& t) { return all(t, type, 1); });
    for (std::size_t i = 0; i < aligned.size(); ++i) {
      EXPECT_TRUE(same_bits(aligned[i], shifted[i])) << "tensor " << i;
    }
  }
}

TEST_F(KernelAgreement, Swiglu) {
  Floats gate = random_floats(1000, 11, 4.0F);
  gate[0] = 100.0F;
  gate[1] = -100.0F;
  for (const DType type : kElementTypes) {
    expect_close([&](Tensors& t) -> std::vector<TensorView> {
      const TensorView y = t.blank({20, 50}, type);
      const TensorView dg = t.blank({20, 50}, type);
      const TensorView du = t.blank({20, 50}, type);
      const TensorView up = t.random({20, 50}, 12, type);
      t.kernels.swiglu(t(gate, {20, 50}, type), up, y);
      t.kernels.swiglu_backward(t.random({20, 50}, 13, type), t(gate, {20, 50}, type), up, dg, du);
      return {y, dg, du};
    });
  }
}

TEST_F(KernelAgreement, AddAndKeepRows) {
  for (const DType type : kElementTypes) {
    expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
      const TensorView y = t.random({7, 111}, 14, type);
      t.kernels.add(t.random({7, 111}, 15, type), y);
      const TensorView stream = t.random({7, 111}, 14);
      t.kernels.add(t.random({7, 111}, 15, type), stream);
      const TensorView kept = t.random({7, 111}, 16, type);
      const std::vector<std::int32_t> rows{1, 2, 5, 6};
      keep_rows(t.kernels, rows, kept);
      const TensorView none = t.random({7, 111}, 17, type);
      keep_rows(t.kernels, {}, none);
      return {y, stream, kept.rows(0, 4), none};
    });
  }
}

// ---- training

struct ProductCase {
  DType operands, result;
  std::int64_t m, n, k;
};
/// Mixed types, unaligned sizes, empty sums, a depth that a library may split.
constexpr ProductCase kProducts[] = {
    {DType::float32, DType::float32, 150, 37, 53}, {DType::bfloat16, DType::bfloat16, 150, 37, 53},
    {DType::bfloat16, DType::float32, 24, 64, 48}, {DType::bfloat16, DType::float32, 1, 17, 1},
    {DType::float32, DType::float32, 3, 4, 0},     {DType::bfloat16, DType::bfloat16, 3, 4, 0},
    {DType::bfloat16, DType::bfloat16, 0, 4, 3},   {DType::bfloat16, DType::bfloat16, 5, 16, 96}};

TEST_F(KernelAgreement, LinearForwardAndBackward) {
  for (const auto& [operands, result, m, n, k] : kProducts) {
    SCOPED_TRACE(dtype_name(operands) + " to " + dtype_name(result) + " of " + std::to_string(k) +
                 " steps");
    // Lambdas cannot capture structured bindings.
    const Shape input{m, k};
    const Shape matrix{n, k};
    const Shape output{m, n};
    expect_close([&, type = operands, to = result](Tensors& t) -> std::vector<TensorView> {
      const TensorView x = t.random(input, 20, type);
      const TensorView weight = t.random(matrix, 21, type);
      const TensorView plain = t.blank(output, to);
      const TensorView with_bias = t.blank(output, to);
      t.kernels.linear(x, weight, {}, plain);
      t.kernels.linear(x, weight, t.random({matrix[0]}, 22, type), with_bias);
      const TensorView dy = t.random(output, 23, type);
      const TensorView written = t.blank(input, to);
      // cuBLAS rounds a product before it adds it to a bfloat16 value, so the addend is made
      // larger.
      Floats large = random_floats(input.elements(), 24);
      std::ranges::for_each(large, [](float& value) { value += value < 0 ? -32.0F : 32.0F; });
      const TensorView added = t(large, input, to);
      t.kernels.linear_backward_input(dy, weight, written, false);
      t.kernels.linear_backward_input(dy, weight, added, true);
      const TensorView dw = t.random(matrix, 25);
      const TensorView dw_alone = t.random(matrix, 26);
      const TensorView db = t.random({matrix[0]}, 27);
      t.kernels.linear_backward_weight(dy, x, dw, db, true);
      t.kernels.linear_backward_weight(dy, x, dw_alone, {}, true);
      const TensorView dw_written = t.blank(matrix);
      t.kernels.linear_backward_weight(dy, x, dw_written, {}, false);
      return {plain, with_bias, written, added, dw, dw_alone, dw_written, db};
    });
  }
}

TEST_F(KernelAgreement, TypesThatDoNotFitAreRefused) {
  static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
    const Shape shape{4, 4};
    const TensorView a = t.blank(shape, DType::bfloat16);
    const TensorView c = t.blank(shape);
    EXPECT_THROW(t.kernels.linear(a, c, {}, a), InternalError);
    EXPECT_THROW(t.kernels.linear(c, c, {}, a), InternalError);
    EXPECT_THROW(t.kernels.linear_backward_weight(a, a, a, {}, true), InternalError);
    const std::vector<TokenId> tokens = {0, 1, 2, 3};
    EXPECT_THROW(embedding(t.kernels, tokens, c, a), InternalError);
    EXPECT_THROW(embedding_backward(t.kernels, tokens, a, a), InternalError);
    EXPECT_THROW(vocabulary_loss(t.kernels, a, c, {}, 1, 1, a, c), InternalError);
    EXPECT_THROW(vocabulary_loss(t.kernels, a, a, {}, 1, 1, a, a), InternalError);
    EXPECT_THROW(t.kernels.adamw({}, false, c, {c, c, c, c}), InternalError);
    return {};
  }));
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
    const Shape query{rows, heads, dim};
    const Shape key{rows, key_heads, dim};
    for (const DType type : kElementTypes) {
      if (type == DType::bfloat16 && heads * dim > 80) {
        continue;  // the same arithmetic; saves time
      }
      // So that the output's rounding does not count.
      Floats output;
      Floats log_sum_exp;
      expect_close(
          [&](Tensors& t) -> std::vector<TensorView> {
            const TensorView to = t.blank(query, type);
            const TensorView sums = t.blank({rows, heads});
            packed_attention(t.kernels, t.random(query, 30, type), t.random(key, 31, type),
                             t.random(key, 32, type), layout, to, sums);
            output = values_of(to);
            log_sum_exp = values_of(sums);
            return {to, sums};
          },
          2e-5);
      expect_close(
          [&](Tensors& t) -> std::vector<TensorView> {
            const TensorView dq = t.blank(query, type);
            const TensorView dk = t.blank(key, type);
            const TensorView dv = t.blank(key, type);
            packed_attention_backward(t.kernels, t.random(query, 33, type),
                                      t.random(query, 30, type), t.random(key, 31, type),
                                      t.random(key, 32, type), t(output, query, type),
                                      t(log_sum_exp, {rows, heads}), layout, dq, dk, dv);
            return {dq, dk, dv};
          },
          2e-5);
    }
  }
}

/// Not even multiplied by zero.
TEST_F(KernelAgreement, WhatARowDoesNotSeeIsNeverRead) {
  const PackedLayout layout = layout_with_prefixes();
  const std::int64_t rows = layout.num_rows;
  const Shape query{rows, 2, 8};
  const Shape key{rows, 1, 8};
  Floats k = random_floats(key.elements(), 41);
  Floats v = random_floats(key.elements(), 42);
  const std::int64_t poisoned = 49;  // the last clean row, seen by itself and rows 97–119
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

Floats squares_of(Floats values) {
  for (float& value : values) {
    value *= value;
  }
  return values;
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
    if (row % 7 == 3) {
      items.push_back(item);
    }
  }
  return items;
}

struct LossCase {
  DType type;      ///< of hidden states and head
  DType gradient;  ///< of the hidden states' gradient
  float consistency_scale;
  bool separate_teacher;
  double tolerance;
  ArLoss ar_loss = ArLoss::cross_entropy;
};
/// Rounding a logit gradient the other way changes a sum by 2⁻⁹ of its part.
constexpr LossCase kLosses[] = {
    {DType::float32, DType::float32, 0.7F, false, 2e-5},
    {DType::float32, DType::float32, 0.0F, false, 2e-5},
    {DType::float32, DType::float32, 0.7F, true, 2e-5},
    {DType::float32, DType::float32, 0.7F, true, 2e-5, ArLoss::distillation},
    {DType::bfloat16, DType::bfloat16, 0.7F, false, 5e-4},
    {DType::bfloat16, DType::float32, 0.0F, false, 5e-4},
    {DType::bfloat16, DType::bfloat16, 0.7F, true, 5e-4},
    {DType::bfloat16, DType::bfloat16, 0.0F, true, 5e-4, ArLoss::distillation}};

TEST_F(KernelAgreement, VocabularyLoss) {
  const std::int64_t rows = 2400;  // more gathered rows than a chunk takes
  const std::int64_t c = 12;
  const std::int64_t v = 300;
  for (const LossCase& loss : kLosses) {
    SCOPED_TRACE(dtype_name(loss.type) + ", consistency " + std::to_string(loss.consistency_scale) +
                 (loss.separate_teacher ? ", separate teacher" : "") +
                 (loss.ar_loss == ArLoss::distillation ? ", distillation" : ""));
    std::vector<LossItem> items = random_items(rows, static_cast<TokenId>(v));
    for (LossItem& item : items) {
      item.teacher_row = loss.separate_teacher
                             ? static_cast<std::int32_t>(rows / 2 - 1) - item.clean_row
                             : item.teacher_row;
    }
    std::vector<VocabularyLossSums> sums;
    expect_close(
        [&](Tensors& t) -> std::vector<TensorView> {
          const TensorView dh = t.blank({rows, c}, loss.gradient);
          const TensorView dhead = t.random({v, c}, 50);
          LossTeacher teacher;
          if (loss.separate_teacher) {
            teacher = {.hidden = t.random({rows / 2, c}, 53, loss.type),
                       .head = t.random({v, c}, 54, loss.type)};
          }
          sums.push_back(vocabulary_loss(
              t.kernels, t.random({rows, c}, 51, loss.type), t.random({v, c}, 52, loss.type), items,
              loss.consistency_scale, 1.3F, dh, dhead, teacher, loss.ar_loss));
          return {dh, dhead};
        },
        loss.tolerance);
    ASSERT_EQ(sums.size(), 2U);
    EXPECT_NEAR(sums[0].consistency, sums[1].consistency, 1e-5 * sums[1].consistency);
    EXPECT_NEAR(sums[0].autoregressive, sums[1].autoregressive, 1e-5 * sums[1].autoregressive);
    EXPECT_EQ(sums[1].consistency > 0, loss.consistency_scale != 0.0F);
  }
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

/// Empty, partial and whole blocks; also unaligned bfloat16.
TEST_F(KernelAgreement, ContentHash) {
  for (const DType type : kElementTypes) {
    for (const std::int64_t count : {0, 1, 5000, 16384, 32768, 300001}) {
      for (const std::int64_t first : {0, 1, 2}) {
        if (count == 300001 && first > 0) {
          continue;  // many blocks; saves time
        }
        std::vector<std::uint64_t> hashes;
        static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
          const TensorView all = t.random({count + first}, 61, type);
          hashes.push_back(content_hash(t.kernels, all.rows(first, count + first), 3 * first));
          return {};
        }));
        EXPECT_EQ(hashes[0], hashes[1]) << count << " from " << first;
      }
    }
  }
}

/// More parts than a launch takes; parts of several blocks.
TEST_F(KernelAgreement, ContentHashOfParts) {
  for (const auto& [parts, size] : {std::pair<std::int64_t, std::int64_t>{1, 300},
                                    {16, 300},
                                    {17, 300},
                                    {40, 48},
                                    {3, 20000}}) {
    std::vector<std::vector<std::int64_t>> sums;
    static_cast<void>(run([&](Tensors& t) -> std::vector<TensorView> {
      const TensorView x = t.random({parts * size}, 62);
      MemoryAccount account("test hashes");
      ResultHashes hashes(t.kernels, account);
      hashes.reset(parts);
      t.kernels.content_hash_of_parts(x, 9, hashes.part(0, parts));
      const std::span<const std::int64_t> read = hashes.read();
      sums.emplace_back(read.begin(), read.end());
      for (std::int64_t part = 0; part < parts; ++part) {
        EXPECT_EQ(static_cast<std::uint64_t>(read[static_cast<std::size_t>(part)]),
                  content_hash(t.kernels, x.rows(part * size, (part + 1) * size), 9))
            << part << " of " << parts;
      }
      return {};
    }));
    EXPECT_EQ(sums[0], sums[1]);
  }
}

TEST_F(KernelAgreement, AdamWWithItsCopyAndHashes) {
  // 12000: float32 parts fill two hash blocks, the copy one.
  for (const std::int64_t count : {7, 12000, 20011, 32768}) {
    for (const bool decay : {true, false}) {
      std::vector<std::vector<std::int64_t>> hashes;
      expect_same_bits([&](Tensors& t) -> std::vector<TensorView> {
        const Shape shape{count};
        const AdamWState state{t.random(shape, 70), t(random_floats(count, 71, 0.1F), shape),
                               t(squares_of(random_floats(count, 72, 0.1F)), shape),
                               t.blank(shape, DType::bfloat16)};
        AdamWState without = state;
        without.rounded = {};
        AdamWSettings settings{
            .learning_rate = 1e-2F, .weight_decay = 0.1F, .gradient_scale = 0.5F};
        const TensorView gradient = t.random(shape, 73);
        MemoryAccount account("hashes");
        ResultHashes sums(t.kernels, account);
        sums.reset(12);
        settings.step = 3;
        t.kernels.adamw(settings, decay, gradient, state, {sums.part(0, 4), sums.part(4, 4), 7});
        settings.step = 4;
        t.kernels.adamw(settings, decay, gradient, without, {{}, sums.part(8, 4), 8});
        settings.step = 5;
        t.kernels.adamw(settings, decay, gradient, without);
        const std::span<const std::int64_t> read = sums.read();
        hashes.emplace_back(read.begin(), read.end());
        return {state.parameter, state.first_moment, state.second_moment, state.rounded};
      });
      ASSERT_EQ(hashes.size(), 2U);
      EXPECT_EQ(hashes[0], hashes[1]) << count << " elements";
      EXPECT_EQ(hashes[0][11], 0) << "of no copy";
    }
  }
}

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
    t.kernels.linear_backward_weight(output.reshaped({rows, 96}), dq.reshaped({rows, 96}), dw, db,
                                     true);
    return {dq, dk, dv, dw, db};
  };
  const std::vector<Floats> first = run_on(*tested_, work);
  const std::vector<Floats> second = run_on(*tested_, work);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(same_bits(first[i], second[i])) << "tensor " << i;
  }
}

/// Counted by the emulated cuBLASLt only.
std::optional<std::uint64_t> algorithms_asked() {
  using Count = std::uint64_t (*)();
  const auto asked =
      reinterpret_cast<Count>(::dlsym(RTLD_DEFAULT, "jforge_emulated_heuristic_calls"));
  return asked == nullptr ? std::nullopt : std::optional(asked());
}

/// Shared memory of an A100, and of sm_86 and sm_89.
TEST_F(KernelAgreement, AttentionOfSmallerTilesHasTheSameBits) {
  if (!algorithms_asked()) {
    GTEST_SKIP() << "a real device has the memory that it has";
  }
  const PackedLayout layout = layout_with_prefixes();
  for (const auto& [heads, dim] : {std::pair{7, 128}, {2, 256}}) {
    const Shape query{layout.num_rows, heads, dim};
    const Shape key{layout.num_rows, 1, dim};
    const auto results = [&] {
      const std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
      return run_on(*kernels, [&](Tensors& t) -> std::vector<TensorView> {
        const TensorView q = t.random(query, 1);
        const TensorView k = t.random(key, 2);
        const TensorView v = t.random(key, 3);
        const TensorView output = t.blank(query);
        const TensorView sums = t.blank({query[0], query[1]});
        packed_attention(t.kernels, q, k, v, layout, output, sums);
        const TensorView dq = t.blank(query);
        const TensorView dk = t.blank(key);
        const TensorView dv = t.blank(key);
        packed_attention_backward(t.kernels, t.random(query, 4), q, k, v, output, sums, layout, dq,
                                  dk, dv);
        return {output, sums, dq, dk, dv};
      });
    };
    const std::vector<Floats> large = results();
    ASSERT_EQ(setenv("JFORGE_EMULATED_SHARED_KIB", "99", 1), 0);
    const std::vector<Floats> small = results();
    ASSERT_EQ(unsetenv("JFORGE_EMULATED_SHARED_KIB"), 0);
    for (std::size_t i = 0; i < large.size(); ++i) {
      EXPECT_TRUE(same_bits(large[i], small[i])) << "tensor " << i << " of heads of " << dim;
    }
  }
}

TEST_F(KernelAgreement, WarmProductsAskForNoAlgorithm) {
  static_cast<void>(run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const TensorView x = t.random({32, 64}, 1, DType::bfloat16);
    const TensorView y = t.blank({32, 64}, DType::bfloat16);
    const TensorView weight = t.random({64, 64}, 2, DType::bfloat16);
    const TensorView gradient = t.random({64, 64}, 3);
    const auto step = [&] {
      t.kernels.linear(x, weight, {}, y);
      t.kernels.linear_backward_input(y, weight, x, true);
      t.kernels.linear_backward_weight(y, x, gradient, {}, true);
    };
    const std::optional<std::uint64_t> before = algorithms_asked();
    step();
    const std::optional<std::uint64_t> after = algorithms_asked();
    EXPECT_EQ(after.value_or(3), before.value_or(0) + 3);
    step();
    EXPECT_EQ(algorithms_asked(), after);
    return {};
  }));
}

/// The least recently used plan is dropped.
TEST_F(KernelAgreement, ProductsOfAnyNumberOfShapesTakeBoundedMemory) {
  static_cast<void>(run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    constexpr std::int64_t kShapes = 4096 + 100;  // more than CudaProducts::kMostPlans
    const TensorView x = t.random({kShapes, 1}, 1);
    const TensorView y = t.blank({kShapes, 1});
    const TensorView weight = t.random({1, 1}, 2);
    const auto of_rows = [&](std::int64_t rows) {
      t.kernels.linear(x.rows(0, rows), weight, {}, y.rows(0, rows));
    };
    for (std::int64_t rows = 1; rows <= kShapes; ++rows) {
      of_rows(rows);
      of_rows(1);
    }
    const std::optional<std::uint64_t> before = algorithms_asked();
    of_rows(kShapes);
    of_rows(1);
    EXPECT_EQ(algorithms_asked(), before);
    of_rows(2);
    EXPECT_EQ(algorithms_asked().value_or(1), before.value_or(0) + 1);
    return {};
  }));
}

/// Memory operations are outside the kernels' queue.
TEST_F(KernelAgreement, MemoryKeepsItsOrderWithKernels) {
  constexpr std::int64_t kCount = 100000;
  const Floats ones(kCount, 1.0F);
  static_cast<void>(run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const TensorView sum = t.blank({kCount});
    for (int i = 0; i < 4; ++i) {
      zero_tensor(sum);
      for (int k = 0; k < 3; ++k) {
        const DeviceTensor added(t.kernels, account_, ones, {kCount});
        t.kernels.add(added.view(), sum);
      }
      EXPECT_EQ(values_of(sum), Floats(kCount, 3.0F));
    }
    const TensorView added = t(ones, {kCount});
    for (int i = 0; i < 2; ++i) {
      zero_tensor(sum);
      t.kernels.add(added, sum);
      EXPECT_EQ(values_of(sum), ones);
    }
    return {};
  }));
}

// ---- refusals

TEST_F(KernelAgreement, OutOfMemorySaysWhatAskedAndWhatHoldsTheRest) {
  const Buffer held(4096, account_, tested_->device(), MemoryUse::weights);
  try {
    const Buffer asked(std::size_t{1} << 50, account_, tested_->device(), MemoryUse::activations);
    ADD_FAILURE() << "a device of a pebibyte";
  } catch (const EnvironmentError& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, HasSubstr("1125899906842624 bytes for test activations"));
    EXPECT_THAT(message, HasSubstr("test weights 4096 bytes"));
  }
}

/// They take gigabytes for a large model.
TEST_F(KernelAgreement, OutOfMemoryNamesWhatTheKernelsHold) {
  static_cast<void>(run_on(*tested_, [&](Tensors& t) -> std::vector<TensorView> {
    const std::vector<LossItem> items = random_items(40, 30);
    const TensorView dh = t.blank({40, 8});
    const TensorView dhead = t.blank({30, 8});
    static_cast<void>(vocabulary_loss(t.kernels, t.random({40, 8}, 51), t.random({30, 8}, 52),
                                      items, 0.7F, 1.3F, dh, dhead));
    t.kernels.linear(dh, dhead, {}, t.blank({40, 30}));
    const TestPlan plan(t.kernels, kOneHead, batch_of_rows(std::vector<TokenId>{0, 1}));
    try {
      const Buffer asked(std::size_t{1} << 50, account_, tested_->device());
      ADD_FAILURE() << "a device of a pebibyte";
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), HasSubstr("vocabulary loss activations "));
      EXPECT_THAT(error.what(), HasSubstr(" staging "));
      EXPECT_THAT(error.what(), HasSubstr("products activations 33554432 bytes"));
      EXPECT_THAT(error.what(), Not(HasSubstr("CUDA kernels other")));
    }
    return {};
  }));
}

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
    EXPECT_THROW(keep_rows(kernels, descending, a), InternalError);
    PackedLayout gap;
    gap.num_rows = 4;
    gap.segments = {{0, 2, 0, 0, 0}, {3, 4, 3, 3, 3}};
    EXPECT_THROW(
        packed_attention(kernels, heads, heads, heads, gap, t.blank({4, 3, 2}), t.blank({4, 3})),
        InternalError);
    const FullSlots slots(1, 1);
    const Shape pages = slots.shape(3, 2);
    const PagedCache cache{t.blank(pages), t.blank(pages), slots.table()};
    const std::vector<CacheRow> outside{{0, 0}, {0, 1}, {0, 2}, {0, 64}};
    EXPECT_THROW(cache_write(kernels, outside, heads, heads, cache), InternalError);
    EXPECT_THROW(cached_attention(kernels, outside, heads, cache, t.blank({4, 3, 2})),
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
