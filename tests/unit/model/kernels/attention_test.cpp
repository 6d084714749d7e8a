#include <limits>

#include "tests/support/kernel_calls.h"
#include "tests/unit/model/kernels/kernel_test_support.h"

namespace jforge::test {
namespace {

struct Heads {
  std::int64_t query, key, dim;
};

const Heads kHeads[] = {{4, 4, 32}, {14, 2, 64}, {3, 1, 8}, {6, 2, 20}, {2, 1, 128}};

std::vector<std::int64_t> visible_keys(const PackedLayout& layout, std::int64_t row) {
  std::vector<std::int64_t> keys;
  for (const AttentionSegment& segment : layout.segments) {
    if (segment.row_begin <= row && row < segment.row_end) {
      for (std::int64_t key = segment.prefix_begin; key < segment.prefix_end; ++key)
        keys.push_back(key);
      for (std::int64_t key = segment.causal_begin; key <= row; ++key) keys.push_back(key);
    }
  }
  return keys;
}

/// Plain softmax attention in double; q is [T, H, D], k and v are [T, Hkv, D].
Doubles reference(const Doubles& q, const Doubles& k, const Doubles& v, const PackedLayout& layout,
                  Heads heads) {
  Doubles output(q.size());
  const std::int64_t group = heads.query / heads.key;
  for (std::int64_t row = 0; row < layout.num_rows; ++row) {
    const auto keys = visible_keys(layout, row);
    for (std::int64_t head = 0; head < heads.query; ++head) {
      Doubles scores;
      const std::int64_t at_q = (row * heads.query + head) * heads.dim;
      for (const std::int64_t key : keys) {
        double score = 0;
        for (std::int64_t d = 0; d < heads.dim; ++d) {
          score += q[at(at_q + d)] * k[at((key * heads.key + head / group) * heads.dim + d)];
        }
        scores.push_back(score / std::sqrt(static_cast<double>(heads.dim)));
      }
      const double highest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) {
        score = std::exp(score - highest);
        sum += score;
      }
      for (std::size_t i = 0; i < keys.size(); ++i) {
        for (std::int64_t d = 0; d < heads.dim; ++d) {
          output[at(at_q + d)] +=
              scores[i] / sum * v[at((keys[i] * heads.key + head / group) * heads.dim + d)];
        }
      }
    }
  }
  return output;
}

/// Plain causal or [prompt | clean | noisy] with one of the three masks.
PackedLayout random_layout(unsigned seed, std::int64_t samples, std::int64_t longest) {
  std::mt19937 generator(seed);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  PackedLayout layout;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const std::int64_t base = layout.num_rows;
    const std::int64_t prompt = draw(1, longest);
    if (draw(0, 3) == 0) {
      layout.segments.push_back({base, base + prompt, base, base, base});
      layout.num_rows += prompt;
      continue;
    }
    const std::int64_t block = draw(1, 9);
    const std::int64_t blocks = draw(1, 6);
    const std::int64_t window = draw(1, blocks);
    const std::int64_t noisy = base + prompt + block * blocks;
    layout.segments.push_back({base, noisy, base, base, base});
    for (std::int64_t first = 0; first < blocks; first += window) {
      const std::int64_t last = std::min(first + window, blocks);
      layout.segments.push_back({noisy + first * block, noisy + last * block, base,
                                 base + prompt + first * block, noisy + first * block});
    }
    layout.num_rows = noisy + block * blocks;
  }
  return layout;
}

struct Problem {
  Heads heads;
  PackedLayout layout;
  Floats q, k, v, output, log_sum_exp;

  Problem(Heads h, PackedLayout l, unsigned seed, float scale = 1.0F)
      : heads(h),
        layout(std::move(l)),
        q(random_floats(layout.num_rows * h.query * h.dim, seed, scale)),
        k(random_floats(layout.num_rows * h.key * h.dim, seed + 1, scale)),
        v(random_floats(layout.num_rows * h.key * h.dim, seed + 2)),
        output(q.size()),
        log_sum_exp(at(layout.num_rows * h.query)) {}
  [[nodiscard]] Shape query_shape() const { return {layout.num_rows, heads.query, heads.dim}; }
  [[nodiscard]] Shape key_shape() const { return {layout.num_rows, heads.key, heads.dim}; }
  void forward(KernelSet& kernels) {
    packed_attention(kernels, view(q, query_shape()), view(k, key_shape()), view(v, key_shape()),
                     layout, view(output, query_shape()),
                     view(log_sum_exp, Shape{layout.num_rows, heads.query}));
  }
  struct Gradients {
    Floats q, k, v;
  };
  Gradients backward(KernelSet& kernels, const Floats& output_gradient) {
    Gradients g{Floats(q.size(), 7.0F), Floats(k.size(), 7.0F), Floats(v.size(), 7.0F)};
    packed_attention_backward(
        kernels, view(output_gradient, query_shape()), view(q, query_shape()), view(k, key_shape()),
        view(v, key_shape()), view(output, query_shape()),
        view(log_sum_exp, Shape{layout.num_rows, heads.query}), layout, view(g.q, query_shape()),
        view(g.k, key_shape()), view(g.v, key_shape()));
    return g;
  }
};

PackedLayout causal(std::int64_t rows) { return {rows, {{0, rows, 0, 0, 0}}}; }

class Attention : public KernelTest {
 protected:
  /// In chunks through `slot` of three; `order` seeds the order of pages.
  Floats cached(KernelSet& kernels, const Problem& p, std::int32_t slot, std::int64_t chunk,
                float garbage, unsigned order = 0) {
    const FullSlots slots(3, p.layout.num_rows / kCachePageRows + 1, order);
    const Shape shape = slots.shape(p.heads.key, p.heads.dim);
    Floats keys(at(shape.elements()), garbage);
    Floats values(keys.size(), garbage);
    const PagedCache cache{view(keys, shape), view(values, shape), slots.table()};
    Floats output(p.q.size());
    for (std::int64_t begin = 0; begin < p.layout.num_rows; begin += chunk) {
      const std::int64_t end = std::min(begin + chunk, p.layout.num_rows);
      std::vector<CacheRow> rows;
      for (std::int64_t row = begin; row < end; ++row)
        rows.push_back({slot, static_cast<std::int32_t>(row)});
      cache_write(kernels, rows, view(p.k, p.key_shape()).rows(begin, end),
                  view(p.v, p.key_shape()).rows(begin, end), cache);
      cached_attention(kernels, rows, view(p.q, p.query_shape()).rows(begin, end), cache,
                       view(output, p.query_shape()).rows(begin, end));
    }
    return output;
  }
};
JFORGE_KERNEL_SUITE(Attention);

TEST_P(Attention, PackedMatchesTheReferenceOnRandomLayouts) {
  unsigned seed = 100;
  for (const Heads heads : kHeads) {
    for (int round = 0; round < 4; ++round) {
      ++seed;
      Problem p(heads, random_layout(seed, 3, 70), seed, 1.5F);
      p.forward(*kernels_);
      EXPECT_LT(relative_error(p.output, reference(to_double(p.q), to_double(p.k), to_double(p.v),
                                                   p.layout, heads)),
                kTolerance)
          << heads.query << " heads of " << heads.dim << ", seed " << seed;
    }
  }
}

TEST_P(Attention, LargeScoresStaySafe) {
  Problem p({2, 1, 16}, causal(150), 3, 40.0F);
  p.forward(*kernels_);
  // Scores of some thousands have errors of about 1e-4.
  EXPECT_LT(relative_error(p.output, reference(to_double(p.q), to_double(p.k), to_double(p.v),
                                               p.layout, p.heads)),
            5e-3);
  for (const float value : p.output) ASSERT_TRUE(std::isfinite(value));
}

TEST_P(Attention, CachedEqualsPackedBitForBitForAnyChunkingPagesAndThreads) {
  for (const Heads heads : kHeads) {
    Problem p(heads, causal(201), 17);
    p.forward(*kernels_);
    for (const int threads : {1, 2}) {
      const ThreadCount scope(threads);
      for (const std::int64_t chunk : {1, 3, 64, 100, 201}) {
        for (const unsigned order : {0U, 5U}) {
          EXPECT_TRUE(same_bits(cached(*kernels_, p, 1, chunk, 0.0F, order), p.output))
              << "chunks of " << chunk << ", order " << order;
        }
      }
    }
  }
}

TEST_P(Attention, WhatLiesBeyondAPositionDoesNotMatter) {
  const Problem p({4, 2, 32}, causal(90), 23);
  const Floats clean = cached(*kernels_, p, 0, 7, 0.0F);
  EXPECT_TRUE(
      same_bits(cached(*kernels_, p, 2, 7, std::numeric_limits<float>::quiet_NaN(), 3), clean));
}

TEST_P(Attention, MixedRowsOfManySlotsEqualRowsAlone) {
  const Heads heads{4, 2, 32};
  const FullSlots slots(4, 3, 9);
  const Shape shape = slots.shape(heads.key, heads.dim);
  Floats keys = random_floats(shape.elements(), 31);
  Floats values = random_floats(shape.elements(), 32);
  const PagedCache cache{view(keys, shape), view(values, shape), slots.table()};
  // Adjacent rows of a slot, jumps back, and a repeated place.
  const std::vector<CacheRow> rows = {{2, 5},   {2, 6}, {2, 100}, {2, 3}, {0, 0},
                                      {3, 129}, {0, 0}, {1, 63},  {1, 64}};
  const auto count = static_cast<std::int64_t>(rows.size());
  const Shape query_shape{count, heads.query, heads.dim};
  const Floats q = random_floats(query_shape.elements(), 33);
  for (const int threads : {1, 2}) {
    const ThreadCount scope(threads);
    Floats together(q.size());
    cached_attention(*kernels_, rows, view(q, query_shape), cache, view(together, query_shape));
    for (std::int64_t i = 0; i < count; ++i) {
      Floats alone(at(heads.query * heads.dim));
      cached_attention(*kernels_, std::span(rows).subspan(at(i), 1),
                       view(q, query_shape).rows(i, i + 1), cache,
                       view(alone, Shape{1, heads.query, heads.dim}));
      EXPECT_TRUE(same_bits(alone.data(), &together[at(i * heads.query * heads.dim)],
                            heads.query * heads.dim))
          << i;
    }
  }
}

/// Branches fork at several positions; one is then copied into place.
TEST_P(Attention, AlternativesEqualSequencesOfTheirOwn) {
  unsigned order = 0;
  for (const Heads heads : {Heads{4, 2, 32}, Heads{6, 2, 20}, Heads{2, 1, 16}}) {
    constexpr std::int32_t length = 150;
    const std::int64_t width = heads.key * heads.dim;
    const FullSlots slots(2, 4, order++);
    const Shape shape = slots.shape(heads.key, heads.dim);
    const Problem main(heads, causal(length), 71);
    Floats keys(at(shape.elements()), std::numeric_limits<float>::quiet_NaN());
    Floats values(keys);
    const PagedCache cache{view(keys, shape), view(values, shape), slots.table()};
    std::vector<CacheRow> rows;
    for (std::int32_t row = 0; row < length; ++row) rows.push_back({1, row});
    cache_write(*kernels_, rows, view(main.k, main.key_shape()), view(main.v, main.key_shape()),
                cache);
    rows.clear();
    std::vector<Problem> alone;
    std::int32_t next = 150;
    for (const std::int32_t fork : {64, 100, 149, 150}) {
      Problem p(heads, causal(fork + 20), 80 + static_cast<unsigned>(fork));
      std::copy_n(main.k.begin(), fork * width, p.k.begin());
      std::copy_n(main.v.begin(), fork * width, p.v.begin());
      p.forward(*kernels_);
      for (std::int32_t i = 0; i < 20; ++i) rows.push_back({1, fork + i, fork, next});
      next += 20;
      alone.push_back(std::move(p));
    }
    const auto count = static_cast<std::int64_t>(rows.size());
    Floats q, k, v;
    for (const Problem& p : alone) {
      const auto own = [&](const Floats& all, std::int64_t heads_of) {
        return all.end() - 20 * heads_of * heads.dim;
      };
      q.insert(q.end(), own(p.q, heads.query), p.q.end());
      k.insert(k.end(), own(p.k, heads.key), p.k.end());
      v.insert(v.end(), own(p.v, heads.key), p.v.end());
    }
    cache_write(*kernels_, rows, view(k, Shape{count, heads.key, heads.dim}),
                view(v, Shape{count, heads.key, heads.dim}), cache);
    for (const int threads : {1, 2}) {
      const ThreadCount scope(threads);
      Floats output(q.size());
      cached_attention(*kernels_, rows, view(q, Shape{count, heads.query, heads.dim}), cache,
                       view(output, Shape{count, heads.query, heads.dim}));
      const std::int64_t each = 20 * heads.query * heads.dim;
      for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(same_bits(&output[i * at(each)], &*(alone[i].output.end() - each), each)) << i;
      }
    }
    std::vector<CacheCopy> moves;
    for (std::int32_t i = 0; i < 20; ++i) moves.push_back({1, 170 + i, 100 + i});
    cache_copy(*kernels_, moves, cache);
    std::vector<CacheRow> plain;
    for (std::int32_t i = 0; i < 20; ++i) plain.push_back({1, 100 + i});
    Floats output(at(20 * heads.query * heads.dim));
    const Problem& moved = alone[1];
    cached_attention(*kernels_, plain, view(moved.q, moved.query_shape()).rows(100, 120), cache,
                     view(output, Shape{20, heads.query, heads.dim}));
    EXPECT_TRUE(same_bits(output.data(), &moved.output[at(100 * heads.query * heads.dim)],
                          20 * heads.query * heads.dim));
  }
}

TEST_P(Attention, TwoIntervalsEqualTheSameKeysContiguous) {
  // A noisy row's keys as a causal sequence.
  for (const Heads heads : {Heads{4, 2, 32}, Heads{6, 2, 20}}) {
    Problem p(heads, random_layout(77, 2, 90), 41);
    p.forward(*kernels_);
    for (std::int64_t row = 0; row < p.layout.num_rows; row += 5) {
      const auto keys = visible_keys(p.layout, row);
      const auto count = static_cast<std::int64_t>(keys.size());
      Problem plain(heads, causal(count), 1);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t width = heads.key * heads.dim;
        std::copy_n(p.k.begin() + keys[at(i)] * width, width, plain.k.begin() + i * width);
        std::copy_n(p.v.begin() + keys[at(i)] * width, width, plain.v.begin() + i * width);
      }
      const std::int64_t width = heads.query * heads.dim;
      std::copy_n(p.q.begin() + row * width, width, plain.q.begin() + (count - 1) * width);
      plain.forward(*kernels_);
      ASSERT_TRUE(
          same_bits(&plain.output[at((count - 1) * width)], &p.output[at(row * width)], width))
          << row;
    }
  }
}

TEST_P(Attention, BothInstructionSetsGiveEqualBits) {
  const auto other = make_cpu_kernel_set(InstructionSet::avx2, BFloat16Sums::pairs);
  for (const Heads heads : kHeads) {
    Problem p(heads, random_layout(5, 3, 80), 51, 3.0F);
    p.forward(*kernels_);
    Problem q(heads, random_layout(5, 3, 80), 51, 3.0F);
    q.forward(*other);
    EXPECT_TRUE(same_bits(p.output, q.output));
  }
}

TEST_P(Attention, CleanRowsDoNotFeelNoisyRows) {
  const std::int64_t clean = 60;  // Invariant I10 for the kernel.
  PackedLayout layout{100, {{0, clean, 0, 0, 0}, {clean, 80, 0, 20, clean}, {80, 100, 0, 40, 80}}};
  Problem p({4, 2, 32}, layout, 61);
  p.forward(*kernels_);
  const Floats before = p.output;
  std::fill(p.k.begin() + clean * 64, p.k.end(), std::numeric_limits<float>::quiet_NaN());
  std::fill(p.v.begin() + clean * 64, p.v.end(), std::numeric_limits<float>::infinity());
  p.forward(*kernels_);
  EXPECT_TRUE(same_bits(p.output.data(), before.data(), clean * 4 * 32));
}

TEST_P(Attention, GradientsMatchFiniteDifferences) {
  // A sample of 3 prompt, 4 clean and 4 noisy rows in two windows, then a causal one of 5.
  const PackedLayout layout{
      16, {{0, 7, 0, 0, 0}, {7, 9, 0, 3, 7}, {9, 11, 0, 5, 9}, {11, 16, 11, 11, 11}}};
  for (const Heads heads : {Heads{2, 2, 8}, Heads{4, 2, 16}, Heads{3, 1, 5}}) {
    Problem p(heads, layout, 200);
    p.forward(*kernels_);
    const Floats dy = random_floats(static_cast<std::int64_t>(p.q.size()), 9);
    const auto gradients = p.backward(*kernels_, dy);
    const Doubles q = to_double(p.q);
    const Doubles k = to_double(p.k);
    const Doubles v = to_double(p.v);
    const auto loss = [&](const Doubles& a, const Doubles& b, const Doubles& c) {
      return weighted_sum(reference(a, b, c, p.layout, heads), dy);
    };
    EXPECT_LT(relative_error(gradients.q, numerical_gradient(
                                              [&](const Doubles& x) { return loss(x, k, v); }, q)),
              1e-5);
    EXPECT_LT(relative_error(gradients.k, numerical_gradient(
                                              [&](const Doubles& x) { return loss(q, x, v); }, k)),
              1e-5);
    EXPECT_LT(relative_error(gradients.v, numerical_gradient(
                                              [&](const Doubles& x) { return loss(q, k, x); }, v)),
              1e-5);
  }
}

/// Gradients by the closed form in double, for sizes with several tiles and blocks.
void analytic_gradients(const Problem& p, const Floats& dy, Doubles& dq, Doubles& dk, Doubles& dv) {
  const Heads h = p.heads;
  const double scale = 1 / std::sqrt(static_cast<double>(h.dim));
  for (std::int64_t row = 0; row < p.layout.num_rows; ++row) {
    const auto keys = visible_keys(p.layout, row);
    for (std::int64_t head = 0; head < h.query; ++head) {
      const std::int64_t q_at = (row * h.query + head) * h.dim;
      const auto k_at = [&](std::size_t i) {
        return (keys[i] * h.key + head / (h.query / h.key)) * h.dim;
      };
      Doubles weight(keys.size());
      Doubles slope(keys.size());
      double highest = -1e300;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        for (std::int64_t d = 0; d < h.dim; ++d) {
          weight[i] += scale * static_cast<double>(p.q[at(q_at + d)]) *
                       static_cast<double>(p.k[at(k_at(i) + d)]);
          slope[i] +=
              static_cast<double>(dy[at(q_at + d)]) * static_cast<double>(p.v[at(k_at(i) + d)]);
        }
        highest = std::max(highest, weight[i]);
      }
      double sum = 0;
      for (double& w : weight) sum += (w = std::exp(w - highest));
      double mean = 0;
      for (std::size_t i = 0; i < keys.size(); ++i) mean += (weight[i] /= sum) * slope[i];
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const double ds = weight[i] * (slope[i] - mean) * scale;
        for (std::int64_t d = 0; d < h.dim; ++d) {
          dq[at(q_at + d)] += ds * static_cast<double>(p.k[at(k_at(i) + d)]);
          dk[at(k_at(i) + d)] += ds * static_cast<double>(p.q[at(q_at + d)]);
          dv[at(k_at(i) + d)] += weight[i] * static_cast<double>(dy[at(q_at + d)]);
        }
      }
    }
  }
}

TEST_P(Attention, GradientsOfManyTilesMatchTheClosedFormAndRepeat) {
  for (const Heads heads : {Heads{4, 4, 32}, Heads{14, 2, 64}, Heads{6, 2, 20}}) {
    Problem p(heads, random_layout(300, 4, 150), 71);
    p.forward(*kernels_);
    const Floats dy = random_floats(static_cast<std::int64_t>(p.q.size()), 10);
    const auto gradients = p.backward(*kernels_, dy);
    Doubles dq(p.q.size());
    Doubles dk(p.k.size());
    Doubles dv(p.v.size());
    analytic_gradients(p, dy, dq, dk, dv);
    EXPECT_LT(relative_error(gradients.q, dq), 1e-5);
    EXPECT_LT(relative_error(gradients.k, dk), 1e-5);
    EXPECT_LT(relative_error(gradients.v, dv), 1e-5);
    for (const int threads : {1, 2}) {  // Every key has one owner, so threads do not change bits.
      const ThreadCount scope(threads);
      const auto again = p.backward(*kernels_, dy);
      EXPECT_TRUE(same_bits(again.q, gradients.q) && same_bits(again.k, gradients.k) &&
                  same_bits(again.v, gradients.v));
    }
  }
}

TEST_P(Attention, BadLayoutsAndShapesAreRefused) {
  const Heads heads{4, 2, 16};
  const PackedLayout bad[] = {
      {10, {{0, 9, 0, 0, 0}}},                    // a row is not covered
      {10, {{0, 6, 0, 0, 0}, {5, 10, 0, 0, 5}}},  // a row is covered twice
      {10, {{0, 10, 0, 0, 1}}},                   // the causal run begins after the first row
      {10, {{0, 6, 0, 0, 0}, {6, 10, 0, 7, 6}}},  // the prefix overlaps the causal run
      {10, {{0, 6, 0, 0, 0}, {6, 10, 4, 2, 6}}},  // a prefix of negative length
      {10, {}},
  };
  for (const PackedLayout& layout : bad) {
    Problem p(heads, layout, 1);
    EXPECT_THROW(p.forward(*kernels_), InternalError);
    EXPECT_THROW(p.backward(*kernels_, p.q), InternalError);
  }
  Problem p(heads, causal(10), 1);
  Problem odd({3, 2, 16}, causal(10), 1);
  EXPECT_THROW(odd.forward(*kernels_), InternalError);
  FullSlots slots(2, 1);
  const Shape shape = slots.shape(2, 16);
  Floats keys(at(shape.elements()));
  PagedCache cache{view(keys, shape), view(keys, shape), slots.table()};
  Floats output(at(64));
  const Floats q(at(64));
  const Floats k(at(32));
  const auto expect_refused = [&](const CacheRow& row) {
    const std::vector<CacheRow> rows = {row};
    EXPECT_THROW(cached_attention(*kernels_, rows, view(q, Shape{1, 4, 16}), cache,
                                  view(output, Shape{1, 4, 16})),
                 InternalError);
    EXPECT_THROW(
        cache_write(*kernels_, rows, view(k, Shape{1, 2, 16}), view(k, Shape{1, 2, 16}), cache),
        InternalError);
  };
  for (const CacheCopy copy : {CacheCopy{2, 0, 1}, CacheCopy{0, 64, 1}, CacheCopy{0, 1, -1}}) {
    EXPECT_THROW(cache_copy(*kernels_, std::span(&copy, 1), cache), InternalError);
  }
  for (const CacheRow row : {CacheRow{2, 0}, CacheRow{-1, 0}, CacheRow{0, 64}, CacheRow{0, -1},
                             CacheRow{0, 3, 4, 6}, CacheRow{0, 5, 4, 63}, CacheRow{0, 5, 4, 3}}) {
    expect_refused(row);
  }
  for (const std::int32_t page : {-1, 2}) {  // no page, and a page that the cache lacks
    slots.pages[1] = page;
    expect_refused({1, 3});
  }
  cache.table = {std::span(slots.pages).first(2), 2};
  slots.pages = {-1, 1};
  const std::vector<CacheRow> second = {CacheRow{0, 64}};
  EXPECT_THROW(cached_attention(*kernels_, second, view(q, Shape{1, 4, 16}), cache,
                                view(output, Shape{1, 4, 16})),
               InternalError)
      << "it sees a page that its slot has not";
  slots.pages = {0, 1};
  cache.keys = cache.values = view(keys, Shape{4, 32, 2, 16});  // half pages
  expect_refused({0, 0});
}

}  // namespace
}  // namespace jforge::test
