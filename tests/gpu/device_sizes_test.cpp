/// Sizes that need a real device: more than 65,535 rows, 2³¹ elements or 2³² bytes. The emulated
/// device runs the same tests on a few rows, to check the tests. Inputs repeat one block of eight
/// times a prime elements: rows differ, and an index that is off by a power of two reads another
/// value. Outputs start as NaN. Sampled rows and columns are compared with the CPU or with double.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/result_sums.h"
#include "model/transformer/packed_layout.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/gpu/kernel_agreement.h"
#include "tests/support/kernel_calls.h"

namespace jforge::test {
namespace {

bool emulated() {
  static const bool found = ::dlsym(RTLD_DEFAULT, "jforge_emulated_keep_work") != nullptr;
  return found;
}
std::int64_t sized(std::int64_t on_device, std::int64_t tiny) {
  return emulated() ? tiny : on_device;
}
std::int64_t period() { return 8 * sized(131'101, 53); }
std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
double wide(float value) { return static_cast<double>(value); }

/// more than a grid's second dimension takes
std::int64_t many_rows() { return sized(65'600, 83); }

Floats rounded(Floats values) {
  std::ranges::transform(values, values.begin(),
                         [](float value) { return to_float(to_bfloat16(value)); });
  return values;
}

class Pattern {
 public:
  explicit Pattern(unsigned seed, DType type = DType::bfloat16, float scale = 1.0F)
      : type_(type), block_(at(period())) {
    std::mt19937 generator(seed);
    for (float& value : block_) {
      value = static_cast<float>(static_cast<std::int32_t>(generator())) * 0x1p-31F * scale;
    }
    if (type == DType::bfloat16) {
      block_ = rounded(block_);
    }
  }
  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] const Floats& block() const { return block_; }
  [[nodiscard]] float operator[](std::int64_t i) const { return block_[at(i % period())]; }
  /// Returns elements begin, begin + stride, ….
  [[nodiscard]] Floats range(std::int64_t begin, std::int64_t count,
                             std::int64_t stride = 1) const {
    Floats values(at(count));
    std::int64_t place = begin % period();
    const std::int64_t step = stride % period();
    for (float& value : values) {
      value = block_[at(place)];
      place += step;
      place -= place < period() ? 0 : period();
    }
    return values;
  }
  [[nodiscard]] Floats row(std::int64_t row, std::int64_t columns) const {
    return range(row * columns, columns);
  }

 private:
  DType type_;
  Floats block_;
};

/// The ends, those around powers of two in rows, elements and bytes, and random ones.
std::vector<std::int64_t> samples(std::int64_t count, std::int64_t width = 1,
                                  std::size_t most = 32) {
  std::set<std::int64_t> found{0, count - 1};
  const auto near = [&](std::int64_t place) {
    for (const std::int64_t row : {place - 1, place, place + 1}) {
      if (0 <= row && row < count) {
        found.insert(row);
      }
    }
  };
  near(1 << 15);
  near(1 << 16);
  if (width > 1) {
    for (const int bits : {29, 30, 31, 32}) {
      near((std::int64_t{1} << bits) / width);
    }
  }
  std::mt19937_64 generator(at(count + width));
  while (found.size() < std::min(most, at(count))) {
    found.insert(static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(count)));
  }
  return {found.begin(), found.end()};
}

class Worst {
 public:
  void see(double found, double expected, double bound, std::int64_t row, std::int64_t column) {
    const double error = std::abs(found - expected);
    const double ratio = std::isnan(error) ? std::numeric_limits<double>::infinity()
                                           : error / std::max(bound, 1e-30);
    if (ratio > ratio_) {
      ratio_ = ratio;
      text_ = "row " + std::to_string(row) + ", column " + std::to_string(column) + ": " +
              std::to_string(found) + ", expected " + std::to_string(expected);
    }
  }
  void expect(const char* what) const { EXPECT_LE(ratio_, 1) << what << ": " << text_; }

 private:
  double ratio_ = 0;
  std::string text_;
};

/// Half a bfloat16 unit in the last place, or a float32's allowance.
double rounding_of(double value, DType type) {
  return type == DType::bfloat16 ? 0x1p-8 * std::abs(value) : 1e-6 * std::abs(value);
}

/// Why the device cannot hold `bytes` besides the kernels' memory, or "".
std::string lack_of(std::int64_t bytes) {
  const auto needed = static_cast<std::uint64_t>(bytes) + (std::uint64_t{3} << 30);
  cuda_memory::give_back_unused();
  const std::uint64_t free = cuda_memory::available().value_or(0);
  return free >= needed ? std::string()
                        : "needs " + std::to_string(needed >> 30) + " GiB of device memory, " +
                              std::to_string(free >> 30) + " are free";
}

class DeviceSizes : public KernelAgreement {
 protected:
  void TearDown() override {
    release();
    KernelAgreement::TearDown();
  }

  void release() { kept_.clear(); }

  TensorView poisoned(Shape shape, DType type) {
    const TensorView view = make(shape, type);
    poison(view);
    return view;
  }
  TensorView filled(Shape shape, const Pattern& pattern) {
    const TensorView view = make(shape, pattern.type());
    repeat(view, pattern.block());
    return view;
  }
  TensorView uploaded(const Floats& values, Shape shape, DType type) {
    const TensorView view = make(shape, type);
    repeat(view, values);
    return view;
  }
  static void poison(const TensorView& view) {
    repeat(view, Floats(at(period()), std::numeric_limits<float>::quiet_NaN()));
  }
  /// Repeats the block that starts the view.
  static void repeat(const TensorView& view, const Floats& block) {
    const std::int64_t count = view.elements();
    const TensorView flat = view.reshaped({count});
    const std::int64_t first = std::min<std::int64_t>(std::ssize(block), count);
    if (view.dtype() == DType::bfloat16) {
      std::vector<BFloat16> shorts(at(first));
      std::transform(block.begin(), block.begin() + first, shorts.begin(), to_bfloat16);
      copy_tensor(ConstTensorView(shorts.data(), {first}), flat.rows(0, first));
    } else {
      copy_tensor(ConstTensorView(block.data(), {first}), flat.rows(0, first));
    }
    for (std::int64_t have = first; have < count;) {
      const std::int64_t more = std::min(have, count - have);
      copy_tensor(flat.rows(0, more), flat.rows(have, have + more));
      have += more;
    }
  }

  /// No NaN or infinity: every element was written.
  void expect_written(const TensorView& view, const char* what) {
    const std::int64_t count = view.elements();
    const TensorView flat = view.reshaped({count});
    double total = 0;
    if (view.dtype() == DType::float32) {
      total = sum_of_squares(*tested_, flat);
    } else {
      const std::int64_t part = std::min(count, std::int64_t{1} << 28);
      const Buffer widened(storage_bytes(part, DType::float32), account_, tested_->device());
      for (std::int64_t begin = 0; begin < count; begin += part) {
        const std::int64_t end = std::min(begin + part, count);
        const TensorView floats = widened.floats({end - begin});
        tested_->convert(flat.rows(begin, end), floats);
        total += sum_of_squares(*tested_, floats);
      }
    }
    EXPECT_TRUE(std::isfinite(total)) << what << ": an element was not written";
  }

  /// Returns the first period() elements, which must repeat.
  Floats expect_periodic(const TensorView& view, const char* what) {
    const std::int64_t count = view.elements();
    const std::int64_t parts = count / period();
    const TensorView flat = view.reshaped({count});
    ResultHashes hashes(*tested_, account_);
    hashes.reset(parts);
    tested_->content_hash_of_parts(flat.rows(0, parts * period()), 1, hashes.part(0, parts));
    const std::span<const std::int64_t> found = hashes.read();
    for (std::int64_t part = 1; part < parts; ++part) {
      if (found[at(part)] != found[0]) {
        ADD_FAILURE() << what << ": wrong from element " << part * period() << " on, or before";
        break;
      }
    }
    Floats first = values_of(flat.rows(0, period()));
    const Floats rest = values_of(flat.rows(parts * period(), count));
    EXPECT_TRUE(same_bits(rest, Floats(first.begin(), first.begin() + std::ssize(rest))))
        << what << ": the last elements";
    return first;
  }

  static Floats row_of(const ConstTensorView& view, std::int64_t row) {
    return values_of(view.rows(row, row + 1));
  }
  static void expect_row(const TensorView& view, std::int64_t row, const Floats& expected,
                         const char* what, double tolerance = kTolerance) {
    const auto error = view.dtype() == DType::bfloat16 ? rounded_error : relative_error;
    EXPECT_LT(error(row_of(view, row), expected), tolerance) << what << " row " << row;
  }

  void check_products(std::int64_t m, std::int64_t n, std::int64_t k, DType operands, DType result);
  void check_attention(DType type);
  void check_loss(DType type);
  void check_cache(DType type, double tolerance);
  void check_decode_product(std::int64_t n, std::int64_t k, WeightStorage storage, bool biased);

 private:
  TensorView make(Shape shape, DType type) {
    kept_.emplace_back(storage_bytes(shape.elements(), type), account_, tested_->device());
    return kept_.back().view(type, shape);
  }

  std::vector<Buffer> kept_;
};

// ---- row-wise

TEST_F(DeviceSizes, SwigluAndItsGradient) {
  const Shape shape{many_rows(), sized(37'889, 51)};
  if (const std::string lack = lack_of(shape.elements() * 8); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern gate(1, DType::bfloat16, 4.0F);
  const Pattern up(2);
  const Pattern dy(3);
  const TensorView gates = filled(shape, gate);
  const TensorView ups = filled(shape, up);
  const TensorView y = poisoned(shape, DType::bfloat16);
  tested_->swiglu(gates, ups, y);
  const Floats found = expect_periodic(y, "y");
  repeat(y, dy.block());
  tested_->swiglu_backward(y, gates, ups, gates, ups);  // Gradients overwrite the inputs.
  const Floats found_gate = expect_periodic(gates, "gate gradient");
  const Floats found_up = expect_periodic(ups, "up gradient");
  const auto expected = run_on(*reference_, [&](Tensors& t) -> std::vector<TensorView> {
    const Shape block{1, period()};
    const TensorView g = t(gate.block(), block, DType::bfloat16);
    const TensorView u = t(up.block(), block, DType::bfloat16);
    const TensorView to = t.blank(block, DType::bfloat16);
    const TensorView dg = t.blank(block, DType::bfloat16);
    const TensorView du = t.blank(block, DType::bfloat16);
    t.kernels.swiglu(g, u, to);
    t.kernels.swiglu_backward(t(dy.block(), block, DType::bfloat16), g, u, dg, du);
    return {to, dg, du};
  });
  EXPECT_LT(rounded_error(found, expected[0]), kTolerance);
  EXPECT_LT(rounded_error(found_gate, expected[1]), kTolerance);
  EXPECT_LT(rounded_error(found_up, expected[2]), kTolerance);
}

TEST_F(DeviceSizes, ConvertAndAdd) {
  const Shape shape{many_rows(), sized(37'889, 51)};
  if (const std::string lack = lack_of(shape.elements() * 6); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern x(4);
  const TensorView shorts = filled(shape, x);
  const TensorView sum = poisoned(shape, DType::float32);
  tested_->convert(shorts, sum);
  EXPECT_TRUE(same_bits(expect_periodic(sum, "widened"), x.block()));
  tested_->add(shorts, sum);
  Floats twice = x.block();
  std::ranges::transform(twice, twice.begin(), [](float value) { return value + value; });
  EXPECT_TRUE(same_bits(expect_periodic(sum, "sum"), twice));
  poison(shorts);
  tested_->convert(sum, shorts);
  EXPECT_TRUE(same_bits(expect_periodic(shorts, "rounded"), twice));
}

TEST_F(DeviceSizes, RmsNormAndItsGradient) {
  const std::int64_t rows = sized(600'001, 83);
  const std::int64_t columns = sized(3584, 56);
  const Shape shape{rows, columns};
  if (const std::string lack = lack_of(shape.elements() * 8); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  constexpr float kEpsilon = 1e-6F;
  const Pattern x(5);
  const Pattern weight(6);
  const Pattern dy(7);
  const Pattern dx(8);
  const Pattern dw(9, DType::float32);
  const TensorView xs = filled(shape, x);
  const TensorView weights = filled({columns}, weight);
  const TensorView y = poisoned(shape, DType::bfloat16);
  const TensorView inverse = poisoned({rows}, DType::float32);
  tested_->rms_norm(xs, weights, kEpsilon, y, inverse);
  const TensorView dxs = filled(shape, dx);
  const TensorView dws = filled({columns}, dw);
  tested_->rms_norm_backward(filled(shape, dy), xs, weights, inverse, dxs, dws);
  expect_written(y, "y");
  expect_written(dxs, "x gradient");
  const Floats inverses = values_of(inverse);
  for (const std::int64_t row : samples(rows, columns)) {
    const Floats own = x.row(row, columns);
    const Floats slopes = dy.row(row, columns);
    double squares = 0;
    double projection = 0;
    for (std::int64_t c = 0; c < columns; ++c) {
      squares += wide(own[at(c)]) * wide(own[at(c)]);
      projection += wide(slopes[at(c)]) * wide(weight[c]) * wide(own[at(c)]);
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(columns) + wide(kEpsilon));
    EXPECT_NEAR(wide(inverses[at(row)]), r, 2e-6 * r) << "row " << row;
    Floats normed;
    Floats slope = dx.row(row, columns);
    for (std::int64_t c = 0; c < columns; ++c) {
      normed.push_back(static_cast<float>(wide(own[at(c)]) * r * wide(weight[c])));
      slope[at(c)] = static_cast<float>(
          wide(slope[at(c)]) + r * wide(slopes[at(c)]) * wide(weight[c]) -
          wide(own[at(c)]) * r * r * r * projection / static_cast<double>(columns));
    }
    expect_row(y, row, normed, "y");
    expect_row(dxs, row, slope, "x gradient");
  }
  Worst worst;
  const Floats found = values_of(dws);
  for (const std::int64_t column : samples(columns, 1, 16)) {
    const Floats own = x.range(column, rows, columns);
    const Floats slopes = dy.range(column, rows, columns);
    double sum = 0;
    double magnitude = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const double term = wide(inverses[at(row)]) * wide(own[at(row)]) * wide(slopes[at(row)]);
      sum += term;
      magnitude += std::abs(term);
    }
    // Errs by far less than one row's term.
    worst.see(wide(found[at(column)]), wide(dw[column]) + sum, 2e-7 * magnitude + 1e-5, 0, column);
  }
  worst.expect("weight gradient");
}

TEST_F(DeviceSizes, AddAndNorm) {
  const std::int64_t rows = sized(600'001, 83);
  const std::int64_t columns = sized(3584, 56);
  const Shape shape{rows, columns};
  if (const std::string lack = lack_of(shape.elements() * 8); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  constexpr float kEpsilon = 1e-6F;
  const Pattern x(10);
  const Pattern weight(11);
  const Pattern stream(12, DType::float32, 2.0F);
  const TensorView streams = filled(shape, stream);
  const TensorView y = poisoned(shape, DType::bfloat16);
  const TensorView inverse = poisoned({rows}, DType::float32);
  tested_->add_rms_norm(filled(shape, x), streams, filled({columns}, weight), kEpsilon, y, inverse);
  Floats sums = stream.block();
  std::ranges::transform(sums, x.block(), sums.begin(), std::plus<>());
  EXPECT_TRUE(same_bits(expect_periodic(streams, "stream"), sums));
  expect_written(y, "y");
  expect_written(inverse, "inverse");
  for (const std::int64_t row : samples(rows, columns)) {
    double squares = 0;
    for (std::int64_t c = 0; c < columns; ++c) {
      const double value = wide(sums[at((row * columns + c) % period())]);
      squares += value * value;
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(columns) + wide(kEpsilon));
    Floats normed;
    for (std::int64_t c = 0; c < columns; ++c) {
      normed.push_back(
          static_cast<float>(wide(sums[at((row * columns + c) % period())]) * r * wide(weight[c])));
    }
    expect_row(y, row, normed, "y");
    EXPECT_NEAR(wide(row_of(inverse, row)[0]), r, 2e-6 * r) << "row " << row;
  }
}

TEST_F(DeviceSizes, RotaryAndItsInverse) {
  const std::int64_t rows = sized(600'001, 83);
  const std::int64_t heads = sized(28, 7);
  const std::int64_t key_heads = sized(4, 1);
  const std::int64_t dim = sized(128, 16);
  const Shape queries{rows, heads, dim};
  const Shape keys{rows, key_heads, dim};
  if (const std::string lack = lack_of((queries.elements() + keys.elements()) * 2); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const RotarySettings settings{.theta = 1e6};
  const Pattern query(13);
  const Pattern key(14);
  std::vector<std::int32_t> positions;
  for (std::int64_t row = 0; row < rows; ++row) {
    positions.push_back(static_cast<std::int32_t>(row * 7919 % 32'749));
  }
  const std::vector<std::int64_t> sampled = samples(rows, heads * dim);
  std::vector<std::int32_t> sampled_positions;
  Floats sampled_q;
  Floats sampled_k;
  for (const std::int64_t row : sampled) {
    sampled_positions.push_back(positions[at(row)]);
    const Floats q = query.row(row, heads * dim);
    const Floats k = key.row(row, key_heads * dim);
    sampled_q.insert(sampled_q.end(), q.begin(), q.end());
    sampled_k.insert(sampled_k.end(), k.begin(), k.end());
  }
  const TestPlan plan(*tested_, kOneHead, batch_at(positions));
  const TensorView q = filled(queries, query);
  const TensorView k = filled(keys, key);
  for (const bool backward : {false, true}) {
    if (backward) {
      repeat(q, query.block());
      repeat(k, key.block());
      tested_->rotary_backward(q, k, (*plan).rows(), settings);
    } else {
      tested_->rotary(q, k, (*plan).rows(), settings);
    }
    const auto expected = run_on(*reference_, [&](Tensors& t) -> std::vector<TensorView> {
      const std::int64_t count = std::ssize(sampled);
      const TensorView some_q = t(sampled_q, {count, heads, dim}, DType::bfloat16);
      const TensorView some_k = t(sampled_k, {count, key_heads, dim}, DType::bfloat16);
      const TestPlan some(t.kernels, kOneHead, batch_at(sampled_positions));
      if (backward) {
        t.kernels.rotary_backward(some_q, some_k, (*some).rows(), settings);
      } else {
        t.kernels.rotary(some_q, some_k, (*some).rows(), settings);
      }
      return {some_q, some_k};
    });
    for (std::size_t i = 0; i < sampled.size(); ++i) {
      const auto row = [&](const Floats& all, std::int64_t width) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i) * width;
        return Floats(begin, begin + width);
      };
      expect_row(q, sampled[i], row(expected[0], heads * dim), "q");
      expect_row(k, sampled[i], row(expected[1], key_heads * dim), "k");
    }
  }
}

TEST_F(DeviceSizes, EmbeddingAndItsGradient) {
  const std::int64_t rows = many_rows();
  const std::int64_t vocabulary = sized(152'064, 41);
  const std::int64_t columns = sized(16'384, 24);
  const Shape table{vocabulary, columns};
  const Shape shape{rows, columns};
  if (const std::string lack = lack_of(table.elements() * 6 + shape.elements() * 4);
      !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  std::vector<TokenId> tokens = tokens_of(rows, static_cast<TokenId>(vocabulary - 1), 15);
  // The last token occurs often and lies beyond 2³¹ elements.
  for (std::int64_t row = 3; row < rows; row += 97) {
    tokens[at(row)] = static_cast<TokenId>(vocabulary - 1);
  }
  const Pattern weight(16);
  const Pattern dy(17);
  const Pattern gradient(18, DType::float32);
  const TestPlan plan(*tested_, kOneHead, batch_of_rows(tokens));
  const TensorView y = poisoned(shape, DType::bfloat16);
  tested_->embedding((*plan).rows(), filled(table, weight), y);
  const TensorView gradients = filled(table, gradient);
  tested_->embedding_backward(*plan, filled(shape, dy), gradients);
  expect_written(y, "output");
  std::set<TokenId> seen{0, static_cast<TokenId>(vocabulary - 1)};
  for (const std::int64_t row : samples(rows, columns)) {
    const TokenId token = tokens[at(row)];
    EXPECT_TRUE(same_bits(row_of(y, row), weight.row(token, columns))) << "row " << row;
    seen.insert(token);
  }
  for (const std::int64_t token : samples(vocabulary, columns)) {
    seen.insert(static_cast<TokenId>(token));
  }
  for (const TokenId token : seen) {
    Floats expected = gradient.row(token, columns);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t c = 0; tokens[at(row)] == token && c < columns; ++c) {
        expected[at(c)] += dy[row * columns + c];
      }
    }
    EXPECT_TRUE(same_bits(row_of(gradients, token), expected)) << "token " << token;
  }
}

TEST_F(DeviceSizes, KeepRows) {
  const std::int64_t rows = many_rows();
  const std::int64_t columns = sized(37'888, 40);
  const Shape shape{rows, columns};
  if (const std::string lack = lack_of(shape.elements() * 2); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern x(19);
  std::vector<std::int32_t> kept;
  for (std::int64_t row = 1; row < rows; row += 1 + row % 3) {
    kept.push_back(static_cast<std::int32_t>(row));
  }
  kept.push_back(static_cast<std::int32_t>(rows - 1));
  kept.erase(std::ranges::unique(kept).begin(), kept.end());
  const TensorView view = filled(shape, x);
  keep_rows(*tested_, kept, view);
  for (const std::int64_t row : samples(std::ssize(kept), columns)) {
    EXPECT_TRUE(same_bits(row_of(view, row), x.row(kept[at(row)], columns))) << "row " << row;
  }
}

// ---- products of training

/// found [R, C] at sampled places must be start + Σ left · right.
struct ProductSamples {
  TensorView found;
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> columns;
  std::vector<Floats> lefts{};   ///< by row
  std::vector<Floats> rights{};  ///< by column

  /// Several hundred standard deviations, but below most single terms.
  template <class Start>
  void expect_close(const Start& start, const char* what, bool rounds_sum = false) const {
    Worst worst;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Floats row = values_of(found.rows(rows[i], rows[i] + 1));
      for (std::size_t j = 0; j < columns.size(); ++j) {
        double sum = 0;
        double magnitude = 0;
        for (std::size_t step = 0; step < lefts[i].size(); ++step) {
          const double term = wide(lefts[i][step]) * wide(rights[j][step]);
          sum += term;
          magnitude += std::abs(term);
        }
        const double expected = start(rows[i], columns[j]) + sum;
        worst.see(wide(row[at(columns[j])]), expected,
                  1e-5 * magnitude + rounding_of(expected, found.dtype()) +
                      (rounds_sum ? rounding_of(sum, found.dtype()) : 0),
                  rows[i], columns[j]);
      }
    }
    worst.expect(what);
  }
};

void DeviceSizes::check_products(std::int64_t m, std::int64_t n, std::int64_t k, DType operands,
                                 DType result) {
  SCOPED_TRACE(std::to_string(m) + " rows, " + std::to_string(n) + " columns, depth " +
               std::to_string(k) + ", " + dtype_name(operands) + " to " + dtype_name(result));
  const auto element = static_cast<std::int64_t>(dtype_bytes(operands) + dtype_bytes(result));
  if (const std::string lack = lack_of((m * k + m * n) * element + n * k * 8); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern x(20, operands);
  const Pattern weight(21, operands);
  const Pattern bias(22, result);
  const Pattern dy(23, operands);
  const Pattern dx(24, result);
  const Pattern dw(25, DType::float32);
  const Pattern db(26, DType::float32);
  const TensorView xs = filled({m, k}, x);
  const TensorView weights = filled({n, k}, weight);
  const std::vector<std::int64_t> rows = samples(m, n, 20);
  const std::vector<std::int64_t> outputs = samples(n, 1, 16);
  const std::vector<std::int64_t> steps = samples(k, 1, 16);

  ProductSamples y{poisoned({m, n}, result), rows, outputs};
  tested_->linear(xs, weights, filled({n}, bias), y.found);
  expect_written(y.found, "y");
  for (const std::int64_t row : y.rows) {
    y.lefts.push_back(x.row(row, k));
  }
  for (const std::int64_t column : y.columns) {
    y.rights.push_back(weight.row(column, k));
  }
  y.expect_close([&](std::int64_t /*row*/, std::int64_t column) { return wide(bias[column]); },
                 "linear");

  const TensorView dys = filled({m, n}, dy);
  const TensorView dxs = poisoned({m, k}, result);
  for (const bool accumulate : {false, true}) {
    ProductSamples of_input{dxs, samples(m, k, 20), steps};
    if (accumulate) {
      repeat(dxs, dx.block());
    }
    tested_->linear_backward_input(dys, weights, dxs, accumulate);
    expect_written(dxs, "x gradient");
    for (const std::int64_t row : of_input.rows) {
      of_input.lefts.push_back(dy.row(row, n));
    }
    for (const std::int64_t column : of_input.columns) {
      of_input.rights.push_back(weight.range(column, n, k));
    }
    of_input.expect_close(
        [&](std::int64_t row, std::int64_t column) {
          return accumulate ? wide(dx[row * k + column]) : 0.0;
        },
        "linear_backward_input", accumulate);
  }

  ProductSamples of_weight{filled({n, k}, dw), outputs, steps};
  const TensorView dbs = filled({n}, db);
  tested_->linear_backward_weight(dys, xs, of_weight.found, dbs, true);
  expect_written(of_weight.found, "weight gradient");
  for (const std::int64_t row : of_weight.rows) {
    of_weight.lefts.push_back(dy.range(row, m, n));
  }
  for (const std::int64_t column : of_weight.columns) {
    of_weight.rights.push_back(x.range(column, m, k));
  }
  of_weight.expect_close(
      [&](std::int64_t row, std::int64_t column) { return wide(dw[row * k + column]); },
      "linear_backward_weight");
  const Floats biases = values_of(dbs);
  Worst worst;
  for (std::size_t i = 0; i < of_weight.rows.size(); ++i) {
    double sum = 0;
    double magnitude = 0;
    for (const float slope : of_weight.lefts[i]) {
      sum += wide(slope);
      magnitude += std::abs(wide(slope));
    }
    const std::int64_t column = of_weight.rows[i];
    worst.see(wide(biases[at(column)]), wide(db[column]) + sum, 1e-6 * magnitude, 0, column);
  }
  worst.expect("bias gradient");
  release();
}

TEST_F(DeviceSizes, ProductsOfManyColumns) {
  check_products(many_rows(), sized(37'888, 96), sized(3584, 48), DType::bfloat16, DType::bfloat16);
}

TEST_F(DeviceSizes, DeepProducts) {
  check_products(many_rows(), sized(3584, 40), sized(18'944, 96), DType::bfloat16, DType::float32);
}

TEST_F(DeviceSizes, ProductsOfFloat32) {
  check_products(many_rows(), sized(512, 24), sized(18'944, 96), DType::float32, DType::float32);
}

// ---- packed attention

/// Half clean rows, half noisy ones in runs that see a prefix.
PackedLayout layout_of_samples(std::int64_t count, std::int64_t rows, std::int64_t run) {
  PackedLayout layout;
  for (std::int64_t sample = 0; sample < count; ++sample) {
    const std::int64_t base = layout.num_rows;
    const std::int64_t noisy = base + rows / 2;
    layout.segments.push_back({base, noisy, base, base, base});
    for (std::int64_t begin = 0; begin < rows / 2; begin += run) {
      layout.segments.push_back(
          {noisy + begin, noisy + begin + run, base, base + begin + 3, noisy + begin});
    }
    layout.num_rows += rows;
  }
  return layout;
}

struct AttentionShape {
  std::int64_t heads = sized(28, 7);
  std::int64_t key_heads = sized(4, 1);
  std::int64_t dim = sized(128, 64);
  std::int64_t rows = sized(1024, 32);  ///< of a sample
  std::int64_t run = sized(32, 8);
  std::int64_t samples = sized(66, 4);
};

/// Computes in double; backward reads the device's output and log-sum-exp.
class SampleAttention {
 public:
  struct Tensors {
    Floats q, k, v, output_gradient, output, log_sum_exp;
  };
  /// Magnitudes of the rounded weights' error and of float32's.
  struct Sums {
    explicit Sums(std::int64_t dim) : value(at(dim)), rounded(at(dim)), exact(at(dim)) {}
    void add(double weight, double magnitude, const float* vector) {
      for (std::size_t d = 0; d < value.size(); ++d) {
        const double element = wide(vector[d]);
        value[d] += weight * element;
        rounded[d] += std::abs(weight * element);
        exact[d] += std::abs(magnitude * element);
      }
    }
    std::vector<double> value, rounded, exact;
  };

  SampleAttention(const AttentionShape& shape, Tensors tensors)
      : shape_(shape),
        tensors_(std::move(tensors)),
        seen_(at(shape.rows)),
        seeing_(at(shape.rows)) {
    const PackedLayout layout = layout_of_samples(1, shape.rows, shape.run);
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      for (std::int64_t key = 0; key <= row; ++key) {
        if (visible(layout, row, key)) {
          seen_[at(row)].push_back(key);
          seeing_[at(key)].push_back(row);
        }
      }
    }
  }

  [[nodiscard]] double log_sum_exp(std::int64_t row, std::int64_t head) const {
    double sum = 0;  // scores are small: no overflow
    for (const std::int64_t key : seen_[at(row)]) {
      sum += std::exp(score(row, head, key));
    }
    return std::log(sum);
  }
  [[nodiscard]] Sums output(std::int64_t row, std::int64_t head) const {
    Sums sums(shape_.dim);
    const double all = log_sum_exp(row, head);
    for (const std::int64_t key : seen_[at(row)]) {
      const double weight = std::exp(score(row, head, key) - all);
      sums.add(weight, weight, key_of(tensors_.v, key, head / group()));
    }
    return sums;
  }
  [[nodiscard]] Sums query_gradient(std::int64_t row, std::int64_t head) const {
    Sums sums(shape_.dim);
    for (const std::int64_t key : seen_[at(row)]) {
      const Slope slope = slope_of(row, head, key);
      sums.add(slope.value, slope.magnitude, key_of(tensors_.k, key, head / group()));
    }
    return sums;
  }
  [[nodiscard]] Sums key_gradient(std::int64_t key, std::int64_t key_head) const {
    Sums sums(shape_.dim);
    for (std::int64_t head = key_head * group(); head < (key_head + 1) * group(); ++head) {
      for (const std::int64_t row : seeing_[at(key)]) {
        const Slope slope = slope_of(row, head, key);
        sums.add(slope.value, slope.magnitude, query_of(tensors_.q, row, head));
      }
    }
    return sums;
  }
  [[nodiscard]] Sums value_gradient(std::int64_t key, std::int64_t key_head) const {
    Sums sums(shape_.dim);
    for (std::int64_t head = key_head * group(); head < (key_head + 1) * group(); ++head) {
      for (const std::int64_t row : seeing_[at(key)]) {
        const double weight = found_weight(row, head, key);
        sums.add(weight, weight, query_of(tensors_.output_gradient, row, head));
      }
    }
    return sums;
  }

 private:
  struct Slope {
    double value;
    double magnitude;
  };
  [[nodiscard]] std::int64_t group() const { return shape_.heads / shape_.key_heads; }
  [[nodiscard]] const float* query_of(const Floats& all, std::int64_t row,
                                      std::int64_t head) const {
    return &all[at((row * shape_.heads + head) * shape_.dim)];
  }
  [[nodiscard]] const float* key_of(const Floats& all, std::int64_t key, std::int64_t head) const {
    return &all[at((key * shape_.key_heads + head) * shape_.dim)];
  }
  [[nodiscard]] double dot(const float* a, const float* b) const {
    double sum = 0;
    for (std::int64_t d = 0; d < shape_.dim; ++d) {
      sum += wide(a[d]) * wide(b[d]);
    }
    return sum;
  }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(shape_.dim)); }
  [[nodiscard]] double score(std::int64_t row, std::int64_t head, std::int64_t key) const {
    return scale() * dot(query_of(tensors_.q, row, head), key_of(tensors_.k, key, head / group()));
  }
  [[nodiscard]] double found_weight(std::int64_t row, std::int64_t head, std::int64_t key) const {
    return std::exp(score(row, head, key) -
                    wide(tensors_.log_sum_exp[at(row * shape_.heads + head)]));
  }
  [[nodiscard]] Slope slope_of(std::int64_t row, std::int64_t head, std::int64_t key) const {
    const float* const gradient = query_of(tensors_.output_gradient, row, head);
    const double dp = dot(gradient, key_of(tensors_.v, key, head / group()));
    const double delta = dot(gradient, query_of(tensors_.output, row, head));
    const double weight = found_weight(row, head, key) * scale();
    return {weight * (dp - delta), weight * (std::abs(dp) + std::abs(delta))};
  }

  AttentionShape shape_;
  Tensors tensors_;
  std::vector<std::vector<std::int64_t>> seen_;    ///< keys, by row
  std::vector<std::vector<std::int64_t>> seeing_;  ///< rows, by key
};

void DeviceSizes::check_attention(DType type) {
  const AttentionShape shape;
  const PackedLayout layout = layout_of_samples(shape.samples, shape.rows, shape.run);
  const Shape queries{layout.num_rows, shape.heads, shape.dim};
  const Shape keys{layout.num_rows, shape.key_heads, shape.dim};
  const auto element = static_cast<std::int64_t>(dtype_bytes(type));
  if (const std::string lack =
          lack_of((4 * queries.elements() + 4 * keys.elements()) * element + (4LL << 30));
      !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern q(30, type);
  const Pattern k(31, type);
  const Pattern v(32, type);
  const Pattern output_gradient(33, type);
  const TensorView qs = filled(queries, q);
  const TensorView ks = filled(keys, k);
  const TensorView vs = filled(keys, v);
  const TensorView gradients = filled(queries, output_gradient);
  const TensorView output = poisoned(queries, type);
  const TensorView log_sum_exp = poisoned({layout.num_rows, shape.heads}, DType::float32);
  const TensorView dq = poisoned(queries, type);
  const TensorView dk = poisoned(keys, type);
  const TensorView dv = poisoned(keys, type);
  const TestPlan plan(*tested_, heads_of(qs, ks), batch_of(layout));
  tested_->packed_attention(*plan, qs, ks, vs, output, log_sum_exp);
  tested_->packed_attention_backward(*plan, gradients, qs, ks, vs, output, log_sum_exp, dq, dk, dv);
  expect_written(output, "output");
  expect_written(log_sum_exp, "log_sum_exp");
  expect_written(dq, "q gradient");
  expect_written(dk, "k gradient");
  expect_written(dv, "v gradient");

  // Bounds of tensor_core_attention_test.cpp; lane kernels round only in float32.
  const double rounding = type == DType::bfloat16 ? 0x1p-8 : 0;
  constexpr double kFloat = 0x1p-14;
  Worst outputs;
  Worst sums;
  std::array<Worst, 3> slopes;
  const std::int64_t half = shape.rows / 2;
  for (const std::int64_t sample :  // Row 65,536 of a device's layout starts sample samples − 2.
       {std::int64_t{0}, shape.samples / 2, shape.samples - 2, shape.samples - 1}) {
    const std::int64_t base = sample * shape.rows;
    const auto found = [&](const TensorView& view) {
      return values_of(view.rows(base, base + shape.rows));
    };
    const auto given = [&](const Pattern& pattern, std::int64_t heads) {
      return pattern.range(base * heads * shape.dim, shape.rows * heads * shape.dim);
    };
    const Floats found_output = found(output);
    const Floats found_sums = found(log_sum_exp);
    const SampleAttention expected(
        shape, {given(q, shape.heads), given(k, shape.key_heads), given(v, shape.key_heads),
                given(output_gradient, shape.heads), found_output, found_sums});
    const auto compare = [&](Worst& worst, const Floats& all, const SampleAttention::Sums& sum,
                             std::int64_t vector, std::int64_t row) {
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        const double value = sum.value[at(d)];
        worst.see(wide(all[at(vector * shape.dim + d)]), value,
                  rounding * (sum.rounded[at(d)] + std::abs(value)) + kFloat * sum.exact[at(d)],
                  base + row, d);
      }
    };
    const Floats found_dq = found(dq);
    const Floats found_dk = found(dk);
    const Floats found_dv = found(dv);
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, half / 2 + 1, half - 1, half,
                                   half + half / 2, shape.rows - 1}) {
      for (const std::int64_t head : {std::int64_t{0}, shape.heads / 2, shape.heads - 1}) {
        const std::int64_t vector = row * shape.heads + head;
        compare(outputs, found_output, expected.output(row, head), vector, row);
        compare(slopes[0], found_dq, expected.query_gradient(row, head), vector, row);
        sums.see(wide(found_sums[at(vector)]), expected.log_sum_exp(row, head), kFloat, base + row,
                 head);
      }
      for (const std::int64_t head : {std::int64_t{0}, shape.key_heads - 1}) {
        const std::int64_t vector = row * shape.key_heads + head;
        compare(slopes[1], found_dk, expected.key_gradient(row, head), vector, row);
        compare(slopes[2], found_dv, expected.value_gradient(row, head), vector, row);
      }
    }
  }
  outputs.expect("output");
  sums.expect("log_sum_exp");
  slopes[0].expect("q gradient");
  slopes[1].expect("k gradient");
  slopes[2].expect("v gradient");
}

TEST_F(DeviceSizes, PackedAttentionOnTensorCores) { check_attention(DType::bfloat16); }

TEST_F(DeviceSizes, PackedAttentionOnLanes) { check_attention(DType::float32); }

// ---- vocabulary loss

/// A few kinds of rows repeat, so that the host can sum all: hidden row r has kind r % kKinds. Item
/// i's clean row is in the first half, its student in the second.
void DeviceSizes::check_loss(DType type) {
  constexpr std::int64_t kKinds = 31;
  constexpr std::int64_t kHidden = 64;
  constexpr float kConsistencyScale = 0.7F;
  constexpr float kArScale = 1.3F;
  constexpr float kWeight = 0x1p-10F;
  const std::int64_t half = sized(32'800, 70);
  const std::int64_t vocabulary = sized(152'064, 45);
  const auto element = static_cast<std::int64_t>(dtype_bytes(type));
  if (const std::string lack = lack_of(vocabulary * kHidden * (element + 4) +
                                       4 * half * kHidden * element + (3LL << 30));
      !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  Floats kinds = random_floats(kKinds * kHidden, 40, 0.5F);
  kinds = type == DType::bfloat16 ? rounded(kinds) : kinds;
  const Pattern head(41, type);
  const Pattern start(42, DType::float32);
  const auto student_of = [&](std::int64_t kind) { return (kind + half) % kKinds; };
  const auto target_of = [&](std::int64_t kind) {
    return vocabulary - 1 - kind * kind * 7 % vocabulary;
  };
  std::vector<LossItem> items;
  std::vector<double> counts(at(kKinds));
  for (std::int64_t row = 0; row < half; ++row) {
    items.push_back({.clean_row = static_cast<std::int32_t>(row),
                     .target = static_cast<TokenId>(target_of(row % kKinds)),
                     .ar_weight = kWeight,
                     .student_row = static_cast<std::int32_t>(half + row),
                     .consistency_weight = kWeight});
    ++counts[at(row % kKinds)];
  }
  const Shape rows{2 * half, kHidden};
  const TensorView gradient = poisoned(rows, type);
  const TensorView head_gradient = filled({vocabulary, kHidden}, start);
  const VocabularyLossSums found =
      vocabulary_loss(*tested_, uploaded(kinds, rows, type), filled({vocabulary, kHidden}, head),
                      items, kConsistencyScale, kArScale, gradient, head_gradient);

  std::vector<std::vector<double>> logs(at(kKinds), std::vector<double>(at(vocabulary)));
  std::vector<std::vector<double>> means(at(kKinds), std::vector<double>(at(kHidden)));
  for (std::int64_t token = 0; token < vocabulary; ++token) {
    const Floats row = head.row(token, kHidden);
    for (std::int64_t kind = 0; kind < kKinds; ++kind) {
      double logit = 0;
      for (std::int64_t c = 0; c < kHidden; ++c) {
        logit += wide(kinds[at(kind * kHidden + c)]) * wide(row[at(c)]);
      }
      logs[at(kind)][at(token)] = logit;
    }
  }
  for (std::vector<double>& log : logs) {
    double sum = 0;  // logits are small: no overflow
    for (const double logit : log) {
      sum += std::exp(logit);
    }
    std::ranges::transform(log, log.begin(), [&](double logit) { return logit - std::log(sum); });
  }
  for (std::int64_t token = 0; token < vocabulary; ++token) {
    const Floats row = head.row(token, kHidden);
    for (std::int64_t kind = 0; kind < kKinds; ++kind) {
      const double p = std::exp(logs[at(kind)][at(token)]);
      for (std::int64_t c = 0; c < kHidden; ++c) {
        means[at(kind)][at(c)] += p * wide(row[at(c)]);
      }
    }
  }
  double consistency = 0;
  double autoregressive = 0;
  for (std::int64_t kind = 0; kind < kKinds; ++kind) {
    const std::vector<double>& teacher = logs[at(kind)];
    const std::vector<double>& student = logs[at(student_of(kind))];
    double divergence = 0;
    for (std::size_t token = 0; token < teacher.size(); ++token) {
      divergence += std::exp(teacher[token]) * (teacher[token] - student[token]);
    }
    consistency += counts[at(kind)] * wide(kWeight) * divergence;
    autoregressive -= counts[at(kind)] * wide(kWeight) * teacher[at(target_of(kind))];
  }
  EXPECT_NEAR(found.consistency, consistency, 1e-4 * consistency);
  EXPECT_NEAR(found.autoregressive, autoregressive, 1e-5 * autoregressive);

  // Logit gradients are rounded to the element type; |head| < 1.
  const double rounding = type == DType::bfloat16 ? 0x1p-8 : 1e-4;
  const double student_weight = wide(kConsistencyScale) * wide(kWeight);
  const double clean_weight = wide(kArScale) * wide(kWeight);
  const Floats gradients = values_of(gradient);
  Worst worst;
  for (std::int64_t row = 0; row < 2 * half; ++row) {
    const bool clean = row < half;
    const std::int64_t kind = (clean ? row : row - half) % kKinds;
    for (std::int64_t c = 0; c < kHidden; ++c) {
      const double expected =
          clean
              ? clean_weight * (means[at(kind)][at(c)] - wide(head[target_of(kind) * kHidden + c]))
              : student_weight * (means[at(student_of(kind))][at(c)] - means[at(kind)][at(c)]);
      // Both sums are below twice the weight.
      const double bound = 2 * rounding * (clean ? clean_weight : student_weight);
      worst.see(wide(gradients[at(row * kHidden + c)]), expected, bound, row, c);
    }
  }
  worst.expect("hidden gradient");
  std::set<std::int64_t> tokens;
  for (std::int64_t kind = 0; kind < kKinds; ++kind) {
    tokens.insert(target_of(kind));
  }
  for (const std::int64_t token : samples(vocabulary, kHidden)) {
    tokens.insert(token);
  }
  Worst of_head;
  for (const std::int64_t token : tokens) {
    const Floats row = row_of(head_gradient, token);
    for (std::int64_t c = 0; c < kHidden; ++c) {
      double sum = 0;
      double magnitude = 0;
      for (std::int64_t kind = 0; kind < kKinds; ++kind) {
        const std::int64_t student = student_of(kind);
        const double p = std::exp(logs[at(kind)][at(token)]);
        const double own = std::exp(logs[at(student)][at(token)]);
        const double clean = p - (token == target_of(kind) ? 1 : 0);
        const double hidden = wide(kinds[at(kind * kHidden + c)]);
        const double of_student = wide(kinds[at(student * kHidden + c)]);
        sum += counts[at(kind)] *
               (student_weight * (own - p) * of_student + clean_weight * clean * hidden);
        magnitude += counts[at(kind)] * (student_weight * (own + p) * std::abs(of_student) +
                                         clean_weight * std::abs(clean * hidden));
      }
      const double expected = wide(start[token * kHidden + c]) + sum;
      of_head.see(wide(row[at(c)]), expected,  // Chunks are added one after another.
                  rounding * magnitude + 1e-5 * (1 + std::abs(expected)), token, c);
    }
  }
  of_head.expect("head gradient");
}

TEST_F(DeviceSizes, VocabularyLossOfBfloat16) { check_loss(DType::bfloat16); }

TEST_F(DeviceSizes, VocabularyLossOfFloat32) { check_loss(DType::float32); }

// ---- decoding

/// More than 2³¹ elements, NaN except for a dozen pages at the ends and around powers of two.
void DeviceSizes::check_cache(DType type, double tolerance) {
  constexpr std::int64_t kSlotPages = 4;
  const std::int64_t heads = sized(28, 7);
  const std::int64_t key_heads = sized(4, 1);
  const std::int64_t dim = sized(128, 64);
  const std::int64_t num_pages = sized(66'600, 20);
  const Shape cache_shape{num_pages, kCachePageRows, key_heads, dim};
  if (const std::string lack =
          lack_of(2 * static_cast<std::int64_t>(storage_bytes(cache_shape.elements(), type)));
      !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  std::vector<std::int32_t> pages;
  for (const std::int64_t page :
       {std::int64_t{0}, num_pages - 1, 65'535 % num_pages, 65'536 % num_pages, 32'767 % num_pages,
        32'768 % num_pages, std::int64_t{1}, num_pages / 2, num_pages - 2, num_pages - 3,
        std::int64_t{2}, std::int64_t{3}}) {
    pages.push_back(static_cast<std::int32_t>(page));
  }
  ASSERT_EQ(std::set<std::int32_t>(pages.begin(), pages.end()).size(), pages.size());
  std::vector<CacheRow> written;
  std::vector<CacheRow> seeing;
  for (std::int32_t slot = 0; slot < 3; ++slot) {
    for (std::int32_t row = 0; row < 240; ++row) {
      written.push_back({slot, row});
    }
    for (const std::int32_t position : {0, 63, 64, 127, 128, 200, 239}) {
      seeing.push_back({slot, position});
    }
  }
  std::vector<CacheRow> rotated;
  for (std::int32_t i = 0; i < 10; ++i) {
    rotated.push_back({1, 240 + i});
    seeing.push_back({1, 240 + i});
    seeing.push_back({2, 100 + i, 100, 180});
  }
  const std::vector<CacheCopy> copies{{2, 17, 130}, {2, 200, 3}, {0, 5, 199}};
  const auto work = [&](Tensors& t, const PagedCache& cache) {
    const auto given = [&](std::int64_t rows, std::int64_t own, unsigned seed) {
      const Shape shape{rows, own, dim};
      return t(rounded(random_floats(shape.elements(), seed)), shape);
    };
    const auto count = [](const std::vector<CacheRow>& rows) { return std::ssize(rows); };
    cache_write(t.kernels, written, given(count(written), key_heads, 50),
                given(count(written), key_heads, 51), cache);
    cache_copy(t.kernels, copies, cache);
    const TensorView queries = given(count(rotated), heads, 52);
    {
      const TestDecodePlan plan(
          t.kernels, heads, cache,
          {.tokens = {}, .places = rotated, .kept = {}, .copies = {}, .table = cache.table});
      t.kernels.rotate_and_write(
          *plan, DecodeRows::all, queries, given(count(rotated), key_heads, 53),
          given(count(rotated), key_heads, 54), {}, {.theta = 1e4}, cache.layer());
    }
    const TensorView output = t.blank({count(seeing), heads, dim});
    cached_attention(t.kernels, seeing, given(count(seeing), heads, 55), cache, output);
    std::vector<TensorView> results{output, queries};
    const TensorView values =
        cache.values.reshaped({cache.values.dim(0) * kCachePageRows, key_heads * dim});
    for (const CacheRow& row : {CacheRow{0, 0},
                                {0, 64},
                                {0, 199},
                                {0, 239},
                                {1, 3},
                                {1, 100},
                                {1, 249},
                                {2, 3},
                                {2, 130},
                                {2, 239}}) {
      const std::int64_t place = cache.table.place(row.slot, row.row());
      results.push_back(values.rows(place, place + 1));
    }
    return results;
  };
  const PagedCache large{
      poisoned(cache_shape, type), poisoned(cache_shape, type), {pages, kSlotPages}};
  const std::vector<Floats> found = run_on(*tested_, [&](Tensors& t) { return work(t, large); });
  const std::vector<Floats> expected = run_on(*reference_, [&](Tensors& t) {
    const FullSlots slots(3, kSlotPages);
    const Shape shape = slots.shape(key_heads, dim);
    return work(t, {t.blank(shape), t.blank(shape), slots.table()});
  });
  EXPECT_LT(relative_error(found[0], expected[0]), tolerance) << "attention";
  EXPECT_LT(relative_error(found[1], expected[1]), kTolerance) << "rotated queries";
  for (std::size_t i = 2; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i], expected[i])) << "cached value " << i - 2;
  }
}

TEST_F(DeviceSizes, CacheOfFloat32) { check_cache(DType::float32, kTolerance); }

TEST_F(DeviceSizes, CacheOfBfloat16) { check_cache(DType::bfloat16, 0x1p-7); }

void DeviceSizes::check_decode_product(std::int64_t n, std::int64_t k, WeightStorage storage,
                                       bool biased) {
  SCOPED_TRACE(std::to_string(n) + " columns, depth " + std::to_string(k) + ", storage " +
               std::to_string(static_cast<int>(storage)));
  const std::int64_t m = sized(640, 70);
  if (const std::string lack =
          lack_of(n * k * (storage == WeightStorage::float32 ? 6 : 4) + m * (2 * n + k) * 4);
      !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern x(60, DType::float32);
  const Pattern weight(61);
  const Pattern bias(62, DType::float32);
  const ConstTensorView added = biased ? filled({n}, bias) : TensorView();
  const auto packed = tested_->pack_weight(filled({n, k}, weight), storage, account_);
  const TensorView xs = filled({m, k}, x);
  const TensorView y = poisoned({m, n}, DType::float32);
  tested_->invariant_linear(xs, *packed, added, y);
  expect_written(y, "y");
  const bool rounds_rows = storage == WeightStorage::bfloat16_arithmetic;
  Worst worst;
  const std::vector<std::int64_t> rows = samples(m, 1, 16);
  const std::vector<std::int64_t> columns = samples(n, k, 20);
  for (const std::int64_t row : rows) {
    const Floats found = row_of(y, row);
    const Floats left = rounds_rows ? rounded(x.row(row, k)) : x.row(row, k);
    for (const std::int64_t column : columns) {
      const Floats right = weight.row(column, k);
      float in_order = 0;
      double sum = 0;
      double magnitude = 0;
      for (std::int64_t step = 0; step < k; ++step) {
        in_order = std::fma(left[at(step)], right[at(step)], in_order);
        const double term = wide(left[at(step)]) * wide(right[at(step)]);
        sum += term;
        magnitude += std::abs(term);
      }
      const float own_bias = biased ? bias[column] : 0.0F;
      if (rounds_rows) {
        worst.see(wide(found[at(column)]), sum + wide(own_bias), 1e-5 * magnitude, row, column);
      } else {
        worst.see(wide(found[at(column)]), wide(biased ? in_order + own_bias : in_order), 0, row,
                  column);
      }
    }
  }
  worst.expect("invariant_linear");
  for (const std::int64_t few : {1, 8, 64}) {
    for (const std::int64_t begin : {std::int64_t{0}, m - few}) {
      const TensorView part = poisoned({few, n}, DType::float32);
      tested_->invariant_linear(xs.rows(begin, begin + few), *packed, added, part);
      EXPECT_TRUE(same_bits(values_of(part), values_of(y.rows(begin, begin + few))))
          << few << " rows from " << begin;
    }
  }
  if (!biased) {
    std::vector<TokenId> tokens(at(m), -77);
    invariant_argmax(*tested_, xs, *packed, tokens);
    for (const std::int64_t row : rows) {
      const Floats logits = row_of(y, row);
      EXPECT_EQ(tokens[at(row)], std::ranges::max_element(logits) - logits.begin())
          << "row " << row;
    }
  }
  release();
}

constexpr std::array<WeightStorage, 3> kStorages{WeightStorage::float32, WeightStorage::bfloat16,
                                                 WeightStorage::bfloat16_arithmetic};

TEST_F(DeviceSizes, DecodeDownProjection) {
  for (const WeightStorage storage : kStorages) {
    check_decode_product(sized(3584, 40), sized(18'944, 160), storage, true);
  }
}

TEST_F(DeviceSizes, DecodeGateAndUp) {
  for (const WeightStorage storage : kStorages) {
    check_decode_product(sized(37'888, 96), sized(3584, 64), storage, true);
  }
}

TEST_F(DeviceSizes, DecodeLogits) {
  for (const WeightStorage storage : kStorages) {
    check_decode_product(sized(152'064, 130), sized(16'384, 64), storage, false);
  }
}

TEST_F(DeviceSizes, ArgmaxOfManyRows) {
  const std::int64_t rows = many_rows();
  const std::int64_t vocabulary = sized(152'064, 130);
  constexpr std::int64_t kHidden = 64;
  // Eight bytes for every sixteen columns.
  if (const std::string lack = lack_of(rows * vocabulary / 2 + vocabulary * kHidden * 6);
      !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern hidden(63, DType::float32);
  const Pattern head(64);
  const TensorView hiddens = filled({rows, kHidden}, hidden);
  const TensorView heads = filled({vocabulary, kHidden}, head);
  const std::vector<std::int64_t> sampled = samples(rows, kHidden);
  for (const WeightStorage storage :
       {WeightStorage::bfloat16, WeightStorage::bfloat16_arithmetic}) {
    const auto packed = tested_->pack_weight(heads, storage, account_);
    std::vector<TokenId> tokens(at(rows), -77);
    invariant_argmax(*tested_, hiddens, *packed, tokens);
    EXPECT_TRUE(std::ranges::all_of(
        tokens, [&](TokenId token) { return 0 <= token && token < vocabulary; }));
    // Rows that were not computed would share a token.
    EXPECT_GT(std::set<TokenId>(tokens.begin(), tokens.end()).size(), at(sized(1000, 20)));
    std::vector<Floats> lefts;
    for (const std::int64_t row : sampled) {
      const Floats own = hidden.row(row, kHidden);
      lefts.push_back(storage == WeightStorage::bfloat16 ? own : rounded(own));
    }
    constexpr double kLowest = -std::numeric_limits<double>::infinity();
    std::vector<double> best(sampled.size(), kLowest);
    std::vector<double> chosen(sampled.size(), kLowest);
    for (std::int64_t token = 0; token < vocabulary; ++token) {
      const Floats right = head.row(token, kHidden);
      for (std::size_t i = 0; i < sampled.size(); ++i) {
        double logit = 0;
        for (std::size_t c = 0; c < right.size(); ++c) {
          logit += wide(lefts[i][c]) * wide(right[c]);
        }
        best[i] = std::max(best[i], logit);
        chosen[i] = token == tokens[at(sampled[i])] ? logit : chosen[i];
      }
    }
    for (std::size_t i = 0; i < sampled.size(); ++i) {
      // Logits closer than the rounding error may swap ranks.
      EXPECT_GE(chosen[i], best[i] - 1e-4) << "row " << sampled[i];
    }
  }
}

TEST_F(DeviceSizes, SampledTokensOfManyRows) {
  const std::int64_t rows = many_rows();
  const std::int64_t vocabulary = sized(37'888, 130);
  // logits, and top-k and top-p candidates of the same size
  if (const std::string lack = lack_of(rows * vocabulary * 8); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern logit(65, DType::float32, 8.0F);
  std::vector<SampledRow> options;
  const std::array<SamplingOptions, 4> settings{
      SamplingOptions{}, SamplingOptions{.temperature = 0.8, .seed = 5},
      SamplingOptions{.temperature = 2, .top_k = 40, .seed = 6},
      SamplingOptions{.temperature = 1, .top_p = 0.7, .seed = 7}};
  for (std::int64_t row = 0; row < rows; ++row) {
    options.push_back({.options = settings[at(row % 4)], .request = row / 7, .position = row});
  }
  const auto choose = [&](KernelSet& kernels, const TensorView& logits,
                          const std::vector<SampledRow>& wanted) {
    std::vector<TokenId> tokens(wanted.size(), -77);
    const Buffer memory(tokens.size() * sizeof(TokenId), account_, kernels.device());
    const TensorView chosen = memory.view(DType::int32, {std::ssize(tokens)});
    copy_tensor(ConstTensorView(tokens.data(), {std::ssize(tokens)}), chosen);
    kernels.sample_tokens(logits, wanted, chosen);
    read_tokens(kernels, chosen, tokens);
    return tokens;
  };
  const std::vector<TokenId> found = choose(*tested_, filled({rows, vocabulary}, logit), options);
  std::vector<SampledRow> some;
  Floats logits;
  std::vector<TokenId> found_some;
  for (const std::int64_t row : samples(rows, vocabulary, 48)) {
    some.push_back(options[at(row)]);
    found_some.push_back(found[at(row)]);
    const Floats own = logit.row(row, vocabulary);
    logits.insert(logits.end(), own.begin(), own.end());
  }
  const TensorView host(logits.data(), {std::ssize(some), vocabulary});
  EXPECT_EQ(found_some, choose(*reference_, host, some));
  EXPECT_TRUE(
      std::ranges::all_of(found, [&](TokenId token) { return 0 <= token && token < vocabulary; }));
}

// ---- the update

TEST_F(DeviceSizes, AdamWAndSumOfSquares) {
  const std::int64_t count = sized(std::int64_t{1} << 31, 4000) + 3 * period() + 77;
  if (const std::string lack = lack_of(count * 18); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern gradient(70, DType::float32);
  const Pattern parameter(71, DType::float32);
  const Pattern first(72, DType::float32, 0.1F);
  Floats squares = Pattern(73, DType::float32, 0.1F).block();
  std::ranges::transform(squares, squares.begin(), [](float value) { return std::abs(value); });
  const AdamWSettings settings{
      .learning_rate = 1e-3F, .weight_decay = 0.1F, .gradient_scale = 0.5F, .step = 3};
  const TensorView gradients = filled({count}, gradient);
  double expected_sum = 0;
  double rest = 0;
  for (std::int64_t i = 0; i < period(); ++i) {
    const double square = wide(gradient[i]) * wide(gradient[i]);
    expected_sum += square * static_cast<double>(count / period());
    rest += i < count % period() ? square : 0;
  }
  expected_sum += rest;
  EXPECT_NEAR(sum_of_squares(*tested_, gradients), expected_sum, 1e-10 * expected_sum);
  const AdamWState state{filled({count}, parameter), filled({count}, first),
                         uploaded(squares, {count}, DType::float32),
                         poisoned({count}, DType::bfloat16)};
  tested_->adamw(settings, true, gradients, state);
  const std::vector<Floats> found{
      expect_periodic(state.parameter, "parameter"), expect_periodic(state.first_moment, "first"),
      expect_periodic(state.second_moment, "second"), expect_periodic(state.rounded, "rounded")};
  const auto expected = run_on(*reference_, [&](Tensors& t) -> std::vector<TensorView> {
    const Shape block{period()};
    const AdamWState own{t(parameter.block(), block), t(first.block(), block), t(squares, block),
                         t.blank(block, DType::bfloat16)};
    t.kernels.adamw(settings, true, t(gradient.block(), block), own);
    return {own.parameter, own.first_moment, own.second_moment, own.rounded};
  });
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i], expected[i])) << "tensor " << i;
  }
}

TEST_F(DeviceSizes, ContentHash) {
  const std::int64_t count = sized(std::int64_t{1} << 31, 4000) + 3 * period() + 77;
  if (const std::string lack = lack_of(count * 2); !lack.empty()) {
    GTEST_SKIP() << lack;
  }
  const Pattern x(80);
  const TensorView device = filled({count}, x);
  const std::uint64_t found = content_hash(*tested_, device, 9);
  const Buffer memory(storage_bytes(count, DType::bfloat16), account_);
  const TensorView host = memory.view(DType::bfloat16, {count});
  repeat(host, x.block());
  EXPECT_EQ(found, content_hash(*reference_, host, 9));
}

}  // namespace
}  // namespace jforge::test
