/// Sizes that need a real device: more than 65,535 rows, 2³¹ elements or 2³² bytes. The emulated
/// device runs the same tests on a few rows, to check the tests. The device's rows repeat a block
/// of rows, so its results must repeat the CPU's results for the block, and its sums over rows are
/// multiples of the CPU's. No power of two is a multiple of a block, so an index that is off by a
/// power of two reads another row. Outputs start as NaN.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "model/kernels/result_sums.h"
#include "model/transformer/packed_layout.h"
#include "runtime/tensor/cuda_memory.h"
#include "tests/gpu/kernel_agreement.h"
#include "tests/support/kernel_calls.h"

namespace jforge::test {
namespace {

using enum DType;

std::int64_t sized(std::int64_t on_device, std::int64_t emulated) {
  static const bool emulates = ::dlsym(RTLD_DEFAULT, "jforge_emulated_keep_work") != nullptr;
  return emulates ? emulated : on_device;
}
std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// A block of different rows and how often the device repeats it.
struct Rows {
  std::int64_t block;
  std::int64_t count;
  [[nodiscard]] std::int64_t total() const { return block * count; }
};
/// more than a grid's second dimension takes
Rows many_rows() { return {sized(509, 11), sized(129, 7)}; }
/// with 3,584 columns more than 2³¹ elements
Rows most_rows() { return {sized(509, 11), sized(1179, 7)}; }

/// Random values in [−scale, scale], multiples of `step`.
struct Filling {
  unsigned seed;
  DType type = bfloat16;
  float scale = 1;
  float step = 0x1p-31F;

  [[nodiscard]] Floats floats(std::int64_t count) const {
    std::mt19937 generator(seed);
    Floats values(at(count));
    for (float& value : values) {
      value = static_cast<float>(static_cast<std::int32_t>(generator())) * 0x1p-31F * scale;
      value = std::nearbyint(value / step) * step;
    }
    return values;
  }
};
/// Products of these and sums of 2¹⁶ products are exact in float32, in every order.
Filling exact(unsigned seed, DType type) { return {seed, type, 1, 0x1p-4F}; }

/// Elements after which whole tensors repeat themselves: eight times a prime that exceeds every
/// vocabulary, so that no two tokens have equal rows.
std::int64_t period() { return 8 * sized(262'147, 131); }

/// One side of a comparison: the CPU works on the block, the device on its repetitions.
class Side {
 public:
  struct Result {
    const char* what;
    Floats values;
    DType type;
    double tolerance;
  };

  Side(KernelSet& set, MemoryAccount& account, const Rows& rows)
      : kernels(set),
        on_device(set.device() != Device::cpu),
        times(on_device ? rows.count : 1),
        factor(rows.count / times),
        total(rows.block * times),
        account_(account) {}

  /// Returns a tensor that repeats the block.
  TensorView filled(const Shape& shape, DType type, const Floats& block) {
    kept_.emplace_back(storage_bytes(shape.elements(), type), account_, kernels.device());
    const TensorView view = kept_.back().view(type, shape);
    repeat(view, block);
    return view;
  }
  TensorView unwritten(const Shape& shape, DType type = bfloat16) {
    return filled(shape, type, {NAN});
  }
  /// Returns a tensor whose rows repeat a block.
  TensorView rows(const Filling& filling, const Shape& shape) {
    return filled(shape, filling.type, block_for(filling, shape));
  }
  void refill(const TensorView& view, const Filling& filling) {
    repeat(view, block_for(filling, view.shape()));
  }
  /// Returns a tensor that is the same on both sides.
  TensorView whole(const Filling& filling, const Shape& shape) {
    return filled(shape, filling.type, filling.floats(std::min(period(), shape.elements())));
  }
  /// Returns a tensor to add sums over rows to; on the CPU, totals() does this.
  TensorView start(const Filling& filling, const Shape& shape) {
    return on_device ? whole(filling, shape) : filled(shape, filling.type, {0.0F});
  }

  /// Notes rows. The device's must have the same bits in each of `parts`, otherwise in `times`.
  void repeats(const char* what, const TensorView& view, double tolerance = kTolerance,
               std::int64_t parts = 0) {
    parts = parts > 0 ? parts : times;
    const std::int64_t count = view.elements();
    const TensorView flat = view.reshaped({count});
    ResultHashes hashes(kernels, account_);
    hashes.reset(parts);
    kernels.content_hash_of_parts(flat, 1, hashes.part(0, parts));
    const std::span<const std::int64_t> found = hashes.read();
    const auto equal = std::ranges::adjacent_find(found, std::not_equal_to<>()) - found.begin();
    EXPECT_EQ(equal, parts) << what << " differs after this repetition";
    results.push_back({what, values_of(flat.rows(0, count / parts)), view.dtype(), tolerance});
    const Floats end = values_of(flat.rows(count - count / parts, count));  // without hashes
    EXPECT_TRUE(same_bits(end, results.back().values)) << what;
  }
  /// Notes sums over rows that were added to start(filling).
  void totals(const char* what, const TensorView& view, const Filling& filling, double tolerance) {
    Floats sums = values_of(view);
    if (!on_device) {
      const Floats begin = filling.floats(std::min(period(), view.elements()));
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] = begin[i % begin.size()] + static_cast<float>(factor) * sums[i];
      }
    }
    results.push_back({what, std::move(sums), view.dtype(), tolerance});
  }
  /// Notes values of rows, which need not repeat bit by bit.
  void all_rows(const char* what, const Floats& values, double tolerance, DType type = float32) {
    Floats all;
    for (std::int64_t i = 0; i < factor; ++i) {
      all.insert(all.end(), values.begin(), values.end());
    }
    results.push_back({what, std::move(all), type, tolerance});
  }

  KernelSet& kernels;
  const bool on_device;
  const std::int64_t times;   ///< that the block occurs
  const std::int64_t factor;  ///< of this side's sums over rows
  const std::int64_t total;
  std::vector<Result> results;

 private:
  [[nodiscard]] Floats block_for(const Filling& filling, const Shape& shape) const {
    return filling.floats(shape.elements() / shape[0] * (total / times));
  }
  void repeat(const TensorView& view, const Floats& block) {
    const std::int64_t count = view.elements();
    const TensorView flat = view.reshaped({count});
    std::int64_t have = std::ssize(block);
    copy_tensor(DeviceTensor(kernels, account_, block, {have}, view.dtype()).view(),
                flat.rows(0, have));
    while (have < count) {
      const std::int64_t more = std::min(have, count - have);
      copy_tensor(flat.rows(0, more), flat.rows(have, have + more));
      have += more;
    }
  }

  MemoryAccount& account_;
  std::vector<Buffer> kept_;
};

class DeviceSizes : public KernelAgreement {
 protected:
  /// Skips if the device cannot hold `bytes` besides the kernels' memory.
  void check(const Rows& rows, std::int64_t bytes, const std::function<void(Side&)>& work) {
    const auto needed = static_cast<std::uint64_t>(bytes) + (std::uint64_t{3} << 30);
    cuda_memory::give_back_unused();
    if (const std::uint64_t free = cuda_memory::available().value_or(0); free < needed) {
      GTEST_SKIP() << "needs " << needed << " bytes of device memory, " << free << " are free";
    }
    Side found(*tested_, account_, rows);
    Side expected(*reference_, account_, rows);
    work(found);
    work(expected);
    ASSERT_EQ(found.results.size(), expected.results.size());
    for (std::size_t i = 0; i < found.results.size(); ++i) {
      const auto& [what, values, type, tolerance] = found.results[i];
      const auto error = type == bfloat16 && tolerance > 0 ? rounded_error : relative_error;
      EXPECT_LE(error(values, expected.results[i].values), tolerance) << what;
    }
  }

  void check_products(std::int64_t n, std::int64_t k, DType operands, DType result);
  void check_attention(DType type);
  void check_loss(DType type);
  void check_cache(DType type, double tolerance);
  void check_decode_product(std::int64_t n, std::int64_t k, bool biased);
};

TEST_F(DeviceSizes, SwigluAndItsGradient) {
  const std::int64_t columns = sized(37'889, 51);
  check(many_rows(), many_rows().total() * columns * 8, [&](Side& s) {
    const TensorView gate = s.rows({1, bfloat16, 4}, {s.total, columns});
    const TensorView up = s.rows({2}, {s.total, columns});
    const TensorView y = s.unwritten({s.total, columns});
    s.kernels.swiglu(gate, up, y);
    s.repeats("y", y);
    s.refill(y, {3});
    s.kernels.swiglu_backward(y, gate, up, gate, up);  // Gradients overwrite the inputs.
    s.repeats("gate gradient", gate);
    s.repeats("up gradient", up);
  });
}

TEST_F(DeviceSizes, ConvertAndAdd) {
  const std::int64_t columns = sized(37'889, 51);
  check(many_rows(), many_rows().total() * columns * 6, [&](Side& s) {
    const TensorView shorts = s.rows({4}, {s.total, columns});
    const TensorView sum = s.unwritten({s.total, columns}, float32);
    s.kernels.convert(shorts, sum);
    s.repeats("widened", sum, 0);
    s.kernels.add(shorts, sum);
    s.repeats("sum", sum, 0);
    s.kernels.convert(sum, shorts);
    s.repeats("rounded", shorts, 0);
  });
}

TEST_F(DeviceSizes, RmsNormAndItsGradient) {
  const std::int64_t columns = sized(3584, 56);
  check(most_rows(), most_rows().total() * columns * 8, [&](Side& s) {
    const TensorView x = s.rows({5}, {s.total, columns});
    const TensorView weight = s.whole({6}, {columns});
    const TensorView y = s.unwritten({s.total, columns});
    const TensorView inverse = s.unwritten({s.total}, float32);
    s.kernels.rms_norm(x, weight, 1e-6F, y, inverse);
    s.repeats("y", y);
    s.repeats("inverse", inverse);
    const TensorView dx = s.rows({8}, {s.total, columns});
    const TensorView dw = s.start({9, float32}, {columns});
    s.kernels.rms_norm_backward(s.rows({7}, dx.shape()), x, weight, inverse, dx, dw);
    s.repeats("x gradient", dx);
    // The largest sums are about 5e4, a row's largest term is at least 1.6.
    s.totals("weight gradient", dw, {9, float32}, 1e-5);
  });
}

TEST_F(DeviceSizes, AddAndNorm) {
  const std::int64_t columns = sized(3584, 56);
  check(most_rows(), most_rows().total() * columns * 8, [&](Side& s) {
    const TensorView x = s.rows({10}, {s.total, columns});
    const TensorView stream = s.rows({12, float32, 2}, {s.total, columns});
    const TensorView y = s.unwritten({s.total, columns});
    const TensorView inverse = s.unwritten({s.total}, float32);
    s.kernels.add_rms_norm(x, stream, s.whole({11}, {columns}), 1e-6F, y, inverse);
    s.repeats("stream", stream, 0);
    s.repeats("y", y);
    s.repeats("inverse", inverse);
  });
}

TEST_F(DeviceSizes, RotaryAndItsInverse) {
  const Rows rows = most_rows();
  const std::int64_t heads = sized(28, 7);
  const std::int64_t key_heads = sized(4, 1);
  const std::int64_t dim = sized(128, 16);
  check(rows, rows.total() * (heads + key_heads) * dim * 2, [&](Side& s) {
    std::vector<std::int32_t> positions;
    for (std::int64_t row = 0; row < s.total; ++row) {
      positions.push_back(static_cast<std::int32_t>(row % rows.block * 7919 % 32'749));
    }
    const TestPlan plan(s.kernels, kOneHead, batch_at(positions));
    const TensorView q = s.rows({13}, {s.total, heads, dim});
    const TensorView k = s.rows({14}, {s.total, key_heads, dim});
    s.kernels.rotary(q, k, (*plan).rows(), {.theta = 1e6});
    s.repeats("q", q);
    s.repeats("k", k);
    s.refill(q, {13});
    s.refill(k, {14});
    s.kernels.rotary_backward(q, k, (*plan).rows(), {.theta = 1e6});
    s.repeats("q gradient", q);
    s.repeats("k gradient", k);
  });
}

TEST_F(DeviceSizes, EmbeddingAndItsGradient) {
  const Rows rows{sized(509, 11), sized(598, 8)};
  const std::int64_t columns = sized(16'384, 24);
  check(rows, rows.total() * columns * 7, [&](Side& s) {
    const std::int64_t vocabulary = s.on_device ? s.total / 2 : s.total;
    std::vector<TokenId> tokens;
    for (std::int64_t row = 0; row < s.total; ++row) {
      tokens.push_back(static_cast<TokenId>(row * 7 % vocabulary));
    }
    const TestPlan plan(s.kernels, kOneHead, batch_of_rows(tokens));
    const TensorView y = s.unwritten({s.total, columns});
    s.kernels.embedding((*plan).rows(), s.rows({16}, {vocabulary, columns}), y);
    s.repeats("y", y, 0);
    const TensorView dy = s.rows({17}, {s.total, columns});
    const TensorView gradient = s.rows({18, float32}, {vocabulary, columns});
    for (std::int64_t token = 0; token < 2 * vocabulary; token += s.total) {  // twice on the CPU
      s.kernels.embedding_backward(*plan, dy, gradient);
    }
    s.repeats("gradient", gradient, 0, vocabulary / rows.block);
  });
}

TEST_F(DeviceSizes, KeepRows) {
  const Rows rows = many_rows();
  const std::int64_t columns = sized(37'888, 40);
  check(rows, rows.total() * columns * 2, [&](Side& s) {
    std::vector<std::int32_t> kept;  // an odd number of each block
    for (std::int64_t row = 0; row < s.total; ++row) {
      if (row % rows.block % 3 != 1) {
        kept.push_back(static_cast<std::int32_t>(row));
      }
    }
    const TensorView x = s.rows({19}, {s.total, columns});
    keep_rows(s.kernels, kept, x);
    s.repeats("kept rows", x.rows(0, std::ssize(kept)), 0);
  });
}

/// Sums are exact, so all elements are compared, whatever the order in which a library adds.
void DeviceSizes::check_products(std::int64_t n, std::int64_t k, DType operands, DType result) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(operands) + dtype_bytes(result));
  check(many_rows(), many_rows().total() * (n + k) * element + n * k * 8, [&](Side& s) {
    const TensorView x = s.rows(exact(20, operands), {s.total, k});
    const TensorView weight = s.whole(exact(21, operands), {n, k});
    const TensorView y = s.unwritten({s.total, n}, result);
    s.kernels.linear(x, weight, s.whole(exact(22, result), {n}), y);
    s.repeats("linear", y, 0);
    const TensorView dy = s.rows(exact(23, operands), {s.total, n});
    const TensorView dx = s.unwritten({s.total, k}, result);
    s.kernels.linear_backward_input(dy, weight, dx, false);
    s.repeats("x gradient", dx, 0);
    s.refill(dx, exact(24, result));
    s.kernels.linear_backward_input(dy, weight, dx, true);
    // cuBLAS rounds a product before it adds it to a bfloat16 value.
    s.repeats("x gradient, added", dx, result == bfloat16 ? 0x1p-8 : 0);
    const TensorView dw = s.start(exact(25, float32), {n, k});
    const TensorView db = s.start(exact(26, float32), {n});
    s.kernels.linear_backward_weight(dy, x, dw, db, true);
    s.totals("weight gradient", dw, exact(25, float32), 0);
    s.totals("bias gradient", db, exact(26, float32), 0);
  });
}

TEST_F(DeviceSizes, ProductsOfManyColumns) {
  check_products(sized(37'888, 96), sized(3584, 48), bfloat16, bfloat16);
}
TEST_F(DeviceSizes, DeepProducts) {
  check_products(sized(3584, 40), sized(18'944, 96), bfloat16, float32);
}
TEST_F(DeviceSizes, ProductsOfFloat32) {
  check_products(sized(512, 24), sized(18'944, 96), float32, float32);
}

/// Three samples repeat: half clean rows, half noisy ones in runs that see a prefix. Bounds are
/// wide: this is about indices, tensor_core_attention_test.cpp about rounding.
void DeviceSizes::check_attention(DType type) {
  const std::int64_t heads = sized(28, 7);
  const std::int64_t key_heads = sized(4, 1);
  const std::int64_t dim = sized(128, 64);
  const std::int64_t sample = sized(1024, 32);
  const std::int64_t run = sized(32, 8);
  const Rows rows{3 * sample, sized(22, 2)};
  const std::int64_t bytes = rows.total() * 4 * (heads + key_heads) * dim * 4 + (4LL << 30);
  const double tolerance = type == bfloat16 ? 0x1p-7 : 1e-5;
  check(rows, bytes, [&](Side& s) {
    PackedLayout layout{.num_rows = s.total, .segments = {}};
    for (std::int64_t base = 0; base < s.total; base += sample) {
      const std::int64_t noisy = base + sample / 2;
      layout.segments.push_back({base, noisy, base, base, base});
      for (std::int64_t i = 0; i < sample / 2; i += run) {
        layout.segments.push_back({noisy + i, noisy + i + run, base, base + i + 3, noisy + i});
      }
    }
    const Shape query{s.total, heads, dim};
    const Shape key{s.total, key_heads, dim};
    const TensorView q = s.rows({30, type, 4}, query);  // Few keys weigh most.
    const TensorView k = s.rows({31, type}, key);
    const TensorView v = s.rows({32, type}, key);
    const TensorView output = s.unwritten(query, type);
    const TensorView log_sum_exp = s.unwritten({s.total, heads}, float32);
    const TestPlan plan(s.kernels, heads_of(q, k), batch_of(layout));
    s.kernels.packed_attention(*plan, q, k, v, output, log_sum_exp);
    s.repeats("output", output, tolerance);
    s.repeats("log_sum_exp", log_sum_exp);
    const TensorView dq = s.unwritten(query, type);
    const TensorView dk = s.unwritten(key, type);
    const TensorView dv = s.unwritten(key, type);
    s.kernels.packed_attention_backward(*plan, s.rows({33, type}, query), q, k, v, output,
                                        log_sum_exp, dq, dk, dv);
    s.repeats("q gradient", dq, tolerance);
    s.repeats("k gradient", dk, tolerance);
    s.repeats("v gradient", dv, tolerance);
  });
}

TEST_F(DeviceSizes, PackedAttentionOnTensorCores) { check_attention(bfloat16); }
TEST_F(DeviceSizes, PackedAttentionOnLanes) { check_attention(float32); }

/// A block's first rows are clean, as many others are their students; the last has no loss.
void DeviceSizes::check_loss(DType type) {
  const Rows rows = many_rows();
  const std::int64_t half = rows.block / 2;
  const std::int64_t vocabulary = sized(152'064, 45);
  const std::int64_t bytes = (vocabulary + rows.total()) * 64 * 8 + (3LL << 30);
  VocabularyLossSums found;
  check(rows, bytes, [&](Side& s) {
    std::vector<LossItem> items;
    for (std::int64_t row = 0; row < s.total; ++row) {
      if (const std::int64_t i = row % rows.block; i < half) {
        items.push_back({.clean_row = static_cast<std::int32_t>(row),
                         .target = static_cast<TokenId>(vocabulary - 1 - i * i * 7 % vocabulary),
                         .ar_weight = 0x1p-10F,
                         .student_row = static_cast<std::int32_t>(row - i + half + (i + 3) % half),
                         .consistency_weight = 0x1p-10F});
      }
    }
    const TensorView hidden = s.rows({40, type}, {s.total, 64});
    const TensorView head = s.whole({41, type}, {vocabulary, 64});
    const TensorView gradient = s.unwritten(hidden.shape(), type);
    const TensorView head_gradient = s.start({42, float32}, head.shape());
    const VocabularyLossSums sums =
        vocabulary_loss(s.kernels, hidden, head, items, 0.7F, 1.3F, gradient, head_gradient);
    found = s.on_device ? sums : found;
    const auto factor = static_cast<double>(s.factor);
    EXPECT_NEAR(factor * sums.consistency / found.consistency, 1, 1e-5);
    EXPECT_NEAR(factor * sums.autoregressive / found.autoregressive, 1, 1e-5);
    // The last chunk has fewer rows, whose sums cuBLAS may order otherwise.
    s.all_rows("hidden gradient", values_of(gradient), type == bfloat16 ? 0x1p-7 : 2e-5, type);
    // A row adds up to 1.3e-3. If its bfloat16 logit gradient is rounded otherwise, its
    // repetitions' errors add up to as much.
    s.totals("head gradient", head_gradient, {42, float32}, type == bfloat16 ? 2e-3 : 2e-5);
  });
}

TEST_F(DeviceSizes, VocabularyLossOfBfloat16) { check_loss(bfloat16); }
TEST_F(DeviceSizes, VocabularyLossOfFloat32) { check_loss(float32); }

/// More than 2³¹ elements, NaN except for a dozen pages at the ends and around powers of two.
void DeviceSizes::check_cache(DType type, double tolerance) {
  const std::int64_t heads = sized(28, 7);
  const std::int64_t key_heads = sized(4, 1);
  const std::int64_t dim = sized(128, 64);
  const auto n = static_cast<std::int32_t>(sized(66'600, 20));
  const std::vector<std::int32_t> pages{0, n - 1, 65'535 % n, 65'536 % n, 32'767 % n, 32'768 % n,
                                        1, n / 2, n - 2,      n - 3,      2,          3};
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
  const Shape shape{n, kCachePageRows, key_heads, dim};
  const auto bytes = static_cast<std::int64_t>(storage_bytes(2 * shape.elements(), type));
  check({n, 1}, bytes, [&](Side& s) {
    const FullSlots slots(3, 4);
    const auto part = [&] {
      return s.on_device ? s.unwritten(shape, type)
                         : s.filled(slots.shape(key_heads, dim), float32, {0.0F});
    };
    const PagedCache cache{part(), part(), s.on_device ? PageTable{pages, 4} : slots.table()};
    const auto given = [&](const std::vector<CacheRow>& rows, std::int64_t own, unsigned seed) {
      return s.whole({seed, float32, 2, 0x1p-3F}, {std::ssize(rows), own, dim});
    };
    cache_write(s.kernels, written, given(written, key_heads, 50), given(written, key_heads, 51),
                cache);
    cache_copy(s.kernels, std::vector<CacheCopy>{{2, 17, 130}, {2, 200, 3}, {0, 5, 199}}, cache);
    const TensorView queries = given(rotated, heads, 52);
    const TestDecodePlan plan(
        s.kernels, heads, cache,
        {.tokens = {}, .places = rotated, .kept = {}, .copies = {}, .table = cache.table});
    s.kernels.rotate_and_write(*plan, DecodeRows::all, queries, given(rotated, key_heads, 53),
                               given(rotated, key_heads, 54), {}, {.theta = 1e4}, cache.layer());
    s.all_rows("rotated queries", values_of(queries), kTolerance);
    const TensorView output = s.unwritten({std::ssize(seeing), heads, dim}, float32);
    cached_attention(s.kernels, seeing, given(seeing, heads, 55), cache, output);
    s.all_rows("attention", values_of(output), tolerance);
    const TensorView values =
        cache.values.reshaped({cache.values.dim(0) * kCachePageRows, key_heads * dim});
    for (const std::vector<CacheRow>& rows : {written, rotated}) {
      for (const CacheRow& row : rows) {
        const std::int64_t place = cache.table.place(row.slot, row.row());
        s.all_rows("cached value", values_of(values.rows(place, place + 1)), 0);
      }
    }
  });
}

TEST_F(DeviceSizes, CacheOfFloat32) { check_cache(float32, kTolerance); }
TEST_F(DeviceSizes, CacheOfBfloat16) { check_cache(bfloat16, 0x1p-7); }

void DeviceSizes::check_decode_product(std::int64_t n, std::int64_t k, bool biased) {
  const Rows rows{13, sized(49, 7)};
  check(rows, n * k * 6 + rows.total() * (2 * n + k) * 4, [&](Side& s) {
    const TensorView weight = s.whole({61}, {n, k});
    const TensorView x = s.rows({60, float32}, {s.total, k});
    const TensorView bias = biased ? s.whole({62, float32}, {n}) : TensorView();
    for (const WeightStorage storage :
         {WeightStorage::float32, WeightStorage::bfloat16, WeightStorage::bfloat16_arithmetic}) {
      SCOPED_TRACE(name_of(storage));
      const auto packed = s.kernels.pack_weight(weight, storage, account_);
      const TensorView y = s.unwritten({s.total, n}, float32);
      s.kernels.invariant_linear(x, *packed, bias, y);
      s.repeats("y", y, storage == WeightStorage::bfloat16_arithmetic ? 1e-4 : 0);
      for (const std::int64_t few : {1, 8, 64}) {
        for (std::int64_t begin = 0; begin + few <= s.total; begin += s.total - few) {
          const TensorView alone = s.unwritten({few, n}, float32);
          s.kernels.invariant_linear(x.rows(begin, begin + few), *packed, bias, alone);
          EXPECT_TRUE(same_bits(values_of(alone), values_of(y.rows(begin, begin + few))))
              << few << " rows from " << begin;
        }
      }
      std::vector<TokenId> tokens(at(s.total), -77);
      invariant_argmax(s.kernels, x, *packed, tokens);
      s.all_rows("tokens", Floats(tokens.begin(), tokens.end()), 0);
    }
  });
}

TEST_F(DeviceSizes, DecodeDownProjection) {
  check_decode_product(sized(3584, 40), sized(18'944, 160), true);
}
TEST_F(DeviceSizes, DecodeGateAndUp) {
  check_decode_product(sized(37'888, 96), sized(3584, 64), true);
}
TEST_F(DeviceSizes, DecodeLogits) {
  check_decode_product(sized(152'064, 130), sized(16'384, 64), false);
}

TEST_F(DeviceSizes, ArgmaxOfManyRows) {
  const std::int64_t vocabulary = sized(152'064, 130);
  // Eight bytes for every sixteen columns.
  const std::int64_t bytes = many_rows().total() * vocabulary / 2 + vocabulary * 64 * 6;
  check(many_rows(), bytes, [&](Side& s) {
    const TensorView hidden = s.rows({63, float32}, {s.total, 64});
    const TensorView head = s.whole({64}, {vocabulary, 64});
    for (const WeightStorage storage :
         {WeightStorage::bfloat16, WeightStorage::bfloat16_arithmetic}) {
      const auto packed = s.kernels.pack_weight(head, storage, account_);
      std::vector<TokenId> tokens(at(s.total), -77);
      invariant_argmax(s.kernels, hidden, *packed, tokens);
      s.all_rows(name_of(storage), Floats(tokens.begin(), tokens.end()), 0);
    }
  });
}

TEST_F(DeviceSizes, SampledTokensOfManyRows) {
  const Rows rows = many_rows();
  const std::int64_t vocabulary = sized(37'888, 130);
  const SamplingOptions settings[] = {{},
                                      {.temperature = 0.8, .seed = 5},
                                      {.temperature = 2, .top_k = 40, .seed = 6},
                                      {.temperature = 1, .top_p = 0.7, .seed = 7}};
  // logits, and top-k and top-p candidates of the same size
  check(rows, rows.total() * vocabulary * 8, [&](Side& s) {
    std::vector<SampledRow> options;
    for (std::int64_t i = 0; i < s.total; ++i) {
      const std::int64_t row = i % rows.block;
      options.push_back({.options = settings[row % 4], .request = row / 7, .position = row});
    }
    std::vector<TokenId> tokens(at(s.total), -77);
    const Buffer memory(tokens.size() * sizeof(TokenId), account_, s.kernels.device());
    const TensorView chosen = memory.view(int32, {s.total});
    copy_tensor(ConstTensorView(tokens.data(), {s.total}), chosen);
    s.kernels.sample_tokens(s.rows({65, float32, 8}, {s.total, vocabulary}), options, chosen);
    read_tokens(s.kernels, chosen, tokens);
    s.all_rows("tokens", Floats(tokens.begin(), tokens.end()), 0);
  });
}

TEST_F(DeviceSizes, AdamWAndSumOfSquares) {
  const Rows rows{sized(1'048'583, 53), sized(2051, 75)};
  const AdamWSettings settings{
      .learning_rate = 0.1F, .weight_decay = 0.1F, .gradient_scale = 0.5F, .step = 3};
  double squares = 0;
  check(rows, rows.total() * 18, [&](Side& s) {
    const TensorView gradient = s.rows({70, float32}, {s.total});
    const double sum = static_cast<double>(s.factor) * sum_of_squares(s.kernels, gradient);
    squares = s.on_device ? sum : squares;
    EXPECT_NEAR(squares, sum, 1e-10 * sum);
    const AdamWState state{s.rows({71, float32}, {s.total}), s.filled({s.total}, float32, {0.0F}),
                           s.filled({s.total}, float32, {0.0F}), s.unwritten({s.total})};
    s.kernels.adamw(settings, true, gradient, state);
    s.refill(gradient, {72, float32});
    s.kernels.adamw(settings, true, gradient, state);  // Now from moments that differ.
    s.repeats("parameter", state.parameter, 0);
    s.repeats("first moment", state.first_moment, 0);
    s.repeats("second moment", state.second_moment, 0);
    s.repeats("rounded", state.rounded, 0);
  });
}

TEST_F(DeviceSizes, ContentHash) {
  const std::int64_t count = sized(std::int64_t{1} << 31, 4000) + 3 * period() + 77;
  std::uint64_t found = 0;
  check({count, 1}, count * 2, [&](Side& s) {
    const std::uint64_t hash = content_hash(s.kernels, s.whole({80}, {count}), 9);
    found = s.on_device ? hash : found;
    EXPECT_EQ(found, hash);
  });
}

}  // namespace
}  // namespace jforge::test
