#pragma once

/// The product loop (TileProduct) and transposition of key tiles. Compiled per instruction set with
/// internal linkage, so that baseline code never links functions for newer processors.

#include "model/kernels/cpu/vector_kernels_internal.h"

namespace {

using jforge::kLanes;
using jforge::TileProduct;

/// a_row is 1; a_depth is 1; a_depth is 1 and b is streamed, as floats or as pairs.
enum class Operands : std::uint8_t { rows_adjacent, depth_adjacent, streamed, pairs };
constexpr bool streams(Operands operands) { return operands >= Operands::streamed; }

/// Sixteen pairs of bfloat16 as they are (PanelWeight).
inline Vec load_pairs(const std::uint32_t* p) { return load(reinterpret_cast<const float*>(p)); }

template <int R, int P>
inline void product_step(const float* a, std::int64_t a_row, const Vec (&weights)[P],
                         Vec (&sums)[R][P]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec x = broadcast(a[r * a_row]);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      sums[r][p] = fma(x, weights[p], sums[r][p]);
    }
  }
}

/// Prefetch distance in words. Near its end it reaches the next group, which hardware would miss.
template <int P>
inline std::int64_t distance_ahead(std::int64_t steps_left, std::int64_t step,
                                   std::int64_t b_panel) {
  constexpr std::int64_t kAhead = P == 1 ? 128 : 192 / P;
  return kAhead * step + (kAhead < steps_left ? 0 : (P - 1) * b_panel);
}

/// Two panels of the next group. Each tile fetches a line of both per line that it reads itself,
/// unless registers are few: then its pointers cost more than it brings.
struct NextPanels {
  const void* lines[2];

  template <class Weight>
  inline void fetch(std::int64_t offset) const {
    if constexpr (tile_panels(4) > 1) {
      _mm_prefetch(static_cast<const Weight*>(lines[0]) + offset, _MM_HINT_T1);
      _mm_prefetch(static_cast<const Weight*>(lines[1]) + offset, _MM_HINT_T1);
    }
  }
};

template <int R, int P, Operands kOperands>
inline void product_depth(const TileProduct& t, const float* a, const float* b,
                          const NextPanels& next, Vec (&sums)[R][P]) {
  constexpr bool kRowsAdjacent = kOperands == Operands::rows_adjacent;
  const std::int64_t a_row = kRowsAdjacent ? 1 : t.a_row;
  const std::int64_t a_depth = kRowsAdjacent ? t.a_depth : 1;
  const std::int64_t b_panel = t.b_panel;
  const std::int64_t b_depth = t.b_depth;
  // With one to three rows there are too many panels; hardware prefetch is better.
  constexpr bool kFetch = streams(kOperands) && (P == 4 || P == 2);
  for (std::int64_t k = 0; k < t.depth; ++k) {
    Vec weights[P];
    const std::int64_t ahead = kFetch ? distance_ahead<P>(t.depth - k, b_depth, b_panel) : 0;
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      if constexpr (kFetch) {
        _mm_prefetch(b + p * b_panel + ahead, _MM_HINT_T0);
      }
      weights[p] = load(b + p * b_panel);
    }
    if constexpr (streams(kOperands)) {
      next.fetch<float>(k * b_depth);
    }
    product_step(a, a_row, weights, sums);
    a += a_depth;
    b += b_depth;
  }
}

template <int R, int P, Operands>
inline void product_depth(const TileProduct& t, const float* a, const std::uint32_t* b,
                          const NextPanels& next, Vec (&sums)[R][P]) {
  const std::int64_t a_row = t.a_row;
  const std::int64_t b_panel = t.b_panel;
  const std::int64_t b_depth = t.b_depth;
  Vec weights[P];
  for (std::int64_t k = 0; k + 1 < t.depth; k += 2) {
    const std::int64_t ahead = distance_ahead<P>((t.depth - k) / 2, b_depth, b_panel);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      _mm_prefetch(b + p * b_panel + ahead, _MM_HINT_T0);
      weights[p] = even_of_pairs(load_pairs(b + p * b_panel));
    }
    next.fetch<std::uint32_t>(k / 2 * b_depth);
    product_step(a, a_row, weights, sums);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const Vec pairs = load_pairs(b + p * b_panel);
      weights[p] = R * P < 6 ? odd_of_pairs(pairs) : odd_without_mask(pairs);
    }
    product_step(a + 1, a_row, weights, sums);
    a += 2;
    b += b_depth;
  }
  if (t.depth % 2 != 0) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      weights[p] = even_of_pairs(load_pairs(b + p * b_panel));
    }
    product_step(a, a_row, weights, sums);
  }
}

/// R rows by P panels in registers over the whole depth.
template <int R, int P, Operands kOperands, class Weight>
inline void product_block(const TileProduct& t, const float* a, const Weight* b, float* c,
                          const float* bias, std::int64_t last_columns, const NextPanels& next) {
  Vec sums[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const std::int64_t width = p == P - 1 ? last_columns : kLanes;
      sums[r][p] = t.accumulate ? load_first(c + r * t.c_row + p * kLanes, width, zero()) : zero();
    }
  }
  // Prefetches the next rows' sums.
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      _mm_prefetch(c + (R + r) * t.c_row + p * kLanes, _MM_HINT_T0);
    }
  }
  product_depth<R, P, kOperands>(t, a, b, next, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const std::int64_t width = p == P - 1 ? last_columns : kLanes;
      if (bias != nullptr) {
        sums[r][p] = sums[r][p] + load_first(bias + p * kLanes, width, zero());
      }
      if (width == kLanes) {
        store(c + r * t.c_row + p * kLanes, sums[r][p]);
      } else {
        store_first(c + r * t.c_row + p * kLanes, sums[r][p], width);
      }
    }
  }
}

template <Operands kOperands>
inline const auto* panels_of(const TileProduct& t) {
  if constexpr (kOperands == Operands::pairs) {
    return t.b_pairs;
  } else {
    return t.b;
  }
}

template <int P, Operands kOperands>
inline void product_rows(const TileProduct& t, std::int64_t row, std::int64_t rows,
                         std::int64_t column, const NextPanels& next) {
  const float* a = t.a + row * t.a_row;
  const auto* b = panels_of<kOperands>(t) + (column / kLanes) * t.b_panel;
  float* c = t.c + row * t.c_row + column;
  const float* bias = t.bias == nullptr ? nullptr : t.bias + column;
  const std::int64_t left = t.columns - column - (P - 1) * kLanes;
  const std::int64_t last = left < kLanes ? left : kLanes;
  switch (rows) {
    case 1:
      return product_block<1, P, kOperands>(t, a, b, c, bias, last, next);
    case 2:
      return product_block<2, P, kOperands>(t, a, b, c, bias, last, next);
    case 3:
      return product_block<3, P, kOperands>(t, a, b, c, bias, last, next);
    default:
      break;
  }
  if constexpr (streams(kOperands) && P <= wide_tile_panels()) {
    switch (rows) {
      case 7:
        return product_block<7, P, kOperands>(t, a, b, c, bias, last, next);
      case 8:
        return product_block<8, P, kOperands>(t, a, b, c, bias, last, next);
      default:
        break;
    }
  }
  if constexpr (P <= tile_panels(4)) {
    switch (rows) {
      case 4:
        return product_block<4, P, kOperands>(t, a, b, c, bias, last, next);
      case 5:
        return product_block<5, P, kOperands>(t, a, b, c, bias, last, next);
      default:
        return product_block<6, P, kOperands>(t, a, b, c, bias, last, next);
    }
  }
}

/// A group of P panels stays cached while all rows pass over it, in tiles of nearly equal size,
/// because a small remainder would read the panels once more. Returns the column where it stopped.
template <int P, Operands kOperands, int kRows = kTileRows>
inline std::int64_t product_groups(const TileProduct& t, std::int64_t column) {
  const std::int64_t tiles = (t.rows + kRows - 1) / kRows;
  const std::int64_t least = tiles == 0 ? 0 : t.rows / tiles;
  const std::int64_t larger = t.rows - least * tiles;  // Tiles with one row more.
  for (; t.columns - column > (P - 1) * kLanes; column += P * kLanes) {
    const auto* const group = panels_of<kOperands>(t) + column / kLanes * t.b_panel;
    const bool more = t.columns - column > P * kLanes;
    const auto* const next_group =
        more ? group + P * t.b_panel : static_cast<decltype(group)>(t.b_next);
    std::int64_t row = 0;
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::int64_t rows = least + (tile < larger ? 1 : 0);
      // A single tile is memory-bound and prefetches for itself.
      NextPanels next{{group, group}};
      const std::int64_t first = P * tile / tiles;
      const std::int64_t last = P * (tile + 1) / tiles - 1;
      if (tiles > 1 && next_group != nullptr && first <= last) {
        next = {{next_group + first * t.b_panel, next_group + last * t.b_panel}};
      }
      product_rows<P, kOperands>(t, row, rows, column, next);
      row += rows;
    }
  }
  return column;
}

template <Operands kOperands>
inline void product(const TileProduct& t) {
  std::int64_t column = 0;
  if (t.rows == 1) {
    column = product_groups<tile_panels(1), kOperands>(t, column);
  } else if (t.rows == 2 || (t.rows == 3 && kOperands != Operands::pairs)) {
    column = product_groups<tile_panels(2), kOperands>(t, column);
  } else if (t.rows == 3) {  // Unpacking pairs takes registers.
    column = product_groups<tile_panels(3), kOperands>(t, column);
  }
  if constexpr (streams(kOperands) && wide_tile_panels() > 0) {
    // One pass over the panels: so few rows are memory-bound.
    if (kTileRows < t.rows && t.rows <= kWideTileRows) {
      column = product_groups<wide_tile_panels(), kOperands, kWideTileRows>(t, column);
      product_groups<1, kOperands, kWideTileRows>(t, column);
      return;
    }
  }
  if constexpr (tile_panels(4) > 1) {
    column = product_groups<tile_panels(4), kOperands>(t, column);
    column = product_groups<2, kOperands>(t, column);
  }
  product_groups<1, kOperands>(t, column);
}

void tile_product(const TileProduct& t) {
  if (t.b_pairs != nullptr) {
    product<Operands::pairs>(t);
  } else if (t.streamed) {
    product<Operands::streamed>(t);
  } else if (t.a_depth == 1) {
    product<Operands::depth_adjacent>(t);
  } else {
    product<Operands::rows_adjacent>(t);
  }
}

inline void transpose_lines(__m256 (&r)[8], float* target, std::int64_t target_stride) {
  __m256 s[8];
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(target + i * target_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(target + (i + 4) * target_stride,
                     _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

inline void transpose_8x8(const float* source, std::int64_t stride, float* target,
                          std::int64_t target_stride) {
  __m256 r[8];
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm256_loadu_ps(source + i * stride);
  }
  transpose_lines(r, target, target_stride);
}

void transpose_keys(const float* source, std::int64_t stride, std::int64_t count, std::int64_t dim,
                    std::int64_t padded_dim, std::int64_t first, float* panels) {
  std::int64_t key = 0;
  while (key < count) {
    const std::int64_t column = first + key;
    float* panel = panels + column / kLanes * padded_dim * kLanes + column % kLanes;
    const float* row = source + key * stride;
    const bool block = column % kLanes <= kLanes - 8 && count - key >= 8;
    std::int64_t d = 0;
    if (block) {
      for (; d + 8 <= dim; d += 8) {
        transpose_8x8(row + d, stride, panel + d * kLanes, kLanes);
      }
    }
    const std::int64_t keys = block ? 8 : 1;
    for (; d < padded_dim; ++d) {
      for (std::int64_t i = 0; i < keys; ++i) {
        panel[d * kLanes + i] = d < dim ? row[i * stride + d] : 0.0F;
      }
    }
    key += keys;
  }
}

}  // namespace
