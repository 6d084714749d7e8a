#pragma once

/// The vector loops under the CPU kernels, as a table of functions: one table for AVX2 + FMA, one
/// for AVX-512, one for AVX-512 with BF16, with equal bits but for pair_product. All are
/// single-threaded, never throw, never allocate; callers split the work over threads.

#include <cstdint>

#include "model/kernels/adamw_step.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

/// Keys scored together by attention; tiles begin at logical positions that are multiples of it.
inline constexpr std::int64_t kKeyTile = 64;
/// Floats in a vector, and columns of a weight panel.
inline constexpr std::int64_t kLanes = 16;

/// c[r][n] (= or +=) Σ_k a[r][k] · b[k][n], k ascending by fused multiply-add, then + bias[n].
/// Column n lies in panel n / 16. Rows, panels and registers are blocked freely: no element's order
/// of addition depends on it.
struct TileProduct {
  const float* a = nullptr;
  std::int64_t a_row = 0;    ///< Distance of rows; a_row or a_depth must be 1.
  std::int64_t a_depth = 1;  ///< Distance of steps in k.
  const float* b = nullptr;  ///< Full panels of 16 columns must be readable.
  /// Instead of b, where a_depth is 1: a step in k holds two rows of b as bfloat16, the first in
  /// the lower half of each word; they are widened exactly. The last of an odd depth holds one.
  const std::uint32_t* b_pairs = nullptr;
  std::int64_t b_panel = 0;  ///< Distance of panels.
  std::int64_t b_depth = 0;  ///< Distance of steps in k, of pairs of them with b_pairs.
  float* c = nullptr;
  std::int64_t c_row = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< Columns written; the last panel may be partial.
  std::int64_t depth = 0;
  bool accumulate = false;      ///< Begin from c instead of 0.
  const float* bias = nullptr;  ///< [columns] or null.
  /// b comes from memory and is read once, so it is fetched ahead; a_depth must be 1. b_pairs
  /// always are.
  bool streamed = false;
  /// Panels laid out alike that are streamed after these (their first), to be fetched meanwhile;
  /// null: unknown.
  const void* b_next = nullptr;
};

/// c[r][n] (= or +=) Σ_k a[r][k] · b[k][n] of bfloat16 in float32, then + bias[n], then rounded
/// once where `rounded` is given. Steps 2i and 2i + 1 of k are a pair and lie side by side; pairs
/// in ascending order, in a pair the odd step first, each by fused multiply-add. So the instruction
/// sets have equal bits, except that AVX-512 BF16 takes denormal operands and denormal sums for 0.
/// Rows, panels and registers are blocked freely, as in TileProduct.
struct PairProduct {
  const BFloat16* a = nullptr;
  std::int64_t a_row = 0;       ///< Distance of rows, in elements.
  std::int64_t a_depth = 2;     ///< Distance of pairs, in elements.
  const BFloat16* b = nullptr;  ///< Panels [pairs][16][2]; full ones must be readable.
  std::int64_t b_panel = 0;     ///< Distance of panels, in elements.
  float* c = nullptr;           ///< May be null with `rounded` and without `accumulate`.
  BFloat16* rounded = nullptr;  ///< Where the result goes instead of c, when not null.
  std::int64_t c_row = 0;       ///< Distance of rows of c and `rounded`.
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< Columns written; the last panel may be partial.
  std::int64_t depth = 0;    ///< Steps; the second half of an odd depth's last pair of b must be 0.
  bool accumulate = false;   ///< Begin from c instead of 0 …
  const BFloat16* start = nullptr;  ///< … or, when not null, from here (rows as c).
  const float* bias = nullptr;      ///< [columns] or null.
};

/// Running softmax of one query over key tiles.
struct SoftmaxState {
  float maximum = 0;
  float sums[kLanes] = {};  ///< Σ exp by lane (key position mod 16); added up as a tree at the end.
};

struct VectorKernels {
  void (*tile_product)(const TileProduct&);
  /// panels[c / 16][d][c mod 16] = source[i · stride + d] for c = first + i: `count` rows of `dim`
  /// floats at distance `stride` become columns first … first + count − 1 of consecutive panels
  /// [padded_dim][16], zero behind `dim`; other columns stay. The tiles of attention and of the
  /// training product have four panels, a packed weight one at a time.
  void (*transpose_keys)(const float* source, std::int64_t stride, std::int64_t count,
                         std::int64_t dim, std::int64_t padded_dim, std::int64_t first,
                         float* panels);
  void (*pair_product)(const PairProduct&);
  /// `count` rows of `depth` bfloat16 at distance `stride` become the columns of panels
  /// [count / 16][⌈depth / 2⌉][16][2]; the half after an odd depth is 0, columns from `count` on
  /// stay.
  void (*pair_columns)(const BFloat16* source, std::int64_t stride, std::int64_t count,
                       std::int64_t depth, BFloat16* panels);
  /// y = x, exactly.
  void (*widen)(const BFloat16* x, float* y, std::int64_t count);
  /// y = x rounded to nearest even (to_bfloat16). y may lie at the beginning of x's memory.
  void (*round)(const float* x, BFloat16* y, std::int64_t count);
  /// scores[0 … visible) become exp(score − new maximum), the rest of the tile 0; returns the
  /// factor by which what was accumulated before must shrink.
  float (*softmax_step)(float* scores, std::int64_t visible, SoftmaxState& state);
  float (*softmax_sum)(const SoftmaxState& state);
  /// p = exp(scores − log_sum_exp) in the first `visible` of a tile, 0 after; score gradient p·(dp
  /// − delta) over dp.
  void (*softmax_backward)(float* scores, float* dp, std::int64_t visible, float log_sum_exp,
                           float delta);
  void (*scale)(float* x, float factor, std::int64_t count);
  void (*divide)(const float* x, float divisor, float* y, std::int64_t count);
  void (*add)(const float* x, float* y, std::int64_t count);
  float (*dot)(const float* x, const float* y, std::int64_t count);
  /// y = (x · inverse_rms) · weight
  void (*rms_apply)(const float* x, const float* weight, float inverse_rms, float* y,
                    std::int64_t count);
  /// Σ dy · weight · x
  float (*rms_projection)(const float* dy, const float* weight, const float* x, std::int64_t count);
  /// dx += inverse_rms · dy · weight − x · factor
  void (*rms_backward)(const float* dy, const float* weight, const float* x, float inverse_rms,
                       float factor, float* dx, std::int64_t count);
  /// (low, high) ← (low·cos − high·sin, high·cos + low·sin)
  void (*rotate)(float* low, float* high, const float* cosines, const float* sines,
                 std::int64_t count);
  void (*rotate_back)(float* low, float* high, const float* cosines, const float* sines,
                      std::int64_t count);
  void (*swiglu)(const float* gate, const float* up, float* y, std::int64_t count);
  void (*swiglu_backward)(const float* dy, const float* gate, const float* up, float* gate_gradient,
                          float* up_gradient, std::int64_t count);
  float (*maximum)(const float* x, std::int64_t count);
  /// First index of the largest element and its value; index −1 when an element is NaN.
  std::int64_t (*first_maximum)(const float* x, std::int64_t count, float* value);
  /// Σ exp(x − shift), partial sums in double.
  double (*exp_sum)(const float* x, std::int64_t count, float shift);
  /// Returns Σ p_t (log p_t − log p_s); student logits become weight · (p_s − p_t).
  double (*divergence)(float* student, const float* teacher, std::int64_t count,
                       float student_log_sum, float teacher_log_sum, float weight);
  /// x ← weight · exp(x − log_sum)
  void (*softmax_scaled)(float* x, std::int64_t count, float log_sum, float weight);
  double (*sum_of_squares)(const float* x, std::int64_t count);
  void (*adamw)(const AdamWStep& step, const float* gradient, float* parameter, float* first_moment,
                float* second_moment, std::int64_t count);
};

extern const VectorKernels kAvx2Kernels;
extern const VectorKernels kAvx512Kernels;
extern const VectorKernels kAvx512Bf16Kernels;  ///< With AVX-512 BF16 beside the others.

}  // namespace jforge
