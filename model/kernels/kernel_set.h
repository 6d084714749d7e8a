#pragma once

/// The one interface of every arithmetic operation, forward and backward. `cpu/` and `cuda/`
/// implement it with the same names and contracts; transformer, losses and decoders are written
/// once against it.
///
/// Shapes: T rows of a packed batch (training) or M rows of a decoding step, C hidden, F
/// intermediate, H query heads, Hkv key/value heads, D head size, V vocabulary, N×K a projection's
/// weight (output × input, as in HF files).
///
/// Gradient rule, stated once: parameter gradients are added to (+=); activation gradients are
/// written (=); the gradient of the residual stream is added to (+=), where a parameter named
/// `accumulate` says so.
///
/// Element types, taken from the views. "Row-wise" and "training" functions take float32 or
/// bfloat16 for weights, activations and their gradients; bfloat16 is widened exactly, all
/// arithmetic and sums are float32, and a bfloat16 result is rounded once, to nearest even. The
/// operands of a product have one type, its result that or float32; inverse_rms, log_sum_exp and
/// gradients of parameters are float32. Row-wise functions and attention have the bits of the
/// float32 function on the widened values, rounded. Products of bfloat16 on the CPU add pairs of
/// steps in ascending order, the odd step of a pair first, by fused multiply-add: each sum over K
/// is within (K + 1) · 2⁻²⁴ · Σ|aᵢbᵢ| of the exact one, repeats from run to run, and depends
/// neither on the number of threads nor on the instruction set, except that processors with AVX-512
/// BF16 take denormal operands and denormal sums for 0. On CUDA they are cuBLASLt's: float32 sums
/// in an order of its own, rounded once, alike from run to run. There packed attention of bfloat16
/// with heads of 64 or 128 runs on tensor cores, weights of keys and their gradients rounded, too:
/// within 2⁻⁸ of Σ|weight · value| and of the result, alike from run to run.
///
/// Batch invariance (ARCHITECTURE.md "Compute"): the functions under "decoding" promise on CPU fp32
/// that the bits of a row depend only on that row, its context and the weights. They use a matrix
/// product of our own with a fixed order of addition and attention in order of absolute position.
/// The functions under "training" promise only run-to-run equality for equal shapes and thread
/// counts. Row-wise functions (norm, rotary, SwiGLU, embedding) keep the stronger promise and serve
/// both.
///
/// On CUDA the decoding functions keep the same promise among themselves (for one device and
/// build), but their bits differ from the CPU's where exp is involved. Training products and sums
/// repeat from run to run on one device.
///
/// Every function checks its shapes and throws InternalError; tensors are dense, row-major, on the
/// set's device. Index data come as plans (packed_plan.h, decode_plan.h), made once per batch; sums
/// go to views that are read once per step (result_sums.h), chosen tokens too (read_tokens). So no
/// function of training or of a decoding step reads or returns a host value, and a device's queue
/// never runs dry.

#include <cstdint>
#include <memory>
#include <span>

#include "model/kernels/decode_plan.h"
#include "model/kernels/packed_plan.h"
#include "model/kernels/rotary_settings.h"
#include "model/kernels/token_sampler.h"
#include "runtime/device/queue.h"
#include "runtime/ids.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// How decoding weights are stored. But for the last, products' arithmetic is float32 whatever it
/// is: a bfloat16 is widened exactly in a register, so that products have the bits of float32
/// weights of the same values, and a forward pass reads half the bytes. Where weights are rounded a
/// device keeps keys and values as bfloat16, too (cache_type()).
enum class WeightStorage : std::uint8_t {
  automatic,  ///< bfloat16 where every element of the matrix is one, else float32: loses nothing.
  float32,
  bfloat16,  ///< Every element is rounded to the nearest (to_bfloat16).
  /// The same, and so is every row that the matrix is multiplied with: products of bfloat16, added
  /// up in float32 (see above), for batches that arithmetic and not the memory holds up. A row's
  /// bits still depend only on itself and the weight.
  bfloat16_arithmetic,
};
/// Whether elements are rounded that are no bfloat16.
[[nodiscard]] constexpr bool rounds(WeightStorage storage) noexcept {
  return storage == WeightStorage::bfloat16 || storage == WeightStorage::bfloat16_arithmetic;
}

/// Element type of the key/value cache beside weights that are stored so, where `device` computes:
/// the CPU's are float32.
[[nodiscard]] constexpr DType cache_type(WeightStorage storage, Device device) noexcept {
  return device != Device::cpu && rounds(storage) ? DType::bfloat16 : DType::float32;
}

/// Element type of what decoding's products read and what SwiGLU reads, beside weights that are
/// stored so. Products by bfloat16 arithmetic round what they read: a device stores it rounded.
[[nodiscard]] constexpr DType activation_type(WeightStorage storage, Device device) noexcept {
  return device != Device::cpu && storage == WeightStorage::bfloat16_arithmetic ? DType::bfloat16
                                                                                : DType::float32;
}

/// Rows whose logits a device holds at once where it multiplies by bfloat16 arithmetic: as many as
/// wait for their own arithmetic no less than for the head.
inline constexpr std::int64_t kDeviceArgmaxRows = 256;

class PackedWeight;

/// How a packed weight will be used. Other uses work too, but the first of each makes a device
/// wait.
struct ProductUse {
  DType result = DType::float32;
  bool bias = false;
  /// Weights of one K that invariant_linears() always gets together, in this order: a device may
  /// multiply by them as by one matrix. The first names the rows of all, the others the one before.
  std::int64_t group_rows = 0;
  const PackedWeight* after = nullptr;
};

/// A projection's weight in the order the decoding product wants (panels of 16 columns on CPU).
/// Made by pack_weight.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }        ///< N
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }  ///< K
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }  ///< float32 or bfloat16.

 protected:
  PackedWeight(std::int64_t rows, std::int64_t columns, DType dtype)
      : rows_(rows), columns_(columns), dtype_(dtype) {}

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  DType dtype_;
};

/// One layer's keys and values: [pages, kCachePageRows, Hkv, D] each, pages in any order, of the
/// plan's cache type: float32 on the CPU, that or bfloat16 on a device. The order within a page of
/// keys is the set's own: on the CPU they lie as attention multiplies with them, [pages, Hkv,
/// kCachePageRows / 16, D, 16].
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
  float weight_decay = 0;    ///< Decoupled; applied where the parameter's decay flag is set.
  float gradient_scale = 1;  ///< Multiplied into the gradient first (clipping).
  std::int64_t step = 1;     ///< 1-based, for bias correction.
};

/// What an AdamW step changes: float32 [n] each, and the bfloat16 [n] that the parameters are
/// rounded to (empty: none).
struct AdamWState {
  TensorView parameter;
  TensorView first_moment;
  TensorView second_moment;
  TensorView rounded;
};

/// Where KernelSet::adamw adds the content_hash of an AdamWState's parts, in their order, before
/// the step and after it: int64 [4] each on the set's device; empty: not wanted.
struct AdamWHashes {
  TensorView found;
  TensorView left;
  std::uint64_t seed = 0;
};

/// A model beside the student's that teaches: what its clean rows end with, [T', C], and its head,
/// [V, C], of the student's element type and place. Empty: the student's own clean rows teach.
struct LossTeacher {
  ConstTensorView hidden;
  ConstTensorView head;
};

/// What the autoregressive term compares a clean row's distribution with.
enum class ArLoss : std::uint8_t {
  cross_entropy,  ///< The next token.
  distillation,   ///< A separate teacher's distribution there: KL(teacher ‖ clean row).
};

/// What vocabulary_loss differentiates, consistency_scale · Σ w KL + ar_scale · Σ w CE (or, with
/// ArLoss::distillation, KL), and where the two sums go.
struct LossTerms {
  float consistency_scale = 1;
  float ar_scale = 1;
  TensorView sums;  ///< float64 [2] on the set's device: both sums, without scales, are added.
  LossTeacher teacher{};
  ArLoss ar_loss = ArLoss::cross_entropy;
};

/// The two sums of LossTerms on the host: what metrics report.
struct VocabularyLossSums {
  double consistency = 0;     ///< Σ weight · KL(teacher ‖ student)
  double autoregressive = 0;  ///< Σ weight · cross-entropy, or KL(teacher ‖ clean row)
};

/// Norms of the heads of queries and keys, [D] each (Qwen3); both empty: none.
struct HeadNorms {
  ConstTensorView q;
  ConstTensorView k;
  float epsilon = 0;
};

class KernelSet {
 public:
  virtual ~KernelSet() = default;

  /// Where the set computes and its tensors must lie (Buffer, copy_tensor and zero_tensor of
  /// buffer.h take a device).
  [[nodiscard]] virtual Device device() const noexcept = 0;
  /// The set for tensors in host memory that goes with this one: the set itself on the CPU. What
  /// stays on the host when the model is on a device (optimizer state, collectives) uses it.
  [[nodiscard]] virtual KernelSet& host() = 0;
  /// Where the functions run, in the order of the calls: on the CPU within the call.
  [[nodiscard]] virtual Queue& queue() noexcept = 0;
  /// Gives back the memory that calls so far made the set keep to work in: later ones take what
  /// they need anew. Between phases, when no plan of the set is alive.
  virtual void release_work_space() = 0;

  // ---- index data
  // ------------------------------------------------------------------------------
  /// For the training functions below, with heads as given. The set must outlive it; one user at a
  /// time.
  [[nodiscard]] virtual std::unique_ptr<PackedPlan> make_plan(const AttentionHeads& heads,
                                                              MemoryAccount& account) = 0;
  /// For the decoding functions below, for batches of up to `max_rows` rows over a cache of
  /// elements of type `cache`. The set must outlive it; one user at a time.
  [[nodiscard]] virtual std::unique_ptr<DecodePlan> make_decode_plan(const AttentionHeads& heads,
                                                                     DType cache,
                                                                     std::int64_t max_rows,
                                                                     MemoryAccount& account) = 0;

  // ---- row-wise, forward and backward
  // ------------------------------------------------------------------------------
  /// output [T, C] = table [V, C] at the rows' tokens; a bfloat16 table may be read as float32.
  virtual void embedding(const PlannedRows& rows, ConstTensorView table, TensorView output) = 0;
  /// table_gradient [V, C] += output_gradient [T, C], rows in ascending order.
  virtual void embedding_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                                  TensorView table_gradient) = 0;
  /// y = x / rms(x) · weight, rms over the last dimension; inverse_rms [T] is kept for backward
  /// (may be empty). y may be x.
  virtual void rms_norm(ConstTensorView x, ConstTensorView weight, float epsilon, TensorView y,
                        TensorView inverse_rms) = 0;
  /// x_gradient += …, weight_gradient += ….
  virtual void rms_norm_backward(ConstTensorView y_gradient, ConstTensorView x,
                                 ConstTensorView weight, ConstTensorView inverse_rms,
                                 TensorView x_gradient, TensorView weight_gradient) = 0;
  /// stream += x, then y = rms_norm(stream), with the bits of add() and rms_norm(). y may be x.
  virtual void add_rms_norm(ConstTensorView x, TensorView stream, ConstTensorView weight,
                            float epsilon, TensorView y, TensorView inverse_rms) = 0;
  /// In place on q [T, H, D] and k [T, Hkv, D], either of which may be empty: rotate pairs
  /// (i, i + D/2) by position · rotary_frequency(settings, i, D/2) (HF "rotate_half" order).
  virtual void rotary(TensorView q, TensorView k, const PlannedRows& rows,
                      const RotarySettings& settings) = 0;
  /// In place: the inverse rotation, which maps output gradients to input gradients.
  virtual void rotary_backward(TensorView q_gradient, TensorView k_gradient,
                               const PlannedRows& rows, const RotarySettings& settings) = 0;
  /// y [T, F] = silu(gate) · up.
  virtual void swiglu(ConstTensorView gate, ConstTensorView up, TensorView y) = 0;
  virtual void swiglu_backward(ConstTensorView y_gradient, ConstTensorView gate, ConstTensorView up,
                               TensorView gate_gradient, TensorView up_gradient) = 0;
  /// y += x, any equal shapes.
  virtual void add(ConstTensorView x, TensorView y) = 0;
  /// y = x, any equal shapes, each float32 or bfloat16: widened exactly or rounded to nearest even.
  virtual void convert(ConstTensorView x, TensorView y) = 0;
  /// Moves the plan's kept rows of x [M, C] to its front, in place.
  virtual void keep_rows(const DecodePlan& plan, TensorView x) = 0;

  // ---- training
  // ----------------------------------------------------------------------------------------------------
  /// y [M, N] = x [M, K] · weightᵀ (+ bias [N] when not empty). On CUDA a float32 bias needs a
  /// float32 result.
  virtual void linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                      TensorView y) = 0;
  /// x_gradient [M, K] = y_gradient [M, N] · weight; with `accumulate`, +=.
  virtual void linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                                     TensorView x_gradient, bool accumulate) = 0;
  /// weight_gradient [N, K] = y_gradientᵀ · x; with `accumulate`, +=. bias_gradient [N] += column
  /// sums (when not empty).
  virtual void linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                                      TensorView weight_gradient, TensorView bias_gradient,
                                      bool accumulate) = 0;
  /// Scaled dot-product attention over a packed layout. q [T, H, D], k and v [T, Hkv, D], output
  /// [T, H, D], log_sum_exp [T, H] for backward. Query head h reads key head h / (H / Hkv). Scale
  /// 1/√D. What a row does not see is never visited. On CPU fp32 it keeps the decoding promise too:
  /// a row's bits equal those of cached_attention for the same query and the same keys in the same
  /// order.
  virtual void packed_attention(const PackedPlan& plan, ConstTensorView q, ConstTensorView k,
                                ConstTensorView v, TensorView output, TensorView log_sum_exp) = 0;
  /// q_gradient, k_gradient, v_gradient are written (=).
  virtual void packed_attention_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                                         ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                         ConstTensorView output, ConstTensorView log_sum_exp,
                                         TensorView q_gradient, TensorView k_gradient,
                                         TensorView v_gradient) = 0;
  /// Fused output projection + losses, forward and backward, in chunks of rows so that the logits
  /// of a whole sequence are never stored. hidden [T, C] (after the final norm), head [V, C].
  /// Teacher logits are detached: a teacher row gets gradient only from its own AR target.
  /// hidden_gradient [T, C] is written (=, zero for rows outside the loss), head_gradient [V, C] is
  /// added to. KL(teacher ‖ student) = Σ_v p_t (log p_t − log p_s), temperature 1, in fp32
  /// (METHOD.md §4). With consistency_scale 0 student rows are not computed and that sum is 0. With
  /// a separate teacher p_t is of its rows (LossItem::teacher_row), which get no gradient; clean
  /// rows then serve their AR targets alone. With ArLoss::distillation, which needs one where there
  /// are items, every item with a target has a teacher row too.
  virtual void vocabulary_loss(const PackedPlan& plan, ConstTensorView hidden, ConstTensorView head,
                               const LossTerms& terms, TensorView hidden_gradient,
                               TensorView head_gradient) = 0;
  /// sum += Σ x², float64 [1] on the set's device; fixed order for a given size.
  virtual void sum_of_squares(ConstTensorView x, TensorView sum) = 0;
  /// sum += a 64-bit hash of the bytes of x and of `seed`, modulo 2⁶⁴, for finding memory that
  /// changed: int64 [1] on the set's device. The same for every set, number of threads and device;
  /// not that of files (content_hash.h). Sums of tensors with seeds of their own are one hash of
  /// all, in whatever order they are added.
  virtual void content_hash(ConstTensorView x, std::uint64_t seed, TensorView sum) = 0;
  /// content_hash of each of the equal parts of x, one behind the other, all with one seed, into a
  /// sum of its own, int64 [parts].
  virtual void content_hash_of_parts(ConstTensorView x, std::uint64_t seed, TensorView sums);
  /// One AdamW step (Loshchilov & Hutter 2019) on a run of parameters, gradient [n]. decay: one
  /// flag for the whole run. The CPU hashes bytes that it has at hand, a device in passes apart.
  virtual void adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
                     const AdamWState& state, const AdamWHashes& hashes = {}) = 0;

  // ---- decoding: batch-invariant on CPU fp32
  // -------------------------------------------------------------------------
  /// `weight` [N, K] is float32 or bfloat16 and may also lie in host memory.
  virtual std::unique_ptr<PackedWeight> pack_weight(ConstTensorView weight, WeightStorage storage,
                                                    MemoryAccount& account, ProductUse use) = 0;
  std::unique_ptr<PackedWeight> pack_weight(ConstTensorView weight, WeightStorage storage,
                                            MemoryAccount& account) {
    return pack_weight(weight, storage, account, {});
  }
  /// Projections of x [M, K], which a device takes together. Each element is accumulated over K in
  /// ascending order by FMA; with WeightStorage::bfloat16_arithmetic on the CPU as products of
  /// bfloat16 are, on CUDA as tensor cores do, with equal bits beside any other rows. Then x and y
  /// may be bfloat16, too (y without a bias).
  virtual void invariant_linears(ConstTensorView x, std::span<const Projection> projections) = 0;
  void invariant_linear(ConstTensorView x, const PackedWeight& weight, ConstTensorView bias,
                        TensorView y) {
    const Projection one{weight, bias, y};
    invariant_linears(x, {&one, 1});
  }
  /// Writes k and v [M, Hkv, D] of each row to its place in the cache, rounded where that is
  /// bfloat16.
  virtual void cache_write(const DecodePlan& plan, ConstTensorView k, ConstTensorView v,
                           LayerCache cache) = 0;
  /// rms_norm() of the heads of q [M', H, D], the rows of `which`, and of k where there are norms,
  /// then rotary() of both, then cache_write(), with the bits of them all. q is changed in place, k
  /// left unspecified.
  virtual void rotate_and_write(const DecodePlan& plan, DecodeRows which, TensorView q,
                                TensorView k, ConstTensorView v, const HeadNorms& norms,
                                const RotarySettings& settings, LayerCache cache) = 0;
  /// Copies keys and values of all `layers` within their slots, as the batch's `copies` say.
  virtual void cache_copy(const DecodePlan& plan, std::span<const LayerCache> layers) = 0;
  /// output [M, H, D], float32 as q (on a device also bfloat16): each row attends to the keys that
  /// CacheRow says, in position order. Its bits do not depend on where they lie. Over a cache of
  /// bfloat16 with heads of 64 or 128 CUDA multiplies on tensor cores, queries rounded, and weights
  /// of keys (by 2⁻⁸ of Σ|weight · value|), too; other rows of the same call still change no bit.
  virtual void cached_attention(const DecodePlan& plan, DecodeRows which, ConstTensorView q,
                                LayerCache cache, TensorView output) = 0;
  /// tokens[i] = argmax over V of hidden row i · headᵀ, int32 [M]; ties go to the smallest id,
  /// kNoToken where a row's logits hold NaN. The logits of many rows are never stored at once.
  virtual void invariant_argmax(ConstTensorView hidden, const PackedWeight& head,
                                TensorView tokens) = 0;
  /// tokens[i] of logits row i, float32 [M, V], as rows[i] says (TokenSampler), int32 [M]; kNoToken
  /// where the row holds NaN. `rows` may change afterwards. Overwrites the logits. Sets choose the
  /// same token but where scores differ by a few units in the last place of float64, or sums of
  /// probabilities differ so little from top_p.
  virtual void sample_tokens(TensorView logits, std::span<const SampledRow> rows,
                             TensorView tokens) = 0;
};

/// Tokens of invariant_argmax() or sample_tokens() on the host, once everything queued before has
/// run. Throws NumericalError for a row whose logits hold NaN.
void read_tokens(KernelSet& kernels, ConstTensorView tokens, std::span<TokenId> result);

/// The CPU implementation (AVX2 + FMA at least; AVX-512 where the machine has it, with equal bits
/// in the decoding functions). Throws EnvironmentError when the processor lacks AVX2 or FMA.
[[nodiscard]] std::unique_ptr<KernelSet> make_cpu_kernel_set();

}  // namespace jforge
