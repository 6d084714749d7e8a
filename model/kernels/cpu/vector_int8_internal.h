#pragma once

/// The int8 product (Int8Product) and its quantisation, compiled per instruction set (see
/// vector_product_internal.h).

#include "model/kernels/cpu/vector_kernels_internal.h"

namespace {

using jforge::Int8Product;
using jforge::kInt8Steps;
using jforge::kLanes;

/// Returns max|x| / levels: 0 if that is less than the smallest normal number, NaN if x holds NaN
/// or infinity.
inline float row_scale(const float* x, std::int64_t count, float levels) {
  std::int32_t largest = 0;  // Magnitudes are ordered as their bits are, and NaN is above infinity.
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t bits = __builtin_bit_cast(std::int32_t, x[i]) & 0x7FFFFFFF;
    largest = bits > largest ? bits : largest;
  }
  const float maximum = __builtin_bit_cast(float, largest);
  if (!(maximum <= __FLT_MAX__)) {
    return __builtin_nanf("");
  }
  const float scale = maximum / levels;
  return scale < __FLT_MIN__ ? 0.0F : scale;
}

/// Rounds x / scale to nearest even. Requires: scale > 0, |x / scale| < 2²².
inline std::int32_t quantised(float x, float scale) {
  constexpr float kIntegers = 12582912.0F;  // Floats have no fraction from 2²³ on.
  return static_cast<std::int32_t>((x / scale + kIntegers) - kIntegers);
}

/// VectorKernels::quantise: whole numbers of 16 bits, or `kParts` of them: upper bytes, then lower.
template <bool kParts>
inline float quantise(const float* x, std::int64_t count, std::int64_t depth, void* row) {
  const float scale = row_scale(x, count, jforge::kInputLevels);
  auto* const words = static_cast<std::int16_t*>(row);
  auto* const upper = static_cast<std::int8_t*>(row);
  std::int8_t* const lower = upper + depth;
  const std::int64_t used = scale > 0 ? count : 0;
  for (std::int64_t i = 0; i < used; ++i) {
    const std::int32_t value = quantised(x[i], scale);
    if constexpr (kParts) {
      const std::int32_t part = (value + 128) >> 8;
      upper[i] = static_cast<std::int8_t>(part);
      lower[i] = static_cast<std::int8_t>(value - 256 * part);
    } else {
      words[i] = static_cast<std::int16_t>(value);
    }
  }
  for (std::int64_t i = used; i < depth; ++i) {
    if constexpr (kParts) {
      upper[i] = 0;
      lower[i] = 0;
    } else {
      words[i] = 0;
    }
  }
  return scale;
}

/// VectorKernels::quantise_columns.
inline bool quantise_columns(const float* source, std::int64_t count, std::int64_t depth,
                             std::int8_t* panel, float* scales) {
  bool finite = true;
  for (std::int64_t column = 0; column < count; ++column) {
    const float* const row = source + column * depth;
    const float scale = row_scale(row, depth, jforge::kWeightLevels);
    finite = finite && scale >= 0;
    scales[column] = scale;
    for (std::int64_t begin = 0; begin < depth && scale > 0; begin += kInt8Steps) {
      const std::int64_t steps = depth - begin < kInt8Steps ? depth - begin : kInt8Steps;
      std::int8_t values[kInt8Steps] = {};
      for (std::int64_t i = 0; i < steps; ++i) {
        values[i] = static_cast<std::int8_t>(quantised(row[begin + i], scale));
      }
      for (std::int64_t i = 0; i < kInt8Steps; i += 4) {
        __builtin_memcpy(panel + (begin + i) * kLanes + 4 * column, values + i, 4);
      }
    }
  }
  return finite;
}

/// Writes up to 16 results of a row from their exact sums.
inline void finish_int8(const Int8Product& t, std::int64_t row, std::int64_t column,
                        const std::int64_t* totals) {
  float sums[kLanes];
  for (int j = 0; j < kLanes; ++j) {
    sums[j] = static_cast<float>(totals[j]);
  }
  const std::int64_t lanes = t.columns - column < kLanes ? t.columns - column : kLanes;
  Vec y = load(sums) * broadcast(t.a_scales[row]) * load(t.b_scales + column);
  if (t.bias != nullptr) {
    y = y + load_first(t.bias + column, lanes, zero());
  }
  store_first(t.c + row * t.c_row + column, y, lanes);
}

/// R rows by a panel.
template <int R>
inline void int8_block(const Int8Product& t, std::int64_t row, std::int64_t column,
                       const std::int8_t* line) {
  // A lane adds half of the steps: 512 products of at most 32512 · 127 are below 2³¹.
  constexpr std::int64_t kExactSteps = 1024;
  constexpr std::int64_t kAhead = 32;  // Lines.
  constexpr int kParts = kInt8LineParts;
  const std::int16_t* const a = reinterpret_cast<const std::int16_t*>(t.a) + row * t.depth;
  std::int64_t totals[R][kLanes] = {};
  for (std::int64_t begin = 0; begin < t.depth; begin += kExactSteps) {
    const std::int64_t end = begin + kExactSteps < t.depth ? begin + kExactSteps : t.depth;
    Words sums[R][kParts] = {};
    for (std::int64_t k = begin; k < end; k += 4) {
      __builtin_prefetch(line + kAhead * 4 * kLanes);
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const Words weights = widen_bytes(line + part * (4 * kLanes / kParts));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          sums[r][part] = add_products(sums[r][part], weights, broadcast_four(a + r * t.depth + k));
        }
      }
      line += 4 * kLanes;
    }
    for (int r = 0; r < R; ++r) {
      std::int32_t lanes[2 * kLanes];
      __builtin_memcpy(lanes, sums[r], sizeof(lanes));
      for (int j = 0; j < kLanes; ++j) {
        totals[r][j] += std::int64_t{lanes[2 * j]} + lanes[2 * j + 1];
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    finish_int8(t, row + r, column, totals[r]);
  }
}

/// A panel stays cached while all rows pass over it.
inline void int8_product(const Int8Product& t) {
  for (std::int64_t column = 0; column < t.columns; column += kLanes) {
    const std::int8_t* const panel = t.b + column * t.depth;
    std::int64_t row = 0;
    for (; row + kInt8Rows <= t.rows; row += kInt8Rows) {
      int8_block<kInt8Rows>(t, row, column, panel);
    }
    switch (t.rows - row) {
      case 3:
        int8_block<3>(t, row, column, panel);
        break;
      case 2:
        int8_block<2>(t, row, column, panel);
        break;
      case 1:
        int8_block<1>(t, row, column, panel);
        break;
      default:
        break;
    }
  }
}

}  // namespace
