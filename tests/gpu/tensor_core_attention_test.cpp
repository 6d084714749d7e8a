/// Compares packed attention on tensor cores with the CPU's in float32 on the same bfloat16 values.
///
/// Bounds: products of bfloat16 are exact, sums are float32. Rounded once each, by 2⁻⁸ at most, are
/// the weights of keys (in backward their gradients), as left side of the second product, and the
/// result. So |error| ≤ 2⁻⁸ · Σ|weight · value| + 2⁻⁸ · |result|, plus float32's part: 2⁻¹⁴ of a
/// weight for scores of up to 128 summands and exp2.approx, 2⁻¹⁴ · p · (|dp| + |Δ|) for its
/// gradient p · (dp − Δ). The sums of magnitudes are computed here in double.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <limits>

#include "model/transformer/packed_layout.h"
#include "tests/gpu/kernel_agreement.h"
#include "tests/support/digest.h"
#include "tests/support/kernel_calls.h"

namespace jforge::test {
namespace {

constexpr double kRounding = 0x1p-8;
constexpr double kFloat = 0x1p-14;

struct Case {
  const char* name;
  std::int64_t heads;
  std::int64_t key_heads;
  std::int64_t dim;
  PackedLayout layout;

  [[nodiscard]] std::int64_t rows() const { return layout.num_rows; }
  [[nodiscard]] Shape query() const { return {rows(), heads, dim}; }
  [[nodiscard]] Shape key() const { return {rows(), key_heads, dim}; }
};

/// Laid out as by append_samples(), then a plain sequence.
PackedLayout windows(std::int64_t prompt, std::int64_t block, std::int64_t blocks,
                     std::int64_t window, std::int64_t plain) {
  PackedLayout layout;
  for (int sample = 0; sample < 2; ++sample) {
    const std::int64_t base = layout.num_rows;
    const std::int64_t clean = base + prompt + sample;
    const std::int64_t noisy = clean + block * blocks;
    layout.segments.push_back({base, noisy, base, base, base});
    for (std::int64_t start = 0; start < blocks; start += window) {
      const std::int64_t end = std::min(start + window, blocks);
      layout.segments.push_back({noisy + start * block, noisy + end * block, base,
                                 clean + start * block, noisy + start * block});
    }
    layout.num_rows = noisy + block * blocks;
  }
  if (plain > 0) {
    const std::int64_t base = layout.num_rows;
    layout.segments.push_back({base, base + plain, base, base, base});
    layout.num_rows += plain;
  }
  return layout;
}

/// Rows 128–159 skip a whole tile; other prefixes end a key before or after one.
PackedLayout gaps() {
  return {.num_rows = 197,
          .segments = {{0, 128, 0, 0, 0},
                       {128, 160, 0, 64, 128},
                       {160, 175, 1, 63, 160},
                       {175, 190, 64, 129, 160},
                       {190, 197, 63, 65, 190}}};
}

class RoundedTensor {
 public:
  RoundedTensor(const KernelSet& kernels, MemoryAccount& account, const Floats& values, Shape shape)
      : buffer_(values.size() * sizeof(BFloat16), account, kernels.device()), shape_(shape) {
    std::vector<BFloat16> bits(values.size());
    std::ranges::transform(values, bits.begin(), to_bfloat16);
    copy_tensor(ConstTensorView(bits.data(), shape), view());
  }
  [[nodiscard]] TensorView view() const { return buffer_.view(DType::bfloat16, shape_); }
  [[nodiscard]] Floats values() const {
    std::vector<BFloat16> bits(static_cast<std::size_t>(shape_.elements()));
    copy_tensor(ConstTensorView(view()), TensorView(bits.data(), shape_));
    Floats result(bits.size());
    std::ranges::transform(bits, result.begin(), [](BFloat16 value) { return to_float(value); });
    return result;
  }

 private:
  Buffer buffer_;
  Shape shape_;
};

struct Inputs {
  explicit Inputs(const Case& c)
      : q(rounded_floats(c.query().elements(), 1)),
        k(rounded_floats(c.key().elements(), 2)),
        v(rounded_floats(c.key().elements(), 3)),
        output_gradient(rounded_floats(c.query().elements(), 4)) {}
  Floats q, k, v, output_gradient;
};
struct Results {
  Floats output, log_sum_exp, dq, dk, dv;
};

class TensorCoreAttention : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(account_.live_bytes(), 0U); }

  Results run(const Case& c, const Inputs& in) {
    const auto rounded = [&](const Floats& values, const Shape& shape) {
      return RoundedTensor(*tested_, account_, values, shape);
    };
    const Floats blank_query(in.q.size(), -77.0F);
    const Floats blank_key(in.k.size(), -77.0F);
    const RoundedTensor q = rounded(in.q, c.query());
    const RoundedTensor k = rounded(in.k, c.key());
    const RoundedTensor v = rounded(in.v, c.key());
    const RoundedTensor output_gradient = rounded(in.output_gradient, c.query());
    const RoundedTensor output = rounded(blank_query, c.query());
    const RoundedTensor dq = rounded(blank_query, c.query());
    const RoundedTensor dk = rounded(blank_key, c.key());
    const RoundedTensor dv = rounded(blank_key, c.key());
    const Shape terms{c.rows(), c.heads};
    const DeviceTensor log_sum_exp(
        *tested_, account_, Floats(static_cast<std::size_t>(terms.elements()), -77.0F), terms);
    const TestPlan plan(*tested_, heads_of(q.view(), k.view()), batch_of(c.layout));
    tested_->packed_attention(*plan, q.view(), k.view(), v.view(), output.view(),
                              log_sum_exp.view());
    tested_->packed_attention_backward(*plan, output_gradient.view(), q.view(), k.view(), v.view(),
                                       output.view(), log_sum_exp.view(), dq.view(), dk.view(),
                                       dv.view());
    return {output.values(), log_sum_exp.values(), dq.values(), dk.values(), dv.values()};
  }

  /// Backward reads `found`'s output and log-sum-exp.
  Results reference(const Case& c, const Inputs& in, const Results& found) {
    const auto tensor = [&](const Floats& values, const Shape& shape) {
      return DeviceTensor(*reference_, account_, values, shape);
    };
    const DeviceTensor q = tensor(in.q, c.query());
    const DeviceTensor k = tensor(in.k, c.key());
    const DeviceTensor v = tensor(in.v, c.key());
    const DeviceTensor output = tensor(in.q, c.query());
    const DeviceTensor dq = tensor(in.q, c.query());
    const DeviceTensor dk = tensor(in.k, c.key());
    const DeviceTensor dv = tensor(in.k, c.key());
    const DeviceTensor log_sum_exp = tensor(found.log_sum_exp, {c.rows(), c.heads});
    packed_attention(*reference_, q.view(), k.view(), v.view(), c.layout, output.view(),
                     log_sum_exp.view());
    const Floats expected_output = output.values();
    const Floats expected_log_sum_exp = log_sum_exp.values();
    packed_attention_backward(*reference_, tensor(in.output_gradient, c.query()).view(), q.view(),
                              k.view(), v.view(), tensor(found.output, c.query()).view(),
                              tensor(found.log_sum_exp, {c.rows(), c.heads}).view(), c.layout,
                              dq.view(), dk.view(), dv.view());
    return {expected_output, expected_log_sum_exp, dq.values(), dk.values(), dv.values()};
  }

  MemoryAccount account_{"test"};
  std::unique_ptr<KernelSet> tested_ = make_tested_kernel_set();
  std::unique_ptr<KernelSet> reference_ = make_cpu_kernel_set();
};

struct Bounds {  ///< Bounds without an element's own last rounding.
  std::vector<double> output, dq, dk, dv;
};

double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t d = 0; d < count; ++d) {
    sum += static_cast<double>(a[d]) * static_cast<double>(b[d]);
  }
  return sum;
}
void add_magnitudes(double weight, const float* values, std::int64_t count, double* sums) {
  for (std::int64_t d = 0; d < count; ++d) {
    sums[d] += weight * std::abs(static_cast<double>(values[d]));
  }
}

Bounds bounds_of(const Case& c, const Inputs& in, const Results& found) {
  Bounds bounds{std::vector<double>(in.q.size()), std::vector<double>(in.q.size()),
                std::vector<double>(in.k.size()), std::vector<double>(in.k.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
  const std::int64_t group = c.heads / c.key_heads;
  for (std::int64_t row = 0; row < c.rows(); ++row) {
    for (std::int64_t key = 0; key <= row; ++key) {
      if (!visible(c.layout, row, key)) {
        continue;
      }
      for (std::int64_t head = 0; head < c.heads; ++head) {
        const auto query = static_cast<std::size_t>((row * c.heads + head) * c.dim);
        const auto at = static_cast<std::size_t>((key * c.key_heads + head / group) * c.dim);
        const double log_sum_exp =
            found.log_sum_exp[static_cast<std::size_t>(row * c.heads + head)];
        const double weight = std::exp(scale * dot(&in.q[query], &in.k[at], c.dim) - log_sum_exp);
        const double dp = dot(&in.output_gradient[query], &in.v[at], c.dim);
        const double delta = dot(&in.output_gradient[query], &found.output[query], c.dim);
        const double of_weight = (kRounding + kFloat) * weight;
        const double of_gradient =
            scale * weight *
            (kRounding * std::abs(dp - delta) + kFloat * (std::abs(dp) + std::abs(delta)));
        add_magnitudes(of_weight, &in.v[at], c.dim, &bounds.output[query]);
        add_magnitudes(of_weight, &in.output_gradient[query], c.dim, &bounds.dv[at]);
        add_magnitudes(of_gradient, &in.k[at], c.dim, &bounds.dq[query]);
        add_magnitudes(of_gradient, &in.q[query], c.dim, &bounds.dk[at]);
      }
    }
  }
  return bounds;
}

void expect_within(const Floats& found, const Floats& expected, const std::vector<double>& bounds,
                   const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  double worst = 0;
  std::size_t place = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i]));
    const double allowed =
        bounds[i] + (kRounding + kFloat) * std::abs(static_cast<double>(expected[i])) + 1e-30;
    if (!(error / allowed <= worst)) {  // Negated so that NaN is the worst.
      worst = error / allowed;
      place = i;
    }
  }
  EXPECT_LE(worst, 1.0) << what << "[" << place << "]: " << found[place] << " for "
                        << expected[place];
}

std::vector<Case> cases() {
  return {{"one row", 2, 2, 64, causal_layout(1)},
          {"causal, a row past a tile", 1, 1, 128, causal_layout(129)},
          {"a tile's rows", 3, 1, 64, causal_layout(64)},
          {"prefixes", 3, 1, 64, layout_with_prefixes()},
          {"gaps at tiles' borders", 2, 2, 64, gaps()},
          {"windows of short blocks", 7, 1, 64, windows(5, 4, 6, 2, 20)},
          {"windows", 7, 1, 128, windows(13, 8, 4, 1, 11)},
          {"one window", 3, 1, 128, windows(3, 16, 2, 2, 0)},
          {"seven heads to one", 7, 1, 128, causal_layout(200)},
          {"two groups of seven", 14, 2, 64, windows(21, 8, 5, 2, 7)}};
}

TEST_F(TensorCoreAttention, AgreesWithFloat32OnTheCpu) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Inputs in(c);
    const Results found = run(c, in);
    const Results expected = reference(c, in, found);
    const Bounds bounds = bounds_of(c, in, found);
    expect_within(found.output, expected.output, bounds.output, "output");
    // float32 throughout
    for (std::size_t i = 0; i < found.log_sum_exp.size(); ++i) {
      EXPECT_NEAR(found.log_sum_exp[i], expected.log_sum_exp[i], 1e-5) << "log-sum-exp " << i;
    }
    expect_within(found.dq, expected.dq, bounds.dq, "q gradient");
    expect_within(found.dk, expected.dk, bounds.dk, "k gradient");
    expect_within(found.dv, expected.dv, bounds.dv, "v gradient");
  }
}

TEST_F(TensorCoreAttention, RepeatsBitForBit) {
  std::uint64_t digest = 0;
  for (const Case& c :
       {Case{"gaps", 7, 1, 64, gaps()}, Case{"windows", 3, 1, 128, windows(3, 8, 3, 1, 0)}}) {
    SCOPED_TRACE(c.name);
    const Inputs in(c);
    const Results first = run(c, in);
    const Results second = run(c, in);
    for (const auto part :
         {&Results::output, &Results::log_sum_exp, &Results::dq, &Results::dk, &Results::dv}) {
      EXPECT_TRUE(same_bits(first.*part, second.*part));
      digest = test::digest_of(first.*part, digest);
    }
  }
  test::print_digest(digest);
}

TEST_F(TensorCoreAttention, WhatIsNotSeenChangesNoBit) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const Case& c :
       {Case{"gaps", 2, 1, 64, gaps()}, Case{"windows", 3, 1, 128, windows(3, 8, 3, 1, 5)}}) {
    const Inputs clean(c);
    const Results expected = run(c, clean);
    for (const std::int64_t poisoned : {std::int64_t{7}, c.rows() / 2, c.rows() - 3}) {
      SCOPED_TRACE(std::string(c.name) + ", row " + std::to_string(poisoned));
      Inputs in = clean;
      const auto poison = [&](Floats& values, std::int64_t width, std::int64_t column) {
        values[static_cast<std::size_t>(poisoned * width + column)] = kNaN;
      };
      const std::int64_t query_width = c.heads * c.dim;
      const std::int64_t key_width = c.key_heads * c.dim;
      for (std::int64_t head = 0; head < c.heads; ++head) {
        poison(in.q, query_width, head * c.dim + 5);
        poison(in.output_gradient, query_width, head * c.dim + c.dim - 1);
      }
      poison(in.k, key_width, 0);
      poison(in.v, key_width, 9);
      const Results found = run(c, in);

      // Rows that see it are NaN, and the keys of such rows.
      std::vector<bool> row_is_reached(static_cast<std::size_t>(c.rows()));
      std::vector<bool> key_is_reached(static_cast<std::size_t>(c.rows()));
      for (std::int64_t row = 0; row < c.rows(); ++row) {
        row_is_reached[static_cast<std::size_t>(row)] = visible(c.layout, row, poisoned);
        for (std::int64_t key = 0; key <= row && visible(c.layout, row, poisoned); ++key) {
          if (visible(c.layout, row, key)) {
            key_is_reached[static_cast<std::size_t>(key)] = true;
          }
        }
      }
      const auto check = [&](const Floats& values, const Floats& before,
                             const std::vector<bool>& reached, const char* what) {
        const std::size_t width = values.size() / reached.size();
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_TRUE(reached[i / width] ? std::isnan(values[i])
                                         : std::bit_cast<std::uint32_t>(values[i]) ==
                                               std::bit_cast<std::uint32_t>(before[i]))
              << what << " of row " << i / width << ": " << values[i] << ", was " << before[i];
        }
      };
      check(found.output, expected.output, row_is_reached, "output");
      check(found.log_sum_exp, expected.log_sum_exp, row_is_reached, "log-sum-exp");
      check(found.dq, expected.dq, row_is_reached, "q gradient");
      check(found.dk, expected.dk, key_is_reached, "k gradient");
      check(found.dv, expected.dv, key_is_reached, "v gradient");
    }
  }
}

TEST_F(TensorCoreAttention, ScoresMayGrowAsTheyCome) {
  const Case c{"growing", 1, 1, 64, causal_layout(130)};
  Inputs in(c);
  for (std::int64_t row = 0; row < c.rows(); ++row) {
    for (std::int64_t d = 0; d < c.dim; ++d) {
      const auto at = static_cast<std::size_t>(row * c.dim + d);
      in.q[at] = 4.0F;
      in.k[at] = to_float(to_bfloat16(0.02F * static_cast<float>(row)));
    }
  }
  const Results found = run(c, in);
  const Results expected = reference(c, in, found);
  expect_within(found.output, expected.output, bounds_of(c, in, found).output, "output");
}

/// More batches than staged arrays have places, without waiting for the device.
TEST_F(TensorCoreAttention, PlansReachADeviceThatLagsBehind) {
  constexpr std::int64_t kBatches = 10;
  const Case c{"two sequences", 4, 1, 64, causal_layout(160)};
  std::vector<PackedBatch> batches{batch_of(c.layout)};  // no later one has more visits
  for (std::int64_t cut = 10; std::ssize(batches) < kBatches; cut += 13) {
    batches.push_back(batch_of(
        {.num_rows = c.rows(), .segments = {{0, cut, 0, 0, 0}, {cut, c.rows(), cut, cut, cut}}}));
  }
  const Inputs in(c);
  const auto results = [&](bool lags) {
    const RoundedTensor q(*tested_, account_, in.q, c.query());
    const RoundedTensor k(*tested_, account_, in.k, c.key());
    const RoundedTensor v(*tested_, account_, in.v, c.key());
    const RoundedTensor output_gradient(*tested_, account_, in.output_gradient, c.query());
    const Buffer log_sum_exp(static_cast<std::size_t>(c.rows() * c.heads) * sizeof(float), account_,
                             tested_->device());
    const TensorView sums = log_sum_exp.floats({c.rows(), c.heads});
    std::vector<RoundedTensor> written;
    for (std::int64_t i = 0; i < kBatches; ++i) {
      written.emplace_back(*tested_, account_, in.q, c.query());
      written.emplace_back(*tested_, account_, in.q, c.query());
      written.emplace_back(*tested_, account_, in.k, c.key());
      written.emplace_back(*tested_, account_, in.v, c.key());
    }
    const auto plan = tested_->make_plan(heads_of(q.view(), k.view()), account_);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      plan->assign(batches[i]);
      const TensorView output = written[4 * i].view();
      tested_->packed_attention(*plan, q.view(), k.view(), v.view(), output, sums);
      tested_->packed_attention_backward(*plan, output_gradient.view(), q.view(), k.view(),
                                         v.view(), output, sums, written[4 * i + 1].view(),
                                         written[4 * i + 2].view(), written[4 * i + 3].view());
      if (!lags) {
        tested_->queue().synchronize();
      }
    }
    std::vector<Floats> values;
    for (const RoundedTensor& one : written) {
      values.push_back(one.values());
    }
    return values;
  };
  const std::vector<Floats> found = results(true);
  const std::vector<Floats> expected = results(false);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i], expected[i])) << "tensor " << i % 4 << " of batch " << i / 4;
  }
}

}  // namespace
}  // namespace jforge::test
