#pragma once

/// Sixteen floats in two AVX2 registers. Same names and same results, bit for bit, as
/// vec_avx512_internal.h. Included only by vector_avx2.cpp.

#include <immintrin.h>

#include <cstdint>

namespace {

struct Vec {
  __m256 low;
  __m256 high;
};

/// All ones in the lanes before `count`, of the eight lanes that begin at `first`.
inline __m256i lanes_before(std::int64_t count, int first) {
  const __m256i lane =
      _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline __m256i load_pairs(const std::uint32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
/// The first or the second of sixteen pairs of bfloat16 (PanelWeight), exactly.
inline Vec load_first_of_pairs(const std::uint32_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(load_pairs(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(load_pairs(p + 8), 16))};
}
inline Vec load_second_of_pairs(const std::uint32_t* p) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
  return {_mm256_castsi256_ps(_mm256_and_si256(load_pairs(p), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(load_pairs(p + 8), mask))};
}
/// a in the first `count` lanes, b in the others.
inline Vec select_first(Vec a, Vec b, std::int64_t count) {
  return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(lanes_before(count, 0))),
          _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(lanes_before(count, 8)))};
}
/// Lanes at and after `count` (0 … 16) read as `fill` and are not touched in memory.
inline Vec load_first(const float* p, std::int64_t count, Vec fill) {
  const Vec loaded = {_mm256_maskload_ps(p, lanes_before(count, 0)),
                      _mm256_maskload_ps(p + 8, lanes_before(count, 8))};
  return select_first(loaded, fill, count);
}
inline void store_first(float* p, Vec a, std::int64_t count) {
  _mm256_maskstore_ps(p, lanes_before(count, 0), a.low);
  _mm256_maskstore_ps(p + 8, lanes_before(count, 8), a.high);
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
/// b where either operand is NaN.
inline Vec maximum(Vec a, Vec b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Vec minimum(Vec a, Vec b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Vec round_to_integer(Vec a) {
  return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline __m256 power_of_two_half(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
/// 2^n for integral n in −126 … 127.
inline Vec power_of_two(Vec n) { return {power_of_two_half(n.low), power_of_two_half(n.high)}; }
/// +0 where x < bound, a elsewhere (NaN in x keeps a).
inline Vec zero_below(Vec x, Vec bound, Vec a) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.low, bound.low, _CMP_NLT_UQ), a.low),
          _mm256_and_ps(_mm256_cmp_ps(x.high, bound.high, _CMP_NLT_UQ), a.high)};
}
/// Lanes 0–7 and 8–15.
inline __m256 low_half(Vec a) { return a.low; }
inline __m256 high_half(Vec a) { return a.high; }

/// Rows of the product tile and column panels per group that fill 16 registers, two to a panel.
constexpr int kTileRows = 6;
constexpr int tile_panels(int rows) { return rows >= 4 ? 1 : (rows == 1 ? 4 : 2); }

}  // namespace
