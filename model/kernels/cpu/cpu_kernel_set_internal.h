#pragma once

/// The CPU KernelSet, one class over several files. Not thread-safe; reuses its scratch memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "model/kernels/cpu/vector_kernels_internal.h"
#include "model/kernels/kernel_arguments.h"
#include "model/kernels/kernel_set.h"

namespace jforge {

/// at_least() leaves the contents unspecified.
class Scratch {
 public:
  /// 64-byte aligned. Throws EnvironmentError if memory is short.
  float* at_least(std::int64_t count);

 private:
  struct Free {
    void operator()(float* p) const noexcept;
  };
  std::unique_ptr<float, Free> data_;
  std::int64_t size_ = 0;
};

/// Panels of 16 columns, zero-padded: [N/16][K][16] float32, [N/16][⌈K/2⌉][16][2] bfloat16, or
/// [N/16][⌈K/64⌉ · 16][16][4] int8 with a scale for each column.
class PanelWeight final : public PackedWeight {
 public:
  PanelWeight(std::int64_t rows, std::int64_t columns, WeightStorage storage, DType dtype,
              MemoryAccount& account);
  /// Type of the rows that are multiplied: float32, bfloat16 or int8.
  [[nodiscard]] DType input() const noexcept { return input_; }
  [[nodiscard]] std::int64_t num_panels() const { return (rows() + kLanes - 1) / kLanes; }
  /// 32-bit words per panel: floats, pairs or fours.
  [[nodiscard]] std::int64_t panel_words() const {
    const std::int64_t k = columns();
    return kLanes * (dtype() == DType::float32    ? k
                     : dtype() == DType::bfloat16 ? (k + 1) / 2
                                                  : int8_depth() / 4);
  }
  [[nodiscard]] std::int64_t int8_depth() const {
    return (columns() + kInt8Steps - 1) / kInt8Steps * kInt8Steps;
  }
  [[nodiscard]] float* floats(std::int64_t panel) const { return at<float>(panel); }
  [[nodiscard]] std::uint32_t* pairs(std::int64_t panel) const { return at<std::uint32_t>(panel); }
  [[nodiscard]] std::int8_t* int8(std::int64_t panel) const {
    return reinterpret_cast<std::int8_t*>(pairs(panel));
  }
  /// Returns the panel's sixteen scales. Requires: int8.
  [[nodiscard]] float* scales(std::int64_t panel) const {
    return floats(num_panels()) + panel * kLanes;
  }

 private:
  template <class Word>
  [[nodiscard]] Word* at(std::int64_t panel) const {
    return reinterpret_cast<Word*>(storage_.data()) + panel * panel_words();
  }

  Buffer storage_;
  DType input_;
};

/// Rows [M, K] to multiply: float32, bfloat16, or int8 (Int8Product::a).
struct ProductInput {
  DType type = DType::float32;
  const void* rows = nullptr;
  std::int64_t row_bytes = 0;
  const float* scales = nullptr;  ///< For int8.

  [[nodiscard]] ProductInput from(std::int64_t row) const {
    return {type, at<std::byte>(row), row_bytes, scales == nullptr ? nullptr : scales + row};
  }
  template <class Element>
  [[nodiscard]] const Element* at(std::int64_t row) const {
    return reinterpret_cast<const Element*>(static_cast<const std::byte*>(rows) + row * row_bytes);
  }
};

/// Up to two runs of keys in logical order (ascending position).
struct KeyRuns {
  const float* keys[2] = {};  ///< Packed: rows.
  const float* values[2] = {};
  const std::int32_t* pages = nullptr;  ///< Decoding: the slot's pages.
  std::int64_t rows[2] = {};            ///< Decoding: where each run begins.
  const LayerCache* cache = nullptr;
  std::int64_t head = 0;
  std::int64_t counts[2] = {};
};

/// Queries of adjacent rows that share keys.
struct QueryBlock {
  std::int64_t first = 0;        ///< Offset in q and output.
  float* log_sum_exp = nullptr;  ///< Null in decoding.
  std::int64_t rows = 0;
  std::int64_t first_visible = 0;    ///< Packed: row i sees first_visible + i keys.
  const CacheRow* places = nullptr;  ///< Decoding: row i sees places[i].position + 1 keys.
  KeyRuns runs;

  [[nodiscard]] std::int64_t visible(std::int64_t row) const {
    return places == nullptr ? first_visible + row : std::int64_t{places[row].position} + 1;
  }
};

template <class Element>
inline constexpr std::int64_t kPerWord = 1;
template <>
inline constexpr std::int64_t kPerWord<BFloat16> = 2;

/// c [m, n] (= or +=) op(a) [m, k] · op(b) [k, n] + bias [n]; a transposed operand is stored [k, m]
/// or [n, k]. Accumulated in float32 by FMA over K in ascending order (pairs: PairProduct),
/// whatever the blocking and threads; `rounded` results are rounded once.
template <class Element>
struct BlockedProduct {
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const Element* a = nullptr;
  std::int64_t a_row = 0;  ///< Distance of a's stored rows.
  const Element* b = nullptr;
  float* c = nullptr;           ///< With `rounded`: see keeps_sums().
  BFloat16* rounded = nullptr;  ///< BFloat16 operands only.
  bool accumulate = false;
  const float* bias = nullptr;  ///< [n] or null.
};

/// Returns elements from `begin` on as float32: in place, or widened into `scratch`.
template <class View>
[[nodiscard]] auto* floats_of(const VectorKernels& vector, const View& view, std::int64_t begin,
                              std::int64_t count, float* scratch) {
  using Float = typename View::template Element<float>;
  if (view.dtype() == DType::float32) {
    return view.template data<float>() + begin;
  }
  vector.widen(view.template data<BFloat16>() + begin, scratch, count);
  return static_cast<Float*>(scratch);
}

inline void copy_floats(const VectorKernels& vector, const ConstTensorView& view,
                        std::int64_t begin, std::int64_t count, float* target) {
  const float* const values = floats_of(vector, view, begin, count, target);
  if (values != target) {
    std::copy_n(values, count, target);
  }
}

/// Returns the tensor itself, or `scratch` for round_floats().
[[nodiscard]] inline float* room_for(const TensorView& view, std::int64_t begin, float* scratch) {
  return view.dtype() == DType::float32 ? view.data<float>() + begin : scratch;
}

/// Does nothing for float32.
inline void round_floats(const VectorKernels& vector, const float* values, const TensorView& view,
                         std::int64_t begin, std::int64_t count) {
  if (view.dtype() == DType::bfloat16) {
    vector.round(values, view.data<BFloat16>() + begin, count);
  }
}

/// Rows × query heads of a group computed together.
inline constexpr std::int64_t kBlockQueries = 64;

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t dim = 0;
  [[nodiscard]] std::int64_t group() const { return heads / key_heads; }
  [[nodiscard]] std::int64_t padded_dim() const { return (dim + kLanes - 1) / kLanes * kLanes; }
  [[nodiscard]] std::int64_t query_stride() const { return heads * dim; }
  [[nodiscard]] std::int64_t key_stride() const { return key_heads * dim; }
};

/// Throws InternalError unless `key_heads` divides the heads of q [T, H, D].
[[nodiscard]] AttentionShape check_attention(const ConstTensorView& q, std::int64_t key_heads);

class CpuKernelSet final : public KernelSet {
 public:
  CpuKernelSet(const VectorKernels& vector, BFloat16Sums sums) : vector_(vector), sums_(sums) {
    if (sums == BFloat16Sums::groups) {
      vector_.pair_product = vector_.group_product;
    }
  }

  [[nodiscard]] Device device() const noexcept override { return Device::cpu; }
  [[nodiscard]] BFloat16Sums bfloat16_sums() const noexcept override { return sums_; }
  [[nodiscard]] KernelSet& host() override { return *this; }
  [[nodiscard]] Queue& queue() noexcept override { return *queue_; }
  void release_work_space() override;

  [[nodiscard]] std::unique_ptr<PackedPlan> make_plan(const AttentionHeads& heads,
                                                      MemoryAccount& account) override;
  [[nodiscard]] std::unique_ptr<DecodePlan> make_decode_plan(const AttentionHeads& heads,
                                                             DType cache, std::int64_t max_rows,
                                                             MemoryAccount& account) override;

  void embedding(const PlannedRows& rows, ConstTensorView table, TensorView output) override;
  void embedding_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                          TensorView table_gradient) override;
  void rms_norm(ConstTensorView x, ConstTensorView weight, float epsilon, TensorView y,
                TensorView inverse_rms) override;
  void rms_norm_backward(ConstTensorView y_gradient, ConstTensorView x, ConstTensorView weight,
                         ConstTensorView inverse_rms, TensorView x_gradient,
                         TensorView weight_gradient) override;
  void add_rms_norm(ConstTensorView x, TensorView stream, ConstTensorView weight, float epsilon,
                    TensorView y, TensorView inverse_rms) override;
  void rotary(TensorView q, TensorView k, const PlannedRows& rows,
              const RotarySettings& settings) override;
  void rotary_backward(TensorView q_gradient, TensorView k_gradient, const PlannedRows& rows,
                       const RotarySettings& settings) override;
  void swiglu(ConstTensorView gate, ConstTensorView up, TensorView y) override;
  void swiglu_backward(ConstTensorView y_gradient, ConstTensorView gate, ConstTensorView up,
                       TensorView gate_gradient, TensorView up_gradient) override;
  void add(ConstTensorView x, TensorView y) override;
  void convert(ConstTensorView x, TensorView y, float factor = 1) override;
  void keep_rows(const DecodePlan& plan, TensorView x) override;

  void linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, TensorView y,
              bool accumulate) override;
  void linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                             TensorView x_gradient, bool accumulate) override;
  void linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                              TensorView weight_gradient, TensorView bias_gradient,
                              bool accumulate) override;
  void packed_attention(const PackedPlan& plan, ConstTensorView q, ConstTensorView k,
                        ConstTensorView v, TensorView output, TensorView log_sum_exp) override;
  void packed_attention_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                                 ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                 ConstTensorView output, ConstTensorView log_sum_exp,
                                 TensorView q_gradient, TensorView k_gradient,
                                 TensorView v_gradient) override;
  void vocabulary_loss(const PackedPlan& plan, ConstTensorView hidden, ConstTensorView head,
                       const LossTerms& terms, TensorView hidden_gradient,
                       TensorView head_gradient) override;
  void sum_of_squares(ConstTensorView x, TensorView sum) override;
  void content_hash(ConstTensorView x, std::uint64_t seed, TensorView sum) override;
  void adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
             const AdamWState& state, const AdamWHashes& hashes) override;

  using KernelSet::pack_weight;
  std::unique_ptr<PackedWeight> pack_weight(ConstTensorView weight, WeightStorage storage,
                                            MemoryAccount& account, ProductUse use) override;
  void invariant_linears(ConstTensorView x, std::span<const Projection> projections) override;
  void add_invariant_linears(ConstTensorView x, std::span<const Projection> projections,
                             const Buffer& sums) override;
  void cache_write(const DecodePlan& plan, ConstTensorView k, ConstTensorView v,
                   LayerCache cache) override;
  void rotate_and_write(const DecodePlan& plan, DecodeRows which, TensorView q, TensorView k,
                        ConstTensorView v, const HeadNorms& norms, const RotarySettings& settings,
                        LayerCache cache) override;
  void cache_copy(const DecodePlan& plan, std::span<const LayerCache> layers) override;
  void cached_attention(const DecodePlan& plan, DecodeRows which, ConstTensorView q,
                        LayerCache cache, TensorView output) override;
  void invariant_argmax(ConstTensorView hidden, const PackedWeight& head,
                        TensorView tokens) override;
  void sample_tokens(TensorView logits, std::span<const SampledRow> rows,
                     TensorView tokens) override;

 private:
  struct LossChunk;
  struct LossRows {
    LossPlacement placement;
    std::vector<VocabularyLossSums> terms;
  };

  const RotaryTable& rotary_table(const RotarySettings& settings, std::int64_t half,
                                  std::int64_t positions);
  template <class RowAt>
  void norm_rows(const ConstTensorView& x, const ConstTensorView& weight, float epsilon,
                 const TensorView& y, const TensorView& inverse_rms, const RowAt& row_at);
  void rotate_rows(TensorView x, const PlannedRows& rows, const RotarySettings& settings,
                   bool backward);
  void attend_all(const AttentionShape& shape, const ConstTensorView& q, const TensorView& output,
                  std::span<const QueryBlock> blocks, double work);
  /// Returns a tensor as float32: in place, or widened into `scratch`.
  [[nodiscard]] const float* all_floats(const ConstTensorView& view, Scratch& scratch) const;
  /// Returns zeros to sum a tensor in: the tensor itself, or `scratch` for round_all().
  [[nodiscard]] static float* zeroed_floats(const TensorView& view, Scratch& scratch);
  void round_all(const float* values, const TensorView& view) const;
  template <class Element>
  void multiply(BlockedProduct<Element> product);
  template <class Element>
  void loss_chunk(LossChunk& chunk);
  void loss_terms(LossChunk& chunk, float* logits);
  [[nodiscard]] std::unique_ptr<PackedWeight> pack_int8(const ConstTensorView& weight,
                                                        MemoryAccount& account);
  /// A rounded result is valid until the next call.
  [[nodiscard]] ProductInput product_input(const ConstTensorView& x, const PanelWeight& panels);
  /// y = input · weightᵀ (+ bias), or with `sums` y += that, of each projection in one region.
  /// Those that add have inputs of their own, one after the other.
  void project(const ProductInput& input, std::span<const Projection> projections, float* sums);
  /// Finds each row's best over one thread's panels.
  void argmax_part(const ProductInput& hidden, const PanelWeight& panels, std::int64_t rows,
                   std::int64_t threads, std::int64_t thread);
  /// Reserves scratch for each thread.
  void reserve_threads(std::int64_t floats);
  /// Requires: `floats` are reserved.
  [[nodiscard]] float* thread_floats(std::int64_t floats);

  VectorKernels vector_;  ///< pair_product by `sums_`.
  BFloat16Sums sums_;
  std::unique_ptr<HostQueue> queue_ = make_inline_queue();
  std::vector<RotaryTable> rotary_tables_;
  std::vector<Scratch> thread_scratch_;
  std::vector<QueryBlock> blocks_;
  std::vector<std::pair<std::size_t, std::size_t>> segment_order_;
  std::vector<std::pair<std::size_t, std::size_t>> segment_groups_;
  std::vector<double> partial_sums_;
  std::vector<std::uint64_t> partial_hashes_;
  std::vector<float> best_values_;
  std::vector<std::int64_t> best_indices_;
  std::vector<TokenSampler> samplers_;
  LossRows loss_rows_;
  Scratch product_sums_;
  Scratch rounded_input_;
  Scratch widened_;         ///< A bias or norm weight.
  Scratch attention_keys_;  ///< From here: of bfloat16 tensors.
  Scratch attention_values_;
  Scratch key_gradients_;
  Scratch value_gradients_;
  Scratch loss_hidden_;
  Scratch loss_logits_;
  Scratch loss_gradient_;
};

/// Minimum multiply-adds for a parallel region.
inline constexpr double kParallelWork = 1.0e6;
/// Lower for decoding, whose operations wait for memory.
inline constexpr double kParallelDecoding = 2.0e5;

/// Where part `index` of `parts` begins, a multiple of `unit`.
[[nodiscard]] inline std::int64_t part_begin(std::int64_t total, std::int64_t parts,
                                             std::int64_t index, std::int64_t unit) {
  const std::int64_t units = (total + unit - 1) / unit;
  const std::int64_t begin = units * index / parts * unit;
  return begin < total ? begin : total;
}

}  // namespace jforge
