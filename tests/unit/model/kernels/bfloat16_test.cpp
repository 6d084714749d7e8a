// Mixed precision. Row-wise functions and attention must equal "widen, compute in float32, round
// once" bit for bit, so that the float32 tests cover their mathematics; products have their own
// order of addition and a bound against double.

#include <limits>

#include "tests/support/kernel_calls.h"
#include "tests/unit/model/kernels/kernel_test_support.h"

namespace jforge::test {
namespace {

class Bfloat16 : public KernelTest {};
JFORGE_KERNEL_SUITE(Bfloat16);

/// Half a bfloat16 unit in the last place, relative.
constexpr double kRounding = 1.0 / 512;

BFloat16s random_rounded(std::int64_t count, unsigned seed, float scale = 1.0F) {
  return rounded(random_floats(count, seed, scale));
}

bool same(const BFloat16s& a, const BFloat16s& b) { return a == b; }

/// ‖a − b‖ / ‖b‖.
double relative_distance(const Floats& a, const Doubles& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += b[i] * b[i];
  }
  return a.size() == b.size() ? std::sqrt(difference / size) : 1e30;
}

// ---- products

struct ProductShape {
  std::int64_t m, n, k;
};

/// Partial tiles, odd depths, several blocks of K (2048 steps), several threads.
const std::vector<ProductShape> kShapes = {
    {1, 1, 1},     {1, 17, 5},    {7, 16, 33},  {25, 31, 2},    {6, 64, 64},   {97, 40, 130},
    {5, 70, 2049}, {3, 1090, 27}, {9, 5, 4101}, {131, 129, 65}, {300, 20, 200}};

/// An operand of a sum over K: element `at` + i · `step`.
struct Line {
  const BFloat16s& values;
  std::int64_t at, step;
  [[nodiscard]] float operator()(std::int64_t i) const {
    return to_float(values[static_cast<std::size_t>(at + i * step)]);
  }
};

/// k fused multiply-adds err, to first order, by at most k · 2^-24 of the sum of magnitudes.
void expect_near_exact(const Line& a, const Line& b, std::int64_t k, float start, float sum) {
  double exact = static_cast<double>(start);
  double magnitude = std::abs(exact);
  for (std::int64_t i = 0; i < k; ++i) {
    const double product = static_cast<double>(a(i)) * static_cast<double>(b(i));
    exact += product;
    magnitude += std::abs(product);
  }
  ASSERT_LE(std::abs(static_cast<double>(sum) - exact),
            static_cast<double>(k + 1) * std::ldexp(magnitude, -24));
}

class Bfloat16Order : public ::testing::TestWithParam<std::tuple<InstructionSet, BFloat16Sums>> {
 protected:
  void SetUp() override {
    const auto [set, sums] = GetParam();
    if (!instruction_set_available(set)) {
      GTEST_SKIP() << "this processor lacks the instruction set";
    }
    kernels_ = make_cpu_kernel_set(set, sums);
  }
  [[nodiscard]] static float sum(const Line& a, const Line& b, std::int64_t k, float start) {
    return ordered_sum(std::get<BFloat16Sums>(GetParam()), a, b, k, start);
  }
  std::unique_ptr<KernelSet> kernels_;
};
INSTANTIATE_TEST_SUITE_P(
    InstructionSets, Bfloat16Order,
    ::testing::Combine(::testing::Values(InstructionSet::avx2, InstructionSet::avx512,
                                         InstructionSet::avx512_bf16, InstructionSet::amx_bf16),
                       ::testing::ValuesIn(kBFloat16Sums)));

TEST_P(Bfloat16Order, LinearIsTheSumInOrderThenTheBias) {
  for (const auto [m, n, k] : kShapes) {
    const BFloat16s x = random_rounded(m * k, 1);
    const BFloat16s w = random_rounded(n * k, 2);
    const BFloat16s bias = random_rounded(n, 3);
    for (const int threads : {1, 2, 3}) {
      const ThreadCount scope(threads);
      for (const bool with_bias : {false, true}) {
        const ConstTensorView added = with_bias ? view(bias, {n}) : ConstTensorView();
        Floats y(at(m * n), std::numeric_limits<float>::quiet_NaN());
        kernels_->linear(view(x, {m, k}), view(w, {n, k}), added, view(y, {m, n}));
        BFloat16s short_y(at(m * n + 1), {0xFFFF});
        kernels_->linear(view(x, {m, k}), view(w, {n, k}), added,
                         TensorView(short_y.data(), {m, n}));
        for (std::int64_t i = 0; i < m * n; ++i) {
          const Line a{x, i / n * k, 1};
          const Line b{w, i % n * k, 1};
          const float expected = sum(a, b, k, 0);
          expect_near_exact(a, b, k, 0, expected);
          ASSERT_EQ(y[at(i)], with_bias ? expected + to_float(bias[at(i % n)]) : expected)
              << m << "x" << n << "x" << k << " element " << i << ", " << threads << " threads";
        }
        EXPECT_EQ(short_y.back().bits, 0xFFFF) << "written behind the end";
        short_y.pop_back();
        EXPECT_TRUE(same(short_y, rounded(y))) << m << "x" << n << "x" << k;
      }
    }
  }
}

TEST_P(Bfloat16Order, GradientsOfLinearAreSumsInOrder) {
  for (const auto [n, k, m] : kShapes) {
    const BFloat16s dy = random_rounded(m * n, 4);
    const BFloat16s x = random_rounded(m * k, 5);
    const BFloat16s w = random_rounded(n * k, 6);
    const BFloat16s dx_before = random_rounded(m * k, 7);
    const Floats dw_before = random_floats(n * k, 8);
    const Floats db_before = random_floats(n, 9);
    for (const int threads : {1, 2, 3}) {
      const ThreadCount scope(threads);
      for (const bool accumulate : {false, true}) {
        BFloat16s dx = dx_before;
        Floats long_dx = widened(dx_before);
        kernels_->linear_backward_input(view(dy, {m, n}), view(w, {n, k}), view(dx, {m, k}),
                                        accumulate);
        kernels_->linear_backward_input(view(dy, {m, n}), view(w, {n, k}), view(long_dx, {m, k}),
                                        accumulate);
        for (std::int64_t i = 0; i < m * k; ++i) {
          const float start = accumulate ? to_float(dx_before[at(i)]) : 0;
          ASSERT_EQ(long_dx[at(i)], sum({dy, i / k * n, 1}, {w, i % k, k}, n, start))
              << m << "x" << n << "x" << k << " input element " << i << ", " << threads
              << " threads";
        }
        EXPECT_TRUE(same(dx, rounded(long_dx))) << m << "x" << n << "x" << k;
      }
      Floats dw = dw_before;
      Floats db = db_before;
      kernels_->linear_backward_weight(view(dy, {m, n}), view(x, {m, k}), view(dw, {n, k}),
                                       view(db, {n}), true);
      for (std::int64_t i = 0; i < n * k; ++i) {
        ASSERT_EQ(dw[at(i)], sum({dy, i / k, n}, {x, i % k, k}, m, dw_before[at(i)]))
            << m << "x" << n << "x" << k << " weight element " << i << ", " << threads
            << " threads";
      }
      for (std::int64_t i = 0; i < n; ++i) {
        float expected = db_before[at(i)];
        for (std::int64_t row = 0; row < m; ++row) {
          expected += to_float(dy[at(row * n + i)]);
        }
        ASSERT_EQ(db[at(i)], expected);
      }
    }
  }
}

TEST_P(Bfloat16, ResultsOfEmptySums) {
  const BFloat16s nothing;
  const BFloat16s bias = rounded({1, 2, 3});
  BFloat16s y = rounded(Floats(6, 7.0F));
  kernels_->linear(view(nothing, {2, 0}), view(nothing, {3, 0}), view(bias, {3}), view(y, {2, 3}));
  EXPECT_TRUE(same(y, rounded({1, 2, 3, 1, 2, 3})));
  kernels_->linear_backward_input(view(nothing, {2, 0}), view(nothing, {0, 3}), view(y, {2, 3}),
                                  true);
  EXPECT_TRUE(same(y, rounded({1, 2, 3, 1, 2, 3})));
  kernels_->linear_backward_input(view(nothing, {2, 0}), view(nothing, {0, 3}), view(y, {2, 3}),
                                  false);
  EXPECT_TRUE(same(y, rounded(Floats(6, 0.0F))));
}

TEST_P(Bfloat16, NaNStaysInItsRowAndBehindAnOddDepth) {
  constexpr std::int64_t kSize = 41;
  Floats x = random_floats(kSize * kSize, 1);
  x[3 * kSize] = std::numeric_limits<float>::quiet_NaN();  // after row 2's last step
  const BFloat16s short_x = rounded(x);
  const BFloat16s w = random_rounded(kSize * kSize, 2);
  BFloat16s y(kSize * kSize);
  const Shape shape{kSize, kSize};
  kernels_->linear(view(short_x, shape), view(w, shape), {}, view(y, shape));
  for (std::int64_t i = 0; i < kSize * kSize; ++i) {
    EXPECT_EQ(std::isnan(to_float(y[at(i)])), i / kSize == 3) << i;
  }
}

TEST_P(Bfloat16Order, DenormalsCountAsZero) {
  const auto product_of = [&](float x, float w, float bias) {
    const BFloat16s a = rounded({x});
    const BFloat16s b = rounded({w});
    const Floats added = {bias};
    Floats y(1);
    kernels_->linear(view(a, {1, 1}), view(b, {1, 1}), view(added, {1}), view(y, {1, 1}));
    return y[0];
  };
  const float tiny = std::ldexp(1.0F, -130);
  EXPECT_EQ(product_of(tiny, std::ldexp(1.0F, 20), 0), 0);
  EXPECT_EQ(product_of(std::ldexp(1.0F, -100), std::ldexp(1.0F, -30), 0), 0);
  EXPECT_EQ(product_of(0, 0, tiny), 0);
  // The product leaves the mode as it was.
  Floats kept = {tiny};
  kernels_->add(view(kept, {1}), view(kept, {1}));
  EXPECT_EQ(kept[0], 2 * tiny);
}

TEST_P(Bfloat16, RoundingIsThatOfTheElementType) {
  Floats values = {0.0F,
                   -0.0F,
                   1.0F,
                   1.00390625F,
                   1.01171875F,
                   3.4e38F,
                   -3.4e38F,
                   1e-40F,
                   std::numeric_limits<float>::infinity(),
                   std::numeric_limits<float>::quiet_NaN()};
  for (const float value : random_floats(1000, 1, 1e3F)) {
    values.push_back(value);
  }
  values.push_back(std::bit_cast<float>(0x7F800001U));  // NaN; plain rounding of its bits would
                                                        // give infinity
  while (values.size() < 70001) {  // several runs and threads, and a partial vector
    values.push_back(values[values.size() - 1000] * 1.5F);
  }
  const Shape shape{static_cast<std::int64_t>(values.size())};
  for (const int threads : {1, 3}) {
    const ThreadCount scope(threads);
    BFloat16s shorts(values.size());
    kernels_->convert(view(values, shape), view(shorts, shape));
    EXPECT_TRUE(same(shorts, rounded(values)));
    Floats longs(values.size());
    kernels_->convert(view(shorts, shape), view(longs, shape));
    EXPECT_TRUE(same_bits(longs, widened(shorts)));
    Floats copied(values.size());
    kernels_->convert(view(values, shape), view(copied, shape));
    EXPECT_TRUE(same_bits(copied, values));
    BFloat16s copied_shorts(values.size());
    kernels_->convert(view(shorts, shape), view(copied_shorts, shape));
    EXPECT_TRUE(same(copied_shorts, shorts));
    kernels_->convert(view(values, shape), view(copied_shorts, shape), 0.75F);
    kernels_->convert(view(copied, shape), view(copied, shape), 0.75F);
    std::ranges::transform(values, longs.begin(), [](float value) { return 0.75F * value; });
    EXPECT_TRUE(same_bits(copied, longs));
    EXPECT_TRUE(same(copied_shorts, rounded(longs)));
  }
}

// ---- row-wise: widen, the same arithmetic, round once

/// A small odd shape, and one for several threads.
const std::vector<Shape> kMatrices = {Shape{3, 37}, Shape{301, 519}};

TEST_P(Bfloat16, RmsNorm) {
  for (const Shape& shape : kMatrices) {
    const Shape row{shape[1]};
    const Shape column{shape[0]};
    const BFloat16s x = random_rounded(shape.elements(), 1);
    const BFloat16s weight = random_rounded(shape[1], 2);
    const BFloat16s dy = random_rounded(shape.elements(), 3);
    const BFloat16s dx_before = random_rounded(shape.elements(), 4);
    Floats y(x.size());
    Floats inverse(at(shape[0]));
    Floats dx = widened(dx_before);
    Floats dw(weight.size(), 0.5F);
    const Floats long_x = widened(x);
    const Floats long_weight = widened(weight);
    const Floats long_dy = widened(dy);
    kernels_->rms_norm(view(long_x, shape), view(long_weight, row), 1e-3F, view(y, shape),
                       view(inverse, column));
    kernels_->rms_norm_backward(view(long_dy, shape), view(long_x, shape), view(long_weight, row),
                                view(inverse, column), view(dx, shape), view(dw, row));
    for (const int threads : {1, 3}) {
      const ThreadCount scope(threads);
      BFloat16s short_y(x.size());
      Floats short_inverse(inverse.size());
      kernels_->rms_norm(view(x, shape), view(weight, row), 1e-3F, view(short_y, shape),
                         view(short_inverse, column));
      EXPECT_TRUE(same(short_y, rounded(y)));
      EXPECT_TRUE(same_bits(short_inverse, inverse));
      BFloat16s short_dx = dx_before;
      Floats short_dw(weight.size(), 0.5F);
      kernels_->rms_norm_backward(view(dy, shape), view(x, shape), view(weight, row),
                                  view(inverse, column), view(short_dx, shape),
                                  view(short_dw, row));
      EXPECT_TRUE(same(short_dx, rounded(dx)));
      EXPECT_TRUE(same_bits(short_dw, dw));
      Floats long_dx = widened(dx_before);  // A float32 residual stream beside bfloat16 branches.
      kernels_->rms_norm(view(long_x, shape), view(weight, row), 1e-3F, view(short_y, shape), {});
      EXPECT_TRUE(same(short_y, rounded(y)));
      kernels_->rms_norm_backward(view(dy, shape), view(long_x, shape), view(weight, row),
                                  view(inverse, column), view(long_dx, shape), view(short_dw, row));
      EXPECT_TRUE(same_bits(long_dx, dx));
    }
  }
}

TEST_P(Bfloat16, SwigluAndAdd) {
  for (const Shape& shape : kMatrices) {
    const BFloat16s gate = random_rounded(shape.elements(), 4, 3.0F);
    const BFloat16s up = random_rounded(shape.elements(), 5);
    const BFloat16s dy = random_rounded(shape.elements(), 6);
    const Floats long_gate = widened(gate);
    const Floats long_up = widened(up);
    const Floats long_dy = widened(dy);
    Floats y(gate.size());
    Floats dg(gate.size());
    Floats du(gate.size());
    kernels_->swiglu(view(long_gate, shape), view(long_up, shape), view(y, shape));
    kernels_->swiglu_backward(view(long_dy, shape), view(long_gate, shape), view(long_up, shape),
                              view(dg, shape), view(du, shape));
    Floats sum = long_up;
    kernels_->add(view(long_gate, shape), view(sum, shape));
    for (const int threads : {1, 3}) {
      const ThreadCount scope(threads);
      BFloat16s short_y(gate.size());
      BFloat16s short_dg(gate.size());
      BFloat16s short_du(gate.size());
      kernels_->swiglu(view(gate, shape), view(up, shape), view(short_y, shape));
      kernels_->swiglu_backward(view(dy, shape), view(gate, shape), view(up, shape),
                                view(short_dg, shape), view(short_du, shape));
      EXPECT_TRUE(same(short_y, rounded(y)));
      EXPECT_TRUE(same(short_dg, rounded(dg)));
      EXPECT_TRUE(same(short_du, rounded(du)));
      BFloat16s short_sum = up;
      kernels_->add(view(gate, shape), view(short_sum, shape));
      EXPECT_TRUE(same(short_sum, rounded(sum)));
      Floats mixed = long_up;
      kernels_->add(view(gate, shape), view(mixed, shape));
      EXPECT_TRUE(same_bits(mixed, sum));
    }
  }
}

TEST_P(Bfloat16, Rotary) {
  for (const Shape& shape : {Shape{3, 2, 36}, Shape{300, 5, 64}}) {
    std::vector<std::int32_t> positions;
    for (std::int32_t i = 0; i < shape[0]; ++i) {
      positions.push_back(7 * i % 1000);
    }
    const BFloat16s x = random_rounded(shape.elements(), 7);
    Floats y = widened(x);
    rotary(*kernels_, view(y, shape), positions, {.theta = 1e4});
    Floats back = widened(rounded(y));
    rotary_backward(*kernels_, view(back, shape), positions, {.theta = 1e4});
    for (const int threads : {1, 3}) {
      const ThreadCount scope(threads);
      BFloat16s short_x = x;
      rotary(*kernels_, view(short_x, shape), positions, {.theta = 1e4});
      EXPECT_TRUE(same(short_x, rounded(y)));
      rotary_backward(*kernels_, view(short_x, shape), positions, {.theta = 1e4});
      EXPECT_TRUE(same(short_x, rounded(back)));
    }
  }
}

TEST_P(Bfloat16, EmbeddingAndItsGradient) {
  const std::vector<TokenId> tokens = {4, 0, 4, 2};
  const Shape table_shape{5, 37};
  const Shape output_shape{4, 37};
  const BFloat16s table = random_rounded(table_shape.elements(), 8);
  const BFloat16s dy = random_rounded(output_shape.elements(), 9);
  BFloat16s output(dy.size());
  embedding(*kernels_, tokens, view(table, table_shape), view(output, output_shape));
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    EXPECT_TRUE(std::equal(table.begin() + tokens[t] * 37, table.begin() + tokens[t] * 37 + 37,
                           output.begin() + static_cast<std::ptrdiff_t>(t) * 37));
  }
  Floats long_output(dy.size());
  embedding(*kernels_, tokens, view(table, table_shape), view(long_output, output_shape));
  EXPECT_TRUE(same_bits(long_output, widened(output)));
  Floats gradient(table.size(), 1.0F);
  Floats expected(table.size(), 1.0F);
  const Floats long_dy = widened(dy);
  embedding_backward(*kernels_, tokens, view(dy, output_shape), view(gradient, table_shape));
  embedding_backward(*kernels_, tokens, view(long_dy, output_shape), view(expected, table_shape));
  EXPECT_TRUE(same_bits(gradient, expected));
}

// ---- attention

TEST_P(Bfloat16, Attention) {
  PackedLayout layout;
  layout.segments = {{0, 70, 0, 0, 0}, {70, 90, 0, 40, 70}, {90, 171, 90, 90, 90}};
  layout.num_rows = 171;
  for (const std::int64_t dim : {20, 64}) {
    const Shape query{171, 4, dim};
    const Shape key{171, 2, dim};
    const Shape sums{171, 4};
    const BFloat16s q = random_rounded(query.elements(), 1);
    const BFloat16s k = random_rounded(key.elements(), 2);
    const BFloat16s v = random_rounded(key.elements(), 3);
    const BFloat16s output_gradient = random_rounded(query.elements(), 4);
    const Floats long_q = widened(q);
    const Floats long_k = widened(k);
    const Floats long_v = widened(v);
    const Floats long_gradient = widened(output_gradient);
    Floats output(q.size());
    Floats log_sums(at(sums.elements()));
    packed_attention(*kernels_, view(long_q, query), view(long_k, key), view(long_v, key), layout,
                     view(output, query), view(log_sums, sums));
    const BFloat16s kept = rounded(output);
    const Floats long_kept = widened(kept);
    Floats dq(q.size());
    Floats dk(k.size());
    Floats dv(k.size());
    packed_attention_backward(*kernels_, view(long_gradient, query), view(long_q, query),
                              view(long_k, key), view(long_v, key), view(long_kept, query),
                              view(log_sums, sums), layout, view(dq, query), view(dk, key),
                              view(dv, key));
    for (const int threads : {1, 3}) {
      const ThreadCount scope(threads);
      BFloat16s short_output(q.size());
      Floats short_sums(log_sums.size());
      packed_attention(*kernels_, view(q, query), view(k, key), view(v, key), layout,
                       view(short_output, query), view(short_sums, sums));
      EXPECT_TRUE(same(short_output, kept));
      EXPECT_TRUE(same_bits(short_sums, log_sums));
      BFloat16s short_dq(q.size());
      BFloat16s short_dk(k.size());
      BFloat16s short_dv(k.size());
      packed_attention_backward(*kernels_, view(output_gradient, query), view(q, query),
                                view(k, key), view(v, key), view(kept, query), view(log_sums, sums),
                                layout, view(short_dq, query), view(short_dk, key),
                                view(short_dv, key));
      EXPECT_TRUE(same(short_dq, rounded(dq)));
      EXPECT_TRUE(same(short_dk, rounded(dk)));
      EXPECT_TRUE(same(short_dv, rounded(dv)));
    }
  }
}

// ---- loss

TEST_P(Bfloat16, VocabularyLossFollowsFloat32OnTheSameNumbers) {
  constexpr std::int64_t kPairs = 700;  // Enough items for several chunks of 1024 rows.
  const Shape hidden_shape{2 * kPairs, 19};
  const Shape head_shape{83, 19};
  const BFloat16s hidden = random_rounded(hidden_shape.elements(), 1);
  const BFloat16s head = random_rounded(head_shape.elements(), 2, 0.5F);
  std::vector<LossItem> items;
  for (std::int32_t i = 0; i < kPairs; ++i) {
    items.push_back({.clean_row = i,
                     .target = i % 3 == 0 ? -1 : i % 83,
                     .ar_weight = 0.01F,
                     .student_row = i % 5 == 0 ? -1 : static_cast<std::int32_t>(kPairs) + i,
                     .consistency_weight = 0.02F});
  }
  const Floats long_hidden = widened(hidden);
  const Floats long_head = widened(head);
  Floats expected_hidden(hidden.size());
  Floats expected_head(head.size(), 0.25F);
  const VocabularyLossSums expected = vocabulary_loss(
      *kernels_, view(long_hidden, hidden_shape), view(long_head, head_shape), items, 1.5F, 0.7F,
      view(expected_hidden, hidden_shape), view(expected_head, head_shape));
  BFloat16s first_hidden;
  Floats first_head;
  for (const int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    BFloat16s hidden_gradient(hidden.size(), {0x7FC0});
    Floats head_gradient(head.size(), 0.25F);
    const VocabularyLossSums sums =
        vocabulary_loss(*kernels_, view(hidden, hidden_shape), view(head, head_shape), items, 1.5F,
                        0.7F, view(hidden_gradient, hidden_shape), view(head_gradient, head_shape));
    // Sums in another order.
    EXPECT_NEAR(sums.consistency, expected.consistency, 1e-5 * expected.consistency);
    EXPECT_NEAR(sums.autoregressive, expected.autoregressive, 1e-5 * expected.autoregressive);
    // Logit gradients are rounded once before the products, the hidden gradient once after.
    EXPECT_LT(relative_distance(widened(hidden_gradient), to_double(expected_hidden)),
              2 * kRounding);
    EXPECT_LT(relative_distance(head_gradient, to_double(expected_head)), kRounding);
    if (threads == 1) {
      first_hidden = hidden_gradient;
      first_head = head_gradient;
    }
    EXPECT_TRUE(same(hidden_gradient, first_hidden));
    EXPECT_TRUE(same_bits(head_gradient, first_head));
  }
}

TEST_P(Bfloat16, ASeparateTeachersLossFollowsFloat32OnTheSameNumbers) {
  const Shape hidden_shape{40, 19};
  const Shape teacher_shape{20, 19};
  const Shape head_shape{83, 19};
  const BFloat16s hidden = random_rounded(hidden_shape.elements(), 1);
  const BFloat16s head = random_rounded(head_shape.elements(), 2, 0.5F);
  const BFloat16s teacher = random_rounded(teacher_shape.elements(), 3);
  const BFloat16s teacher_head = random_rounded(head_shape.elements(), 4, 0.5F);
  std::vector<LossItem> items;
  for (std::int32_t i = 0; i < 20; ++i) {
    items.push_back({.clean_row = i,
                     .target = i % 3 == 0 ? -1 : i,
                     .ar_weight = 0.01F,
                     .student_row = 20 + i,
                     .consistency_weight = 0.02F,
                     .teacher_row = 19 - i});
  }
  const Floats long_hidden = widened(hidden);
  const Floats long_head = widened(head);
  const Floats long_teacher = widened(teacher);
  const Floats long_teacher_head = widened(teacher_head);
  for (const ArLoss ar_loss : {ArLoss::cross_entropy, ArLoss::distillation}) {
    Floats expected_hidden(hidden.size());
    Floats expected_head(head.size());
    const VocabularyLossSums expected = vocabulary_loss(
        *kernels_, view(long_hidden, hidden_shape), view(long_head, head_shape), items, 1.5F, 0.7F,
        view(expected_hidden, hidden_shape), view(expected_head, head_shape),
        {.hidden = view(long_teacher, teacher_shape), .head = view(long_teacher_head, head_shape)},
        ar_loss);
    BFloat16s hidden_gradient(hidden.size(), {0x7FC0});
    Floats head_gradient(head.size());
    const VocabularyLossSums sums = vocabulary_loss(
        *kernels_, view(hidden, hidden_shape), view(head, head_shape), items, 1.5F, 0.7F,
        view(hidden_gradient, hidden_shape), view(head_gradient, head_shape),
        {.hidden = view(teacher, teacher_shape), .head = view(teacher_head, head_shape)}, ar_loss);
    EXPECT_NEAR(sums.consistency, expected.consistency, 1e-5 * expected.consistency);
    EXPECT_NEAR(sums.autoregressive, expected.autoregressive, 1e-5 * expected.autoregressive);
    EXPECT_LT(relative_distance(widened(hidden_gradient), to_double(expected_hidden)),
              2 * kRounding);
    EXPECT_LT(relative_distance(head_gradient, to_double(expected_head)), kRounding);
  }
}

// ---- types

TEST_P(Bfloat16, TypesThatDoNotFitAreRefused) {
  const Shape shape{4, 4};
  BFloat16s a(16);
  BFloat16s b(16);
  Floats c(16);
  std::vector<std::int32_t> integers(16);
  const ConstTensorView none;
  EXPECT_THROW(kernels_->linear(view(a, shape), view(c, shape), none, view(b, shape)),
               InternalError);
  EXPECT_THROW(kernels_->linear(view(c, shape), view(c, shape), none, view(b, shape)),
               InternalError)
      << "float32 operands have no bfloat16 result";
  EXPECT_THROW(
      kernels_->linear_backward_weight(view(a, shape), view(a, shape), view(b, shape), {}, true),
      InternalError)
      << "gradients of parameters are float32";
  EXPECT_THROW(kernels_->add(ConstTensorView(integers.data(), shape), view(a, shape)),
               InternalError);
  const std::vector<TokenId> tokens = {0, 1, 2, 3};
  EXPECT_THROW(embedding(*kernels_, tokens, view(c, shape), view(a, shape)), InternalError);
  EXPECT_THROW(kernels_->convert(view(a, shape), view(c, Shape{16})), InternalError);
  EXPECT_THROW(embedding_backward(*kernels_, tokens, view(a, shape), view(b, shape)),
               InternalError);
  EXPECT_THROW(vocabulary_loss(*kernels_, view(a, shape), view(c, shape), {}, 1, 1, view(b, shape),
                               view(c, shape)),
               InternalError);
  EXPECT_THROW(vocabulary_loss(*kernels_, view(a, shape), view(b, shape), {}, 1, 1, view(b, shape),
                               view(a, shape)),
               InternalError);
}

}  // namespace
}  // namespace jforge::test
