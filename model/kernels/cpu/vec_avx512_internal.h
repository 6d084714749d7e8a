#pragma once

/// Sixteen floats in an AVX-512 register; equal to vec_avx2_internal.h in names and bits.

#include <immintrin.h>

#include <cstdint>

#include "runtime/tensor/bfloat16.h"

namespace {

using jforge::BFloat16;

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
/// Lanes from `count` (0 … 16) on read as `fill`; their memory is not accessed.
inline Vec load_first(const float* p, std::int64_t count, Vec fill) {
  return {_mm512_mask_loadu_ps(fill.value, first_lanes(count), p)};
}
inline void store_first(float* p, Vec a, std::int64_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), a.value);
}
inline Vec widen(__m256i sixteen) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen), 16))};
}
inline Vec load(const BFloat16* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// Lanes from `count` on read as 0.
inline Vec load_first(const BFloat16* p, std::int64_t count) {
  return widen(_mm256_maskz_loadu_epi16(first_lanes(count), p));
}
/// As to_bfloat16.
inline __m256i round_to_bfloat16(Vec a) {
  const __m512i bits = _mm512_castps_si512(a.value);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.value, a.value, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x0040)));
}
inline void store(BFloat16* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bfloat16(a));
}
inline void store_first(BFloat16* p, Vec a, std::int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), round_to_bfloat16(a));
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
/// The even or odd steps of sixteen pairs, the even one in the lower half.
inline Vec even_of_pairs(Vec pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.value), 16))};
}
inline Vec odd_of_pairs(Vec pairs) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs.value),
                                               _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))))};
}
inline Vec odd_without_mask(Vec pairs) { return odd_of_pairs(pairs); }
/// (sum + odd·odd) + even·even by FMA, for two bfloat16 per lane.
inline Vec fma_pairs(Vec a, Vec b, Vec sum) {
#ifdef __AVX512BF16__
  return {_mm512_dpbf16_ps(sum.value, reinterpret_cast<__m512bh>(a.value),
                           reinterpret_cast<__m512bh>(b.value))};
#else
  return fma(even_of_pairs(a), even_of_pairs(b), fma(odd_of_pairs(a), odd_of_pairs(b), sum));
#endif
}
/// 32 whole numbers of 16 bits. A line of an int8 panel is so many of them.
using Words = __m512i;
constexpr int kInt8LineParts = 2;
/// Rows of an int8 product's tile.
constexpr int kInt8Rows = 4;
inline Words widen_bytes(const std::int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Words broadcast_four(const std::int16_t* p) {
  long long four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm512_set1_epi64(four);
}
/// Adds the products of pairs of adjacent numbers as 32 bits.
inline Words add_products(Words sums, Words a, Words b) {
#ifdef __AVX512VNNI__
  return _mm512_dpwssd_epi32(sums, a, b);
#else
  return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
#endif
}
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.value)}; }
/// b if an operand is NaN.
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
/// +0 if x < bound, else a (also for NaN in x).
inline Vec zero_below(Vec x, Vec bound, Vec a) {
  const __mmask16 keep = _mm512_cmp_ps_mask(x.value, bound.value, _CMP_NLT_UQ);
  return {_mm512_maskz_mov_ps(keep, a.value)};
}
inline __m256 low_half(Vec a) { return _mm512_castps512_ps256(a.value); }
inline __m256 high_half(Vec a) { return _mm512_extractf32x8_ps(a.value, 1); }

/// Product tile (rows × panels) that fills 32 registers.
constexpr int kTileRows = 6;
constexpr int tile_panels(int rows) { return rows >= 4 ? 4 : 8; }
/// A tile of more rows and fewer panels; 0 panels: none.
constexpr int kWideTileRows = 8;
constexpr int wide_tile_panels() { return 2; }

}  // namespace
