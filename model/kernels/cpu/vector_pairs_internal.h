#pragma once

/// The bfloat16 product (PairProduct), its column packing, and row conversion, compiled per
/// instruction set (see vector_product_internal.h).

#include "model/kernels/cpu/denormals_internal.h"
#include "model/kernels/cpu/vector_kernels_internal.h"
#include "model/kernels/cpu/vector_product_internal.h"

namespace {

using jforge::kGroupSteps;
using jforge::PairProduct;

inline Vec load_lanes(const BFloat16* p, std::int64_t lanes) {
  return lanes == kLanes ? load(p) : load_first(p, lanes);
}
inline void store_lanes(BFloat16* p, Vec a, std::int64_t lanes) {
  if (lanes == kLanes) {
    store(p, a);
  } else {
    store_first(p, a, lanes);
  }
}

/// `p` may be unaligned.
inline Vec broadcast_pair(const BFloat16* p) {
  float pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return broadcast(pair);
}
/// The pair's second half is 0.
inline Vec broadcast_last(const BFloat16* p) {
  const BFloat16 pair[2] = {*p, {}};
  return broadcast_pair(pair);
}

/// A sum by BFloat16Sums::pairs.
struct PairsSum {
  Vec total;

  inline void add(Vec a, Vec b) { total = fma_pairs(a, b, total); }
  inline void end_group() {}
};

/// A sum by BFloat16Sums::groups.
struct GroupsSum {
  Vec total;
  Vec even = zero();
  Vec odd = zero();

  inline void add(Vec a, Vec b) {
    even = fma(even_of_pairs(a), even_of_pairs(b), even);
    odd = fma(odd_of_pairs(a), odd_of_pairs(b), odd);
  }
  inline void end_group() {
    total = total + (even + odd);
    even = zero();
    odd = zero();
  }
};

template <int R, int P, class Sum, class Broadcast>
inline void pairs_step(const BFloat16* a, std::int64_t a_row, const BFloat16* b,
                       std::int64_t b_panel, Broadcast broadcast_a, Sum (&sums)[R][P]) {
  Vec weights[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    weights[p] = load(reinterpret_cast<const float*>(b + p * b_panel));
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec x = broadcast_a(a + r * a_row);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      sums[r][p].add(x, weights[p]);
    }
  }
}

template <int R, int P, class Sum>
inline void end_groups(Sum (&sums)[R][P]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      sums[r][p].end_group();
    }
  }
}

template <int R, int P, class Sum>
inline void pairs_block(const PairProduct& t, std::int64_t row, std::int64_t column) {
  const std::int64_t left = t.columns - column - (P - 1) * kLanes;
  const std::int64_t last = left < kLanes ? left : kLanes;
  const std::int64_t at = row * t.c_row + column;
  Sum sums[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const std::int64_t lanes = p == P - 1 ? last : kLanes;
      const std::int64_t i = at + r * t.c_row + p * kLanes;
      sums[r][p] = {t.start != nullptr ? load_lanes(t.start + i, lanes)
                    : t.accumulate     ? load_first(t.c + i, lanes, zero())
                                       : zero()};
      // Prefetches the next rows' results.
      if (t.rounded == nullptr) {
        _mm_prefetch(t.c + i + R * t.c_row, _MM_HINT_T0);
      } else {
        _mm_prefetch(t.rounded + i + R * t.c_row, _MM_HINT_T0);
      }
    }
  }
  const BFloat16* a = t.a + row * t.a_row;
  const BFloat16* b = t.b + column / kLanes * t.b_panel;
  for (std::int64_t begin = 0; begin < t.depth; begin += kGroupSteps) {
    const std::int64_t end = begin + kGroupSteps < t.depth ? begin + kGroupSteps : t.depth;
    for (std::int64_t k = begin; k + 1 < end; k += 2) {
      pairs_step(a, t.a_row, b, t.b_panel, broadcast_pair, sums);
      a += 2;
      b += 2 * kLanes;
    }
    if (end % 2 != 0) {
      pairs_step(a, t.a_row, b, t.b_panel, broadcast_last, sums);
    }
    end_groups(sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const std::int64_t lanes = p == P - 1 ? last : kLanes;
      const std::int64_t i = at + r * t.c_row + p * kLanes;
      Vec sum = sums[r][p].total;
      if (t.bias != nullptr) {
        sum = sum + load_first(t.bias + column + p * kLanes, lanes, zero());
      }
      if (t.rounded != nullptr) {
        store_lanes(t.rounded + i, sum, lanes);
      } else if (lanes == kLanes) {
        store(t.c + i, sum);
      } else {
        store_first(t.c + i, sum, lanes);
      }
    }
  }
}

/// A group of P panels stays cached while all rows pass over it. Returns the next column.
template <int P, class Sum>
inline std::int64_t pairs_groups(const PairProduct& t, std::int64_t column) {
  for (; t.columns - column > (P - 1) * kLanes; column += P * kLanes) {
    std::int64_t row = 0;
    for (; row + kTileRows <= t.rows; row += kTileRows) {
      pairs_block<kTileRows, P, Sum>(t, row, column);
    }
    if (row + 4 <= t.rows) {
      pairs_block<4, P, Sum>(t, row, column);
      row += 4;
    }
    if (row + 2 <= t.rows) {
      pairs_block<2, P, Sum>(t, row, column);
      row += 2;
    }
    if (row < t.rows) {
      pairs_block<1, P, Sum>(t, row, column);
    }
  }
  return column;
}

inline void pairs_product(const PairProduct& t) {
  constexpr int kGroup = tile_panels(kTileRows);
  std::int64_t column = pairs_groups<kGroup, PairsSum>(t, 0);
  if constexpr (kGroup > 2) {
    column = pairs_groups<2, PairsSum>(t, column);
  }
  if constexpr (kGroup > 1) {
    pairs_groups<1, PairsSum>(t, column);
  }
}

void pair_product(const PairProduct& t) {
  const DenormalsAsZero scope;
  pairs_product(t);
}

void group_product(const PairProduct& t) {
  const DenormalsAsZero scope;
  pairs_groups<1, GroupsSum>(t, 0);
}

void pair_columns(const BFloat16* source, std::int64_t stride, std::int64_t count,
                  std::int64_t depth, BFloat16* panels) {
  const std::int64_t steps = (depth + 1) / 2;
  for (std::int64_t column = 0; column < count; column += 8) {
    BFloat16* const panel = panels + column / kLanes * steps * 2 * kLanes + column % kLanes * 2;
    const BFloat16* const rows = source + column * stride;
    const std::int64_t width = count - column < 8 ? count - column : 8;
    std::int64_t step = 0;
    // Moves pairs as floats.
    for (; width == 8 && 2 * step + 16 <= depth; step += 8) {
      __m256 lines[8];
      for (int i = 0; i < 8; ++i) {
        lines[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(rows + i * stride + 2 * step));
      }
      transpose_lines(lines, reinterpret_cast<float*>(panel + step * 2 * kLanes), kLanes);
    }
    for (; step < steps; ++step) {
      BFloat16* const to = panel + step * 2 * kLanes;
      for (std::int64_t i = 0; i < width; ++i) {
        const BFloat16* const from = rows + i * stride + 2 * step;
        to[2 * i] = from[0];
        to[2 * i + 1] = 2 * step + 1 < depth ? from[1] : BFloat16{};
      }
    }
  }
}

void transpose_steps(const BFloat16* source, std::int64_t stride, std::int64_t depth,
                     std::int64_t count, BFloat16* target, std::int64_t target_stride) {
  std::int64_t step = 0;
  // Moves pairs of steps as floats.
  for (; step + 16 <= depth; step += 16) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      __m256 lines[8];
      for (int pair = 0; pair < 8; ++pair) {
        const BFloat16* const from = source + (step + 2 * pair) * stride + i;
        const __m128i even = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        const __m128i odd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + stride));
        lines[pair] = _mm256_castsi256_ps(
            _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd)));
      }
      transpose_lines(lines, reinterpret_cast<float*>(target + i * target_stride + step),
                      target_stride / 2);
    }
    for (; i < count; ++i) {
      for (std::int64_t d = step; d < step + 16; ++d) {
        target[i * target_stride + d] = source[d * stride + i];
      }
    }
  }
  for (; step < depth; ++step) {
    for (std::int64_t i = 0; i < count; ++i) {
      target[i * target_stride + step] = source[step * stride + i];
    }
  }
}

void widen_row(const BFloat16* x, float* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(y + i, load(x + i));
  }
  if (i < count) {
    store_first(y + i, load_first(x + i, count - i), count - i);
  }
}

void round_row(const float* x, BFloat16* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(y + i, load(x + i));
  }
  if (i < count) {
    store_first(y + i, load_first(x + i, count - i, zero()), count - i);
  }
}

}  // namespace
