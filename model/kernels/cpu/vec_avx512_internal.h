#pragma once

/// Sixteen floats in one AVX-512 register. Same names and same results, bit for bit, as
/// vec_avx2_internal.h. Included only by vector_avx512.cpp.

#include <immintrin.h>

#include <cstdint>

namespace {

struct Vec {
  __m512 value;
};

inline __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>((1U << static_cast<unsigned>(count)) - 1U);
}

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.value); }
/// The first or the second of sixteen pairs of bfloat16 (PanelWeight), exactly.
inline Vec load_first_of_pairs(const std::uint32_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline Vec load_second_of_pairs(const std::uint32_t* p) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), mask))};
}
/// Lanes at and after `count` (0 … 16) read as `fill` and are not touched in memory.
inline Vec load_first(const float* p, std::int64_t count, Vec fill) {
  return {_mm512_mask_loadu_ps(fill.value, first_lanes(count), p)};
}
inline void store_first(float* p, Vec a, std::int64_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), a.value);
}
/// a in the first `count` lanes, b in the others.
inline Vec select_first(Vec a, Vec b, std::int64_t count) {
  return {_mm512_mask_blend_ps(first_lanes(count), b.value, a.value)};
}
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.value, b.value)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.value, b.value)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.value, b.value)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.value, b.value)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.value, b.value, c.value)}; }
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.value)}; }
/// b where either operand is NaN.
inline Vec maximum(Vec a, Vec b) { return {_mm512_max_ps(a.value, b.value)}; }
inline Vec minimum(Vec a, Vec b) { return {_mm512_min_ps(a.value, b.value)}; }
inline Vec round_to_integer(Vec a) {
  return {_mm512_roundscale_ps(a.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// 2^n for integral n in −126 … 127.
inline Vec power_of_two(Vec n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.value), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
/// +0 where x < bound, a elsewhere (NaN in x keeps a).
inline Vec zero_below(Vec x, Vec bound, Vec a) {
  const __mmask16 keep = _mm512_cmp_ps_mask(x.value, bound.value, _CMP_NLT_UQ);
  return {_mm512_maskz_mov_ps(keep, a.value)};
}
/// Lanes 0–7 and 8–15.
inline __m256 low_half(Vec a) { return _mm512_castps512_ps256(a.value); }
inline __m256 high_half(Vec a) { return _mm512_extractf32x8_ps(a.value, 1); }

/// Rows of the product tile and column panels per group that fill 32 registers.
constexpr int kTileRows = 6;
constexpr int tile_panels(int rows) { return rows >= 4 ? 4 : 8; }

}  // namespace
