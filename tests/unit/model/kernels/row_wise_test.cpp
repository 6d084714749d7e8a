#include "model/kernels/kernel_arguments.h"
#include "tests/support/kernel_calls.h"
#include "tests/unit/model/kernels/kernel_test_support.h"

namespace jforge::test {
namespace {

class RowWise : public KernelTest {};
JFORGE_KERNEL_SUITE(RowWise);

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kColumns = 37;  // two full vectors and a rest
const Shape kShape{kRows, kColumns};

Doubles rms_norm_reference(const Doubles& x, const Doubles& weight, double epsilon) {
  Doubles y(x.size());
  const auto columns = weight.size();
  for (std::size_t row = 0; row < x.size() / columns; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      squares += x[row * columns + i] * x[row * columns + i];
    }
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(columns) + epsilon);
    for (std::size_t i = 0; i < columns; ++i) {
      y[row * columns + i] = x[row * columns + i] * inverse * weight[i];
    }
  }
  return y;
}

TEST_P(RowWise, RmsNormAndItsGradients) {
  const Floats x = random_floats(kShape.elements(), 1);
  const Floats weight = random_floats(kColumns, 2);
  const Floats dy = random_floats(kShape.elements(), 3);
  Floats y(x.size());
  Floats inverse(at(kRows));
  kernels_->rms_norm(view(x, kShape), view(weight, Shape{kColumns}), 1e-3F, view(y, kShape),
                     view(inverse, Shape{kRows}));
  const double epsilon = static_cast<double>(1e-3F);
  EXPECT_LT(relative_error(y, rms_norm_reference(to_double(x), to_double(weight), epsilon)),
            kTolerance);
  Floats without(x.size());
  kernels_->rms_norm(view(x, kShape), view(weight, Shape{kColumns}), 1e-3F, view(without, kShape),
                     {});
  EXPECT_TRUE(same_bits(y, without));

  Floats dx(x.size(), 0.5F);  // gradients are added to existing values
  Floats dw(weight.size(), -0.25F);
  kernels_->rms_norm_backward(view(dy, kShape), view(x, kShape), view(weight, Shape{kColumns}),
                              view(inverse, Shape{kRows}), view(dx, kShape),
                              view(dw, Shape{kColumns}));
  Doubles expected_dx = numerical_gradient(
      [&](const Doubles& v) {
        return weighted_sum(rms_norm_reference(v, to_double(weight), epsilon), dy);
      },
      to_double(x));
  Doubles expected_dw = numerical_gradient(
      [&](const Doubles& v) {
        return weighted_sum(rms_norm_reference(to_double(x), v, epsilon), dy);
      },
      to_double(weight));
  for (double& value : expected_dx) value += 0.5;
  for (double& value : expected_dw) value -= 0.25;
  EXPECT_LT(relative_error(dx, expected_dx), kTolerance);
  EXPECT_LT(relative_error(dw, expected_dw), kTolerance);
}

Doubles swiglu_reference(const Doubles& gate, const Doubles& up) {
  Doubles y(gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    y[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  }
  return y;
}

TEST_P(RowWise, SwigluAndItsGradients) {
  Floats gate = random_floats(kShape.elements(), 4, 3.0F);
  gate[0] = 60;
  gate[1] = -60;
  gate[2] = -100;  // exp(100) saturates; silu is 0 to within 1e-36
  const Floats up = random_floats(kShape.elements(), 5);
  const Floats dy = random_floats(kShape.elements(), 6);
  Floats y(gate.size());
  kernels_->swiglu(view(gate, kShape), view(up, kShape), view(y, kShape));
  EXPECT_LT(relative_error(y, swiglu_reference(to_double(gate), to_double(up))), kTolerance);
  Floats dg(gate.size(), 9.0F);
  Floats du(gate.size(), 9.0F);
  kernels_->swiglu_backward(view(dy, kShape), view(gate, kShape), view(up, kShape),
                            view(dg, kShape), view(du, kShape));
  EXPECT_LT(relative_error(dg, numerical_gradient(
                                   [&](const Doubles& v) {
                                     return weighted_sum(swiglu_reference(v, to_double(up)), dy);
                                   },
                                   to_double(gate))),
            kTolerance);
  EXPECT_LT(relative_error(du, numerical_gradient(
                                   [&](const Doubles& v) {
                                     return weighted_sum(swiglu_reference(to_double(gate), v), dy);
                                   },
                                   to_double(up))),
            kTolerance);
}

TEST_P(RowWise, RotaryFollowsHuggingFaceAndBackwardInvertsIt) {
  const std::int64_t heads = 2;
  for (const std::int64_t dim : {8, 32, 64}) {
    const std::vector<std::int32_t> positions = {0, 5, 5, 3000};
    const Shape shape{4, heads, dim};
    const Floats x = random_floats(shape.elements(), 7);
    Floats y = x;
    rotary(*kernels_, view(y, shape), positions, {.theta = 10000.0});
    Doubles expected(x.size());
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < dim / 2; ++i) {
          const std::int64_t low = (t * heads + h) * dim + i;
          const std::int64_t high = low + dim / 2;
          const double angle = positions[at(t)] * std::pow(10000.0, -2.0 * static_cast<double>(i) /
                                                                        static_cast<double>(dim));
          const double a = static_cast<double>(x[at(low)]);
          const double b = static_cast<double>(x[at(high)]);
          expected[at(low)] = a * std::cos(angle) - b * std::sin(angle);
          expected[at(high)] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    EXPECT_LT(relative_error(y, expected), kTolerance);
    EXPECT_TRUE(same_bits(y.data(), x.data(), heads * dim)) << "position 0 must not change";
    rotary_backward(*kernels_, view(y, shape), positions, {.theta = 10000.0});
    EXPECT_LT(relative_error(y, to_double(x)), kTolerance);
  }
}

/// Values of PyTorch: transformers 5.23, modeling_rope_utils, D = 16.
TEST(RotaryFrequency, FollowsHuggingFace) {
  const RotarySettings plain{.theta = 10000.0};
  RotarySettings linear = plain;
  linear.scaling = RotaryScaling::linear;
  linear.factor = 2.5;
  const RotarySettings llama3{.theta = 500000.0,
                              .scaling = RotaryScaling::llama3,
                              .factor = 8,
                              .low_frequency_factor = 1,
                              .high_frequency_factor = 4,
                              .original_positions = 8192};
  const std::array expected_plain{1.0,           0.316227764,   0.100000001,   0.0316227786,
                                  0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786};
  const std::array expected_linear{0.400000006,   0.1264911,     0.0399999991,   0.0126491114,
                                   0.00399999972, 0.00126491114, 0.000400000019, 0.000126491112};
  const std::array expected_llama3{1.0,
                                   0.193922758,
                                   0.0376060307,
                                   0.00729266508,
                                   0.000524846022,
                                   3.42810235e-05,
                                   6.64786967e-06,
                                   1.28917316e-06};
  for (std::int64_t i = 0; i < 8; ++i) {
    const auto near = [&](const RotarySettings& settings, const auto& expected) {
      const double value = expected[static_cast<std::size_t>(i)];
      EXPECT_NEAR(rotary_frequency(settings, i, 8), value, 1e-6 * value) << i;
    };
    near(plain, expected_plain);
    near(linear, expected_linear);
    near(llama3, expected_llama3);
  }
}

TEST_P(RowWise, RotaryKeepsTablesOfDifferentThetaApart) {
  const std::vector<std::int32_t> positions = {11};
  const Shape shape{1, 1, 8};
  const Floats x = random_floats(8, 7);
  Floats first = x;
  rotary(*kernels_, view(first, shape), positions, {.theta = 10000.0});
  Floats second = x;
  rotary(*kernels_, view(second, shape), positions, {.theta = 1e6});
  Floats again = x;
  rotary(*kernels_, view(again, shape), positions, {.theta = 10000.0});
  EXPECT_FALSE(same_bits(first, second));
  EXPECT_TRUE(same_bits(first, again));
  Floats scaled = x;
  rotary(*kernels_, view(scaled, shape), positions,
         {.theta = 10000.0, .scaling = RotaryScaling::linear, .factor = 11});
  Floats first_position = x;
  rotary(*kernels_, view(first_position, shape), std::vector<std::int32_t>{1}, {.theta = 10000.0});
  EXPECT_LT(relative_error(scaled, to_double(first_position)), kTolerance);
}

TEST_P(RowWise, EmbeddingAndItsGradient) {
  const std::vector<TokenId> tokens = {4, 0, 4, 2};
  const Floats table = random_floats(5 * kColumns, 8);
  Floats output(at(4 * kColumns));
  embedding(*kernels_, tokens, view(table, Shape{5, kColumns}), view(output, Shape{4, kColumns}));
  const Floats dy = random_floats(4 * kColumns, 9);
  Floats gradient(table.size(), 1.0F);
  embedding_backward(*kernels_, tokens, view(dy, Shape{4, kColumns}),
                     view(gradient, Shape{5, kColumns}));
  Doubles expected(table.size(), 1.0);
  for (std::int64_t t = 0; t < 4; ++t) {
    EXPECT_TRUE(
        same_bits(&output[at(t * kColumns)], &table[at(tokens[at(t)] * kColumns)], kColumns));
    for (std::int64_t i = 0; i < kColumns; ++i) {
      expected[at(tokens[at(t)] * kColumns + i)] += static_cast<double>(dy[at(t * kColumns + i)]);
    }
  }
  EXPECT_LT(relative_error(gradient, expected), 1e-6);
  for (const TokenId wrong : {-1, 5}) {
    const std::vector<TokenId> bad = {0, 1, 2, wrong};
    EXPECT_THROW(embedding(*kernels_, bad, view(table, Shape{5, kColumns}),
                           view(output, Shape{4, kColumns})),
                 InternalError);
  }
}

TEST_P(RowWise, RowsDoNotDependOnTheirNeighboursOrThreads) {
  const std::int64_t rows = 300;  // Large enough for the parallel paths.
  const std::int64_t columns = 519;
  const Floats x = random_floats(rows * columns, 10);
  const Floats weight = random_floats(columns, 11);
  for (const int threads : {1, 2}) {
    const ThreadCount scope(threads);
    Floats normed(x.size());
    Floats gated(x.size());
    kernels_->rms_norm(view(x, Shape{rows, columns}), view(weight, Shape{columns}), 1e-6F,
                       view(normed, Shape{rows, columns}), {});
    kernels_->swiglu(view(x, Shape{rows, columns}), view(normed, Shape{rows, columns}),
                     view(gated, Shape{rows, columns}));
    for (const std::int64_t row : {0, 17, 299}) {
      const Floats one(x.begin() + row * columns, x.begin() + (row + 1) * columns);
      Floats alone(at(columns));
      Floats gated_alone(at(columns));
      kernels_->rms_norm(view(one, Shape{1, columns}), view(weight, Shape{columns}), 1e-6F,
                         view(alone, Shape{1, columns}), {});
      kernels_->swiglu(view(one, Shape{1, columns}), view(alone, Shape{1, columns}),
                       view(gated_alone, Shape{1, columns}));
      EXPECT_TRUE(same_bits(alone.data(), &normed[at(row * columns)], columns));
      EXPECT_TRUE(same_bits(gated_alone.data(), &gated[at(row * columns)], columns));
    }
  }
}

TEST_P(RowWise, BothInstructionSetsGiveEqualBits) {
  const auto other = make_cpu_kernel_set(InstructionSet::avx2, BFloat16Sums::pairs);
  Floats x = random_floats(kShape.elements(), 12, 4.0F);
  const Floats weight = random_floats(kColumns, 13);
  Floats mine(x.size());
  Floats theirs(x.size());
  kernels_->rms_norm(view(x, kShape), view(weight, Shape{kColumns}), 1e-6F, view(mine, kShape), {});
  other->rms_norm(view(x, kShape), view(weight, Shape{kColumns}), 1e-6F, view(theirs, kShape), {});
  EXPECT_TRUE(same_bits(mine, theirs));
  kernels_->swiglu(view(x, kShape), view(x, kShape), view(mine, kShape));
  other->swiglu(view(x, kShape), view(x, kShape), view(theirs, kShape));
  EXPECT_TRUE(same_bits(mine, theirs));
  const std::vector<std::int32_t> positions = {1, 2, 900};
  const Shape heads{3, 1, 36};
  Floats a(x.begin(), x.begin() + 108);
  Floats b = a;
  rotary(*kernels_, view(a, heads), positions, {.theta = 1e6});
  rotary(*other, view(b, heads), positions, {.theta = 1e6});
  EXPECT_TRUE(same_bits(a, b));
}

TEST_P(RowWise, Add) {
  const Floats x = random_floats(1 << 17, 1);
  Floats y = random_floats(1 << 17, 2);
  const Floats before = y;
  kernels_->add(view(x, Shape{1 << 17}), view(y, Shape{1 << 17}));
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i], before[i] + x[i]);
  }
}

TEST_P(RowWise, SumOfSquaresIsExactAndIndependentOfThreads) {
  const Floats x = random_floats(100003, 14);
  double expected = 0;
  for (const float value : x) {
    expected += static_cast<double>(value) * static_cast<double>(value);
  }
  double sums[2];
  for (const int threads : {1, 2}) {
    const ThreadCount scope(threads);
    sums[threads - 1] = sum_of_squares(*kernels_, view(x, Shape{100003}));
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_NEAR(sums[0] / expected, 1.0, 1e-13);
}

TEST_P(RowWise, AContentHashSeesEveryByteAndNoThreads) {
  Floats x = random_floats(300001, 14);
  const ConstTensorView all = view(x, Shape{300001});
  std::uint64_t hashes[2];
  for (const int threads : {1, 2}) {
    const ThreadCount scope(threads);
    hashes[threads - 1] = content_hash(*kernels_, all, 7);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_NE(content_hash(*kernels_, all, 8), hashes[0]);
  EXPECT_NE(content_hash(*kernels_, all.rows(0, 300000), 7), hashes[0]);
  for (const std::size_t place : {0U, 65535U, 65536U, 300000U}) {
    const float kept = x[place];
    x[place] = -kept;
    EXPECT_NE(content_hash(*kernels_, all, 7), hashes[0]) << place;
    x[place] = kept;
  }
  EXPECT_EQ(content_hash(*kernels_, all, 7), hashes[0]);
  static_cast<void>(content_hash(*kernels_, all.rows(0, 0), 7));
}

TEST_P(RowWise, PartsAreHashedAsTensorsOfTheirOwn) {
  const Floats x = random_floats(1200, 15);
  MemoryAccount account("test hashes");
  ResultHashes hashes(*kernels_, account);
  hashes.reset(4);
  kernels_->content_hash_of_parts(view(x, Shape{1200}), 7, hashes.part(0, 4));
  const std::span<const std::int64_t> sums = hashes.read();
  for (std::int64_t part = 0; part < 4; ++part) {
    EXPECT_EQ(static_cast<std::uint64_t>(sums[static_cast<std::size_t>(part)]),
              content_hash(*kernels_, view(x, Shape{1200}).rows(300 * part, 300 * (part + 1)), 7));
  }
  EXPECT_THROW(kernels_->content_hash_of_parts(view(x, Shape{1199}), 7, hashes.part(0, 4)),
               InternalError);
}

TEST_P(RowWise, AdamWFollowsTheReference) {
  const std::int64_t count = 70001;
  const Floats start = random_floats(count, 15);
  for (const bool decay : {false, true}) {
    Floats parameter = start;
    Floats m(at(count));
    Floats v(at(count));
    Doubles p_ref = to_double(start);
    Doubles m_ref(at(count));
    Doubles v_ref(at(count));
    for (std::int64_t step = 1; step <= 4; ++step) {
      const Floats gradient = random_floats(count, static_cast<unsigned>(20 + step), 0.1F);
      const AdamWSettings settings{
          .learning_rate = 1e-2F, .weight_decay = 0.1F, .gradient_scale = 0.5F, .step = step};
      kernels_->adamw(
          settings, decay, view(gradient, Shape{count}),
          {view(parameter, Shape{count}), view(m, Shape{count}), view(v, Shape{count}), {}});
      const double beta1 = static_cast<double>(settings.beta1);  // torch.optim.AdamW, in double.
      const double beta2 = static_cast<double>(settings.beta2);
      const double rate = static_cast<double>(settings.learning_rate);
      for (std::size_t i = 0; i < p_ref.size(); ++i) {
        const double g = 0.5 * static_cast<double>(gradient[i]);
        p_ref[i] *= decay ? 1 - rate * static_cast<double>(settings.weight_decay) : 1.0;
        m_ref[i] = beta1 * m_ref[i] + (1 - beta1) * g;
        v_ref[i] = beta2 * v_ref[i] + (1 - beta2) * g * g;
        const double t = static_cast<double>(step);
        const double denominator = std::sqrt(v_ref[i]) / std::sqrt(1 - std::pow(beta2, t)) +
                                   static_cast<double>(settings.epsilon);
        p_ref[i] -= rate / (1 - std::pow(beta1, t)) * m_ref[i] / denominator;
      }
    }
    EXPECT_LT(relative_error(parameter, p_ref), 1e-6);
    EXPECT_LT(relative_error(m, m_ref), 1e-6);
    EXPECT_LT(relative_error(v, v_ref), 1e-6);
  }
  Floats one(1);
  const TensorView own = view(one, Shape{1});
  EXPECT_THROW(kernels_->adamw({.step = 0}, false, own, {own, own, own, {}}), InternalError);
  EXPECT_THROW(kernels_->adamw({}, false, own, {own, own, own, own}), InternalError);
}

TEST_P(RowWise, AdamWHashesAndRoundsWhatItPasses) {
  for (const std::int64_t count : {5, 16384, 16385, 200003}) {
    Floats parameter = random_floats(count, 15);
    Floats m = random_floats(count, 16);
    Floats v(at(count), 0.5F);
    const Floats gradient = random_floats(count, 17);
    std::vector<BFloat16> rounded(at(count));
    const AdamWState state{view(parameter, Shape{count}), view(m, Shape{count}),
                           view(v, Shape{count}),
                           TensorView(rounded.data(), DType::bfloat16, Shape{count})};
    MemoryAccount account("hashes");
    ResultHashes sums(*kernels_, account);
    sums.reset(16);
    constexpr std::uint64_t kSeedOfRun = 5;
    hash_adamw_state(*kernels_, state, kSeedOfRun, sums.part(0, 4));
    kernels_->adamw({.learning_rate = 1e-2F}, true, view(gradient, Shape{count}), state,
                    {sums.part(4, 4), sums.part(8, 4), kSeedOfRun});
    hash_adamw_state(*kernels_, state, kSeedOfRun, sums.part(12, 4));
    const std::span<const std::int64_t> hashes = sums.read();
    EXPECT_TRUE(std::ranges::equal(hashes.subspan(4, 4), hashes.subspan(0, 4)));
    EXPECT_TRUE(std::ranges::equal(hashes.subspan(8, 4), hashes.subspan(12, 4)));
    for (std::size_t part = 0; part < 4; ++part) {
      EXPECT_NE(hashes[part], hashes[8 + part]) << part;
    }
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      ASSERT_EQ(rounded[i].bits, to_bfloat16(parameter[i]).bits) << i;
    }
  }
}

TEST_P(RowWise, WrongShapesAreRefused) {
  Floats x = random_floats(kShape.elements(), 1);
  Floats small(at(kColumns));
  EXPECT_THROW(kernels_->rms_norm(view(x, kShape), view(x, Shape{kRows * kColumns}), 1e-6F,
                                  view(x, kShape), {}),
               InternalError);
  EXPECT_THROW(kernels_->swiglu(view(x, kShape), view(small, Shape{1, kColumns}), view(x, kShape)),
               InternalError);
  EXPECT_THROW(kernels_->add(view(small, Shape{kColumns}), view(x, kShape)), InternalError);
  EXPECT_THROW(kernels_->linear(view(x, kShape), view(small, Shape{1, kColumns}), {},
                                view(small, Shape{kColumns})),
               InternalError);
  const std::vector<std::int32_t> positions = {0, 1};
  EXPECT_THROW(rotary(*kernels_, view(x, Shape{kRows, 1, kColumns}), positions, {.theta = 1e4}),
               InternalError);
  Floats even(at(8));
  EXPECT_THROW(rotary(*kernels_, view(even, Shape{2, 1, 4}), std::vector<std::int32_t>{0, -1},
                      {.theta = 1e4}),
               InternalError);
}

}  // namespace
}  // namespace jforge::test
