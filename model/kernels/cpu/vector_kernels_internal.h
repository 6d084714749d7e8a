#pragma once

/// Vector loops of the CPU kernels for AVX2 + FMA, AVX-512, and AVX-512 with BF16, with equal bits.
/// Single-threaded; never throw or allocate.

#include <cstdint>

#include "model/kernels/adamw_step.h"
#include "model/kernels/bfloat16_sums.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

/// Keys scored together by attention.
inline constexpr std::int64_t kKeyTile = 64;
/// Floats in a vector; columns of a weight panel.
inline constexpr std::int64_t kLanes = 16;

/// c[r][n] (= or +=) Σ_k a[r][k] · b[k][n], k ascending by FMA, then + bias[n]. Column n lies in
/// panel n / 16. Blocking does not change the order.
struct TileProduct {
  const float* a = nullptr;
  std::int64_t a_row = 0;    ///< Distance of rows; a_row or a_depth must be 1.
  std::int64_t a_depth = 1;  ///< Distance of steps in k.
  const float* b = nullptr;  ///< Full panels of 16 columns must be readable.
  /// Instead of b, with a_depth 1: words of two bfloat16 steps, the first in the lower half.
  const std::uint32_t* b_pairs = nullptr;
  std::int64_t b_panel = 0;  ///< Distance of panels.
  std::int64_t b_depth = 0;  ///< Distance of steps, or of pairs.
  float* c = nullptr;
  std::int64_t c_row = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< The last panel may be partial.
  std::int64_t depth = 0;
  bool accumulate = false;
  const float* bias = nullptr;  ///< [columns] or null.
  /// b is read once from memory; a_depth must be 1. b_pairs always are.
  bool streamed = false;
  /// The panels to prefetch; may be null.
  const void* b_next = nullptr;
};

/// c[r][n] (= or +=) Σ_k a[r][k] · b[k][n] of bfloat16 in float32 in an order of BFloat16Sums, then
/// + bias[n], then rounded once into `rounded` if given. Denormals count as 0, as in the
/// instructions for bfloat16. Bits depend neither on blocking nor on the instruction set. Distances
/// are in elements.
struct PairProduct {
  const BFloat16* a = nullptr;
  std::int64_t a_row = 0;       ///< Distance of rows; steps are adjacent.
  const BFloat16* b = nullptr;  ///< Panels [pairs][16][2]; full ones must be readable.
  std::int64_t b_panel = 0;     ///< Distance of panels.
  float* c = nullptr;           ///< May be null with `rounded` and without `accumulate`.
  BFloat16* rounded = nullptr;  ///< Result instead of c, if not null.
  std::int64_t c_row = 0;       ///< Of c and `rounded`.
  std::int64_t rows = 0;
  std::int64_t columns = 0;   ///< The last panel may be partial.
  std::int64_t depth = 0;     ///< Steps; b is 0 after an odd depth. To go on: a multiple of 32.
  bool whole_groups = false;  ///< a and b are 0 from `depth` to the next multiple of 32.
  bool accumulate = false;
  const BFloat16* start = nullptr;  ///< Begin from here instead of c, if not null.
  const float* bias = nullptr;      ///< [columns] or null.
};

/// Steps of a row or panel of int8 are zero-padded to a multiple of this.
inline constexpr std::int64_t kInt8Steps = 64;
/// Largest whole numbers of weights and rows (kernel_set.h). The upper byte of 32512 is 127.
inline constexpr float kWeightLevels = 127;
inline constexpr float kInputLevels = 32512;

/// c[r][n] = (float(Σ_k a[r][k] · b[k][n]) · a_scales[r]) · b_scales[n] + bias[n], where the sum is
/// of whole numbers and exact. Bits depend neither on blocking nor on the instruction set.
struct Int8Product {
  const std::int8_t* a = nullptr;  ///< Rows of 2 · depth bytes by VectorKernels::quantise.
  const float* a_scales = nullptr;
  const std::int8_t* b = nullptr;   ///< Panels [depth / 4][16][4].
  const float* b_scales = nullptr;  ///< Full panels must be readable.
  float* c = nullptr;
  std::int64_t c_row = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;     ///< The last panel may be partial.
  std::int64_t depth = 0;       ///< A multiple of kInt8Steps, at most kMaxInt8Depth.
  const float* bias = nullptr;  ///< [columns] or null.
};

struct SoftmaxState {
  float maximum = 0;
  float sums[kLanes] = {};  ///< By lane (key position mod 16).
};

struct VectorKernels {
  void (*tile_product)(const TileProduct&);
  /// panels[c / 16][d][c mod 16] = source[i · stride + d] for c = first + i: `count` rows of `dim`
  /// floats become columns of panels [padded_dim][16], zero after `dim`. Other columns stay.
  void (*transpose_keys)(const float* source, std::int64_t stride, std::int64_t count,
                         std::int64_t dim, std::int64_t padded_dim, std::int64_t first,
                         float* panels);
  void (*pair_product)(const PairProduct&);   ///< By BFloat16Sums::pairs.
  void (*group_product)(const PairProduct&);  ///< By BFloat16Sums::groups.
  /// `count` rows of `depth` bfloat16 become columns of panels [count / 16][⌈depth / 2⌉][16][2],
  /// zero after an odd depth. Other columns stay.
  void (*pair_columns)(const BFloat16* source, std::int64_t stride, std::int64_t count,
                       std::int64_t depth, BFloat16* panels);
  /// target[i · target_stride + d] = source[d · stride + i], i < count, d < depth. target_stride
  /// must be even.
  void (*transpose)(const BFloat16* source, std::int64_t stride, std::int64_t depth,
                    std::int64_t count, BFloat16* target, std::int64_t target_stride);
  void (*widen)(const BFloat16* x, float* y, std::int64_t count);
  /// To nearest even (to_bfloat16). y may begin at x's memory.
  void (*round)(const float* x, BFloat16* y, std::int64_t count);
  /// Writes a row of Int8Product::a, zero from `count` to `depth`, in the order that int8_product
  /// reads. Returns the scale: 0 if that is no normal number, NaN for a row with NaN or infinity.
  float (*quantise)(const float* x, std::int64_t count, std::int64_t depth, void* row);
  /// `count` rows of `depth` floats become columns of a zeroed panel of Int8Product::b and their
  /// scales. Returns false if one holds NaN or infinity.
  bool (*quantise_columns)(const float* source, std::int64_t count, std::int64_t depth,
                           std::int8_t* panel, float* scales);
  void (*int8_product)(const Int8Product&);
  /// scores become exp(score − new maximum), 0 from `visible` > 0 on. Returns the factor for old
  /// sums.
  float (*softmax_step)(float* scores, std::int64_t visible, SoftmaxState& state);
  float (*softmax_sum)(const SoftmaxState& state);
  /// scores become p = exp(scores − log_sum_exp), dp becomes p·(dp − delta); 0 from `visible` on.
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
  /// Returns the first maximum's index, −1 for NaN.
  std::int64_t (*first_maximum)(const float* x, std::int64_t count, float* value);
  /// Σ exp(x − shift), partial sums in double.
  double (*exp_sum)(const float* x, std::int64_t count, float shift);
  /// Returns Σ p_t (log p_t − log p_s); student becomes weight · (p_s − p_t).
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
extern const VectorKernels kAvx512Bf16Kernels;

/// VectorKernels::group_product. Requires: AMX, and permission to use it (amx_available()).
void amx_group_product(const PairProduct& product);
/// VectorKernels::quantise and int8_product, which go together.
float amx_quantise(const float* x, std::int64_t count, std::int64_t depth, void* row);
void amx_int8_product(const Int8Product& product);

}  // namespace jforge
