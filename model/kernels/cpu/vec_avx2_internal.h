#pragma once

/// Sixteen floats in two AVX2 registers; vec_avx512_internal.h documents the functions.

#include <immintrin.h>

#include <cstdint>

#include "runtime/tensor/bfloat16.h"

namespace {

using jforge::BFloat16;

struct Vec {
  __m256 low;
  __m256 high;
};

/// Ones in the lanes before `count`, of eight lanes from `first` on.
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
inline Vec select_first(Vec a, Vec b, std::int64_t count) {
  return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(lanes_before(count, 0))),
          _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(lanes_before(count, 8)))};
}
inline Vec load_first(const float* p, std::int64_t count, Vec fill) {
  const Vec loaded = {_mm256_maskload_ps(p, lanes_before(count, 0)),
                      _mm256_maskload_ps(p + 8, lanes_before(count, 8))};
  return select_first(loaded, fill, count);
}
inline void store_first(float* p, Vec a, std::int64_t count) {
  _mm256_maskstore_ps(p, lanes_before(count, 0), a.low);
  _mm256_maskstore_ps(p + 8, lanes_before(count, 8), a.high);
}
inline __m256 widen(__m128i eight) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}
inline Vec load(const BFloat16* p) {
  const auto* const halves = reinterpret_cast<const __m128i*>(p);
  return {widen(_mm_loadu_si128(halves)), widen(_mm_loadu_si128(halves + 1))};
}
inline Vec load_first(const BFloat16* p, std::int64_t count) {
  BFloat16 lanes[16] = {};
  __builtin_memcpy(lanes, p, static_cast<std::size_t>(count) * sizeof(BFloat16));
  return load(lanes);
}
inline __m256i round_to_bfloat16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(0x0040)), nan);
}
inline void store(BFloat16* p, Vec a) {
  // The pack interleaves register halves; quarters 0 2 1 3 restore the order.
  const __m256i packed = _mm256_packus_epi32(round_to_bfloat16(a.low), round_to_bfloat16(a.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
inline void store_first(BFloat16* p, Vec a, std::int64_t count) {
  BFloat16 lanes[16];
  store(lanes, a);
  __builtin_memcpy(p, lanes, static_cast<std::size_t>(count) * sizeof(BFloat16));
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
inline __m256 even_of_pairs(__m256 pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
inline __m256 odd_of_pairs(__m256 pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs),
                                              _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
}
inline Vec even_of_pairs(Vec pairs) {
  return {even_of_pairs(pairs.low), even_of_pairs(pairs.high)};
}
inline Vec odd_of_pairs(Vec pairs) { return {odd_of_pairs(pairs.low), odd_of_pairs(pairs.high)}; }
/// Slower, but without a register for the mask, which six sums leave no room for.
inline Vec odd_without_mask(Vec pairs) {
  const auto clear = [](__m256 half) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_srli_epi32(_mm256_castps_si256(half), 16), 16));
  };
  return {clear(pairs.low), clear(pairs.high)};
}
inline Vec fma_pairs(Vec a, Vec b, Vec sum) {
  return fma(even_of_pairs(a), even_of_pairs(b), fma(odd_of_pairs(a), odd_of_pairs(b), sum));
}
using Words = __m256i;
constexpr int kInt8LineParts = 4;
constexpr int kInt8Rows = 2;
inline Words widen_bytes(const std::int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Words broadcast_four(const std::int16_t* p) {
  long long four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm256_set1_epi64x(four);
}
inline Words add_products(Words sums, Words a, Words b) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
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
inline Vec power_of_two(Vec n) { return {power_of_two_half(n.low), power_of_two_half(n.high)}; }
inline Vec zero_below(Vec x, Vec bound, Vec a) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.low, bound.low, _CMP_NLT_UQ), a.low),
          _mm256_and_ps(_mm256_cmp_ps(x.high, bound.high, _CMP_NLT_UQ), a.high)};
}
inline __m256 low_half(Vec a) { return a.low; }
inline __m256 high_half(Vec a) { return a.high; }

/// Product tile (rows × panels) that fills 16 registers.
constexpr int kTileRows = 6;
constexpr int tile_panels(int rows) { return rows >= 3 ? 1 : (rows == 1 ? 4 : 2); }
constexpr int kWideTileRows = 8;
constexpr int wide_tile_panels() { return 0; }

}  // namespace
