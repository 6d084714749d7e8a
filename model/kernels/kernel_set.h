#pragma once

/// The interface of all arithmetic, forward and backward; `cpu/` and `cuda/` implement it under the
/// same contracts.
///
/// Shapes: T rows of a packed batch or M of a decoding step, C hidden, F intermediate, H query
/// heads, Hkv key/value heads, D head size, V vocabulary, N×K a weight (output × input, as in HF
/// files).
///
/// Gradients: those of parameters are added (+=); those of activations are written (=); that of the
/// residual stream is added, selected by `accumulate` where a function has it.
///
/// Element types come from the views. Weights, activations and their gradients are float32 or
/// bfloat16. Arithmetic and sums are float32: bfloat16 is widened exactly and a bfloat16 result is
/// rounded once, to nearest even. A product's operands have one type, its result that type or
/// float32. inverse_rms, log_sum_exp and parameter gradients are float32. Row-wise functions and
/// attention (except on tensor cores) have the bits of the float32 function, rounded.
///
/// bfloat16 products on the CPU add in one of two orders, of which a run keeps one
/// (bfloat16_sums.h), and take denormals for 0: a sum over K is within (K + 1) · 2⁻²⁴ · Σ|aᵢbᵢ| of
/// the exact one and depends neither on the number of threads nor on the instruction set. On CUDA
/// they are cuBLASLt's: float32 sums, rounded once. CUDA's packed attention of bfloat16 with heads
/// of 64 or 128 uses tensor cores and also rounds attention weights and their gradients: within 2⁻⁸
/// of Σ|weight · value| and of the result.
///
/// Batch invariance (ARCHITECTURE.md "Compute"): on CPU fp32 the bits of a row of a "decoding"
/// function depend only on the row, its context and the weights. On CUDA this holds within one
/// device and build; bits differ from the CPU's where exp is involved. Row-wise functions promise
/// the same. "Training" functions promise only equal results from run to run, on the CPU for equal
/// shapes and thread counts.
///
/// Every function throws InternalError for wrong shapes. Tensors are dense, row-major, on the set's
/// device. Index data come as plans (packed_plan.h, decode_plan.h); sums and chosen tokens stay on
/// the device until result_sums.h or read_tokens() reads them. So no function of a step reads or
/// returns a host value, and the device's queue never runs dry.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "model/kernels/bfloat16_sums.h"
#include "model/kernels/decode_plan.h"
#include "model/kernels/packed_plan.h"
#include "model/kernels/rotary_settings.h"
#include "model/kernels/token_sampler.h"
#include "runtime/device/queue.h"
#include "runtime/ids.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// How decoding weights are stored. Those before bfloat16_arithmetic compute in float32. With
/// rounded weights a device's key/value cache is bfloat16 too (cache_type()).
enum class WeightStorage : std::uint8_t {
  automatic,  ///< bfloat16 if that is exact for every element, else float32.
  float32,
  bfloat16,  ///< Rounds to nearest even (to_bfloat16).
  /// Also rounds the multiplied rows: bfloat16 products with float32 sums, for large batches.
  bfloat16_arithmetic,
  /// CPU only. Row n of a weight is whole numbers in −127 … 127, w / s to nearest even, with its
  /// scale s = max|w| / 127; a multiplied row has max|x| / 32512, so only the weights' rounding is
  /// felt. y = (float(Σ wx) · s_x) · s_w + bias with an exact sum: the same bits on every
  /// instruction set. A row whose scale is no normal number counts as 0, and one of x with NaN or
  /// infinity gives NaN.
  int8,
};
/// Names of model.decode_weights, in order.
inline constexpr const char* kWeightStorageTexts[] = {"auto", "float32", "bfloat16",
                                                      "bfloat16_arithmetic", "int8"};
[[nodiscard]] constexpr const char* name_of(WeightStorage storage) noexcept {
  return kWeightStorageTexts[static_cast<std::size_t>(storage)];
}
[[nodiscard]] constexpr bool rounds(WeightStorage storage) noexcept {
  return storage >= WeightStorage::bfloat16;
}
/// Longest row of an int8 weight: its sums with bytes, of at most 128 · 127 each, fit 32 bits.
inline constexpr std::int64_t kMaxInt8Depth = 131072;
static_assert(kMaxInt8Depth * 128 * 127 <= INT32_MAX);

/// Element type of the key/value cache.
[[nodiscard]] constexpr DType cache_type(WeightStorage storage, Device device) noexcept {
  return device != Device::cpu && rounds(storage) ? DType::bfloat16 : DType::float32;
}

/// Element type of inputs of decoding's products and of SwiGLU.
[[nodiscard]] constexpr DType activation_type(WeightStorage storage, Device device) noexcept {
  return device != Device::cpu && storage == WeightStorage::bfloat16_arithmetic ? DType::bfloat16
                                                                                : DType::float32;
}

/// Rows of logits held at once with bfloat16 arithmetic on a device: enough to hide head reads.
inline constexpr std::int64_t kDeviceArgmaxRows = 256;

class PackedWeight;

/// Expected use of a packed weight. The first other use makes a device wait.
struct ProductUse {
  DType result = DType::float32;
  bool bias = false;
  /// For weights of one K that invariant_linears() always gets together, in order, so that a device
  /// may multiply by them as one. The first gives the rows of all, the others their predecessor.
  std::int64_t group_rows = 0;
  const PackedWeight* after = nullptr;
};

/// A weight in the decoding product's order, made by pack_weight.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }        ///< N
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }  ///< K
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }  ///< float32, bfloat16 or int8

 protected:
  PackedWeight(std::int64_t rows, std::int64_t columns, DType dtype)
      : rows_(rows), columns_(columns), dtype_(dtype) {}

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  DType dtype_;
};

/// A layer's keys and values, [pages, kCachePageRows, Hkv, D] each, of the plan's cache type. On
/// the CPU keys lie as [pages, Hkv, kCachePageRows / 16, D, 16].
struct LayerCache {
  TensorView keys;
  TensorView values;
};

/// y [M, N] = x [M, K] · weightᵀ (+ bias [N]).
struct Projection {
  const PackedWeight& weight;
  ConstTensorView bias;  ///< May be empty.
  TensorView y;
};

struct AdamWSettings {
  float learning_rate = 0;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0;    ///< Decoupled; only for parameters with the decay flag.
  float gradient_scale = 1;  ///< Multiplies the gradient first (clipping).
  std::int64_t step = 1;     ///< 1-based, for bias correction.
};

/// Float32 [n] each; `rounded` takes the new parameters as bfloat16 [n] (empty: none).
struct AdamWState {
  TensorView parameter;
  TensorView first_moment;
  TensorView second_moment;
  TensorView rounded;
};

/// Sums that adamw() adds the content_hash of each part of AdamWState to, before and after the
/// step: int64 [4] each on the set's device; empty: none.
struct AdamWHashes {
  TensorView found;
  TensorView left;
  std::uint64_t seed = 0;
};

/// A separate teacher's final hidden rows [T', C] and head [V, C], of the student's type and
/// device. Empty: the student's clean rows teach.
struct LossTeacher {
  ConstTensorView hidden;
  ConstTensorView head;
};

/// Target of the autoregressive term.
enum class ArLoss : std::uint8_t {
  cross_entropy,  ///< The next token.
  distillation,   ///< A separate teacher's distribution: KL(teacher ‖ clean row).
};

/// vocabulary_loss differentiates consistency_scale · Σ w KL + ar_scale · Σ w CE (distilled: KL).
struct LossTerms {
  float consistency_scale = 1;
  float ar_scale = 1;
  TensorView sums;  ///< float64 [2] on the set's device; unscaled sums are added.
  LossTeacher teacher{};
  ArLoss ar_loss = ArLoss::cross_entropy;
};

struct VocabularyLossSums {
  double consistency = 0;     ///< Σ weight · KL(teacher ‖ student)
  double autoregressive = 0;  ///< Σ weight · cross-entropy, or KL(teacher ‖ clean row)
};

/// Norms of query and key heads, [D] each (Qwen3); both empty: none.
struct HeadNorms {
  ConstTensorView q;
  ConstTensorView k;
  float epsilon = 0;
};

class KernelSet {
 public:
  virtual ~KernelSet() = default;

  [[nodiscard]] virtual Device device() const noexcept = 0;
  /// The set for host tensors: itself on the CPU.
  [[nodiscard]] virtual KernelSet& host() = 0;
  /// Runs the functions in call order; on the CPU, within the call.
  [[nodiscard]] virtual Queue& queue() noexcept = 0;
  /// Frees work space. Requires: no plan of the set is alive.
  virtual void release_work_space() = 0;

  // Index data. The set must outlive its plans; one user at a time.
  [[nodiscard]] virtual std::unique_ptr<PackedPlan> make_plan(const AttentionHeads& heads,
                                                              MemoryAccount& account) = 0;
  [[nodiscard]] virtual std::unique_ptr<DecodePlan> make_decode_plan(const AttentionHeads& heads,
                                                                     DType cache,
                                                                     std::int64_t max_rows,
                                                                     MemoryAccount& account) = 0;

  // Row-wise, forward and backward
  /// output [T, C] = rows of table [V, C]; a bfloat16 table may give float32.
  virtual void embedding(const PlannedRows& rows, ConstTensorView table, TensorView output) = 0;
  /// table_gradient [V, C] += output_gradient [T, C], rows in ascending order.
  virtual void embedding_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                                  TensorView table_gradient) = 0;
  /// y = x / rms(x) · weight over the last dimension; y may be x. inverse_rms [T] may be empty.
  virtual void rms_norm(ConstTensorView x, ConstTensorView weight, float epsilon, TensorView y,
                        TensorView inverse_rms) = 0;
  /// x_gradient += …, weight_gradient += ….
  virtual void rms_norm_backward(ConstTensorView y_gradient, ConstTensorView x,
                                 ConstTensorView weight, ConstTensorView inverse_rms,
                                 TensorView x_gradient, TensorView weight_gradient) = 0;
  /// stream += x, then y = rms_norm(stream), with the bits of add() and rms_norm(). y may be x.
  virtual void add_rms_norm(ConstTensorView x, TensorView stream, ConstTensorView weight,
                            float epsilon, TensorView y, TensorView inverse_rms) = 0;
  /// In place on q [T, H, D] and k [T, Hkv, D], either may be empty: rotates pairs (i, i + D/2) by
  /// position · rotary_frequency(settings, i, D/2) (HF "rotate_half" order).
  virtual void rotary(TensorView q, TensorView k, const PlannedRows& rows,
                      const RotarySettings& settings) = 0;
  /// The inverse rotation, in place.
  virtual void rotary_backward(TensorView q_gradient, TensorView k_gradient,
                               const PlannedRows& rows, const RotarySettings& settings) = 0;
  /// y [T, F] = silu(gate) · up.
  virtual void swiglu(ConstTensorView gate, ConstTensorView up, TensorView y) = 0;
  virtual void swiglu_backward(ConstTensorView y_gradient, ConstTensorView gate, ConstTensorView up,
                               TensorView gate_gradient, TensorView up_gradient) = 0;
  /// y += x, of any equal shapes.
  virtual void add(ConstTensorView x, TensorView y) = 0;
  /// y = factor · x, any equal shapes, each float32 or bfloat16: widened exactly or rounded to
  /// nearest even. y may be x.
  virtual void convert(ConstTensorView x, TensorView y, float factor = 1) = 0;
  /// Moves the plan's kept rows of x [M, C] to its front.
  virtual void keep_rows(const DecodePlan& plan, TensorView x) = 0;

  // Training
  /// y [M, N] = x [M, K] · weightᵀ (+ bias [N]); with `accumulate`, and then without a bias, +=. On
  /// CUDA a float32 bias needs a float32 result.
  virtual void linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, TensorView y,
                      bool accumulate = false) = 0;
  /// x_gradient [M, K] = y_gradient [M, N] · weight; with `accumulate`, +=.
  virtual void linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                                     TensorView x_gradient, bool accumulate) = 0;
  /// weight_gradient [N, K] = y_gradientᵀ · x; with `accumulate`, +=. Adds to bias_gradient [N].
  virtual void linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                                      TensorView weight_gradient, TensorView bias_gradient,
                                      bool accumulate) = 0;
  /// Attention over a packed layout: q and output [T, H, D], k and v [T, Hkv, D], log_sum_exp [T,
  /// H] for backward. Query head h reads key head h / (H / Hkv); the scale is 1/√D. Hidden keys are
  /// never read. On CPU fp32 a row has the bits of cached_attention for the same query and keys.
  virtual void packed_attention(const PackedPlan& plan, ConstTensorView q, ConstTensorView k,
                                ConstTensorView v, TensorView output, TensorView log_sum_exp) = 0;
  /// Writes the gradients (=).
  virtual void packed_attention_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                                         ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                         ConstTensorView output, ConstTensorView log_sum_exp,
                                         TensorView q_gradient, TensorView k_gradient,
                                         TensorView v_gradient) = 0;
  /// Fused output projection and losses, forward and backward (METHOD.md §4), in chunks of rows
  /// that bound the logits. hidden [T, C] is after the final norm, head [V, C]. KL(teacher ‖
  /// student) = Σ_v p_t (log p_t − log p_s), temperature 1, in fp32. Teacher logits are detached: a
  /// teacher row gets gradient only from its own AR target. hidden_gradient [T, C] is written, zero
  /// outside the loss; head_gradient [V, C] is added to (empty: not wanted). With consistency_scale
  /// 0 student rows are skipped. A separate teacher gives p_t from LossItem::teacher_row, without
  /// gradient. ArLoss::distillation requires one, and a teacher row for every item with a target.
  virtual void vocabulary_loss(const PackedPlan& plan, ConstTensorView hidden, ConstTensorView head,
                               const LossTerms& terms, TensorView hidden_gradient,
                               TensorView head_gradient) = 0;
  /// sum += Σ x², float64 [1] on the set's device; fixed order for a given size.
  virtual void sum_of_squares(ConstTensorView x, TensorView sum) = 0;
  /// sum += a 64-bit hash of the bytes of x and `seed`, modulo 2⁶⁴, to detect changed memory: int64
  /// [1] on the set's device. Equal for every set, device and thread count, but not the hash of
  /// files (content_hash.h). The order of sums over tensors does not matter.
  virtual void content_hash(ConstTensorView x, std::uint64_t seed, TensorView sum) = 0;
  /// Adds content_hash of each equal, consecutive part of x to sums, int64 [parts].
  virtual void content_hash_of_parts(ConstTensorView x, std::uint64_t seed, TensorView sums);
  /// One AdamW step (Loshchilov & Hutter 2019), gradient [n]; `decay` is for all n.
  virtual void adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
                     const AdamWState& state, const AdamWHashes& hashes = {}) = 0;

  // Decoding: batch-invariant on CPU fp32
  /// `weight` [N, K] is float32 or bfloat16 and may lie in host memory. For int8 throws
  /// NumericalError if it holds NaN or infinity, ConfigError if K > kMaxInt8Depth.
  virtual std::unique_ptr<PackedWeight> pack_weight(ConstTensorView weight, WeightStorage storage,
                                                    MemoryAccount& account, ProductUse use) = 0;
  std::unique_ptr<PackedWeight> pack_weight(ConstTensorView weight, WeightStorage storage,
                                            MemoryAccount& account) {
    return pack_weight(weight, storage, account, {});
  }
  /// Projections of x [M, K], which a device takes together. Elements are accumulated over K in
  /// ascending order by FMA; with bfloat16_arithmetic as bfloat16 products on the CPU, by tensor
  /// cores on CUDA, and x and y may be bfloat16 (y without a bias); with int8 as that says.
  virtual void invariant_linears(ConstTensorView x, std::span<const Projection> projections) = 0;
  void invariant_linear(ConstTensorView x, const PackedWeight& weight, ConstTensorView bias,
                        TensorView y) {
    const Projection one{weight, bias, y};
    invariant_linears(x, {&one, 1});
  }
  /// y += invariant_linear() of each projection, which has no bias; their weights are of one type
  /// and K. x [P · M, K] has their inputs one after the other; `sums` takes P · M rows of the
  /// widest y.
  virtual void add_invariant_linears(ConstTensorView x, std::span<const Projection> projections,
                                     const Buffer& sums) {
    std::int64_t row = 0;
    for (const auto& [weight, bias, y] : projections) {
      const TensorView added = sums.view(y.dtype(), y.shape());
      invariant_linear(x.rows(row, row + y.dim(0)), weight, {}, added);
      add(added, y);
      row += y.dim(0);
    }
  }
  /// Writes k and v [M, Hkv, D] to the rows' places, rounded if the cache is bfloat16.
  virtual void cache_write(const DecodePlan& plan, ConstTensorView k, ConstTensorView v,
                           LayerCache cache) = 0;
  /// rms_norm() of the heads of q [M', H, D], the rows of `which`, and of k, if there are norms;
  /// rotary() of both; cache_write(), with their bits. Changes q in place; leaves k unspecified.
  virtual void rotate_and_write(const DecodePlan& plan, DecodeRows which, TensorView q,
                                TensorView k, ConstTensorView v, const HeadNorms& norms,
                                const RotarySettings& settings, LayerCache cache) = 0;
  /// Copies rows of all `layers` by the batch's `copies`.
  virtual void cache_copy(const DecodePlan& plan, std::span<const LayerCache> layers) = 0;
  /// output [M, H, D], float32 as q (bfloat16 also on a device): each row attends to the keys given
  /// by its CacheRow, in position order, whatever their pages. For bfloat16 caches with heads of 64
  /// or 128 CUDA's tensor cores round queries and attention weights (by 2⁻⁸ of Σ|weight · value|).
  virtual void cached_attention(const DecodePlan& plan, DecodeRows which, ConstTensorView q,
                                LayerCache cache, TensorView output) = 0;
  /// tokens[i] = argmax of hidden row i · headᵀ, int32 [M]; smallest id on ties, kNoToken for NaN.
  virtual void invariant_argmax(ConstTensorView hidden, const PackedWeight& head,
                                TensorView tokens) = 0;
  /// tokens[i], int32 [M], is chosen from logits row i, float32 [M, V], by rows[i] (TokenSampler);
  /// kNoToken for NaN. Overwrites the logits. Sets agree unless scores differ by few float64 ulps.
  virtual void sample_tokens(TensorView logits, std::span<const SampledRow> rows,
                             TensorView tokens) = 0;

  /// The order of products of bfloat16; only the CPU has a choice.
  [[nodiscard]] virtual BFloat16Sums bfloat16_sums() const noexcept { return BFloat16Sums::pairs; }
};

/// Waits for the queue. Throws NumericalError for kNoToken, which means that the logits hold NaN.
void read_tokens(KernelSet& kernels, ConstTensorView tokens, std::span<TokenId> result);

/// The order of this machine's fastest products of bfloat16.
[[nodiscard]] BFloat16Sums fastest_bfloat16_sums();

/// Measures the speed of products of bfloat16 by `sums` in multiples of float32's, with operands
/// that are cached, on one thread.
[[nodiscard]] double bfloat16_against_float32(BFloat16Sums sums);

/// With the widest instructions of this machine that the environment's JFORGE_CPU (avx2, avx512,
/// avx512_bf16 or amx_bf16) allows. Throws EnvironmentError without AVX2 or FMA.
[[nodiscard]] std::unique_ptr<KernelSet> make_cpu_kernel_set(
    BFloat16Sums sums = fastest_bfloat16_sums());

}  // namespace jforge
