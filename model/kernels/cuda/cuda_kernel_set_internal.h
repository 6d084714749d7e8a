#pragma once

/// The CUDA KernelSet, one class over several files. Not thread-safe.

#include <array>
#include <memory>
#include <set>
#include <vector>

#include "model/kernels/cuda/cuda_packed_plan_internal.h"
#include "model/kernels/cuda/device_queue.cuh"
#include "model/kernels/cuda/float_elements.h"
#include "model/kernels/kernel_arguments.h"
#include "model/kernels/kernel_set.h"
#include "runtime/tensor/matrix_product.h"

namespace jforge {

/// Pads the library's matrices to 16-byte alignment.
inline constexpr int kProductPadding = 8;

/// A weight padded with zeros. For the library: bfloat16 [N][K], both padded to kProductPadding.
/// For lanes that own a column each: [⌈K / P⌉][N][P], P = 4 float32 or 8 bfloat16.
class DeviceWeight final : public PackedWeight {
 public:
  /// Consecutive weights in one buffer.
  struct Group {
    Buffer storage;
    std::int64_t rows = 0;  ///< Of all weights.
    std::int64_t filled = 0;
  };

  DeviceWeight(std::int64_t rows, std::int64_t columns, DType dtype, bool by_library,
               MemoryAccount& account)
      : PackedWeight(rows, columns, dtype), by_library_(by_library) {
    make_group(padded_rows(), account);
    group_->filled = group_->rows;
  }
  /// Makes a library weight, the first of a group or the one after `after`, which must leave room.
  DeviceWeight(std::int64_t rows, std::int64_t columns, std::int64_t group_rows,
               const DeviceWeight* after, MemoryAccount& account)
      : PackedWeight(rows, columns, DType::bfloat16), by_library_(true) {
    if (after == nullptr) {
      make_group(group_rows, account);
    } else {
      group_ = after->group_;
    }
    first_row_ = group_->filled;
    group_->filled += rows;
  }
  /// Whether tensor cores multiply; the input is rounded too.
  [[nodiscard]] bool by_library() const noexcept { return by_library_; }
  /// K with padding.
  [[nodiscard]] std::int64_t padded_columns() const noexcept {
    const std::int64_t each = dtype() == DType::float32 ? 4 : 8;
    return divide_up(columns(), each) * each;
  }
  /// N with padding.
  [[nodiscard]] std::int64_t padded_rows() const noexcept {
    return by_library_ ? divide_up(rows(), kProductPadding) * kProductPadding : rows();
  }
  [[nodiscard]] std::int64_t elements() const noexcept { return padded_rows() * padded_columns(); }
  template <class T>
  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(group_->storage.data()) + first_row_ * padded_columns();
  }
  [[nodiscard]] const Group& group() const noexcept { return *group_; }
  /// First row in its group.
  [[nodiscard]] std::int64_t first_row() const noexcept { return first_row_; }

 private:
  void make_group(std::int64_t rows, MemoryAccount& account) {
    group_ = std::make_shared<Group>();
    group_->storage = Buffer(storage_bytes(rows * padded_columns(), dtype()), account,
                             DeviceQueue::kDevice, MemoryUse::weights);
    group_->rows = rows;
  }

  bool by_library_;
  std::shared_ptr<Group> group_;
  std::int64_t first_row_ = 0;
};

struct HeadShape {
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t dim = 0;

  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t group() const { return heads / key_heads; }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t query_stride() const { return heads * dim; }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t key_stride() const { return key_heads * dim; }
};

/// Throws InternalError unless `key_heads` divides the heads of q [T, H, D].
[[nodiscard]] HeadShape check_heads(const ConstTensorView& q, std::int64_t key_heads);

/// Throws InternalError unless the data are on the device.
[[nodiscard]] inline const std::int32_t* indices(const ConstTensorView& view) {
  expect(view.device() == DeviceQueue::kDevice, "index data are not on the device");
  return view.data<std::int32_t>();
}

[[nodiscard]] inline std::int32_t* indices(const TensorView& view) {
  expect(view.device() == DeviceQueue::kDevice, "index data are not on the device");
  return view.data<std::int32_t>();
}

[[nodiscard]] inline double* sums_of(const TensorView& view) {
  expect(view.device() == DeviceQueue::kDevice, "sums are not on the device");
  return view.data<double>();
}

/// Throws InternalError for another type or device.
[[nodiscard]] inline const float* floats(const ConstTensorView& view) {
  expect(view.empty() || view.device() == DeviceQueue::kDevice, "tensor is not on the device");
  expect_float32(view, "a tensor of the CUDA kernels");
  return view.data<float>();
}
[[nodiscard]] inline float* floats(const TensorView& view) {
  expect(view.empty() || view.device() == DeviceQueue::kDevice, "tensor is not on the device");
  expect_float32(view, "a tensor of the CUDA kernels");
  return view.data<float>();
}

/// Null if empty. Throws as floats() does.
[[nodiscard]] inline BFloat16* bfloat16s(const TensorView& view) {
  if (view.empty()) {
    return nullptr;
  }
  expect(view.device() == DeviceQueue::kDevice, "tensor is not on the device");
  return view.data<BFloat16>();
}

/// Throws InternalError for another type or device.
[[nodiscard]] inline FloatSource floating(const ConstTensorView& view) {
  expect(view.empty() || view.device() == DeviceQueue::kDevice, "tensor is not on the device");
  expect_floating(view, "a tensor of the CUDA kernels");
  return {view.raw(), view.dtype() == DType::bfloat16};
}
[[nodiscard]] inline FloatTarget floating(const TensorView& view) {
  expect(view.empty() || view.device() == DeviceQueue::kDevice, "tensor is not on the device");
  expect_floating(view, "a tensor of the CUDA kernels");
  return {view.raw(), view.dtype() == DType::bfloat16};
}

class CudaKernelSet final : public KernelSet {
 public:
  [[nodiscard]] Device device() const noexcept override { return DeviceQueue::kDevice; }
  [[nodiscard]] KernelSet& host() override { return *host_; }
  [[nodiscard]] Queue& queue() noexcept override { return queue_; }
  void release_work_space() override {
    for (DeviceScratch* scratch :
         {&partials_, &rounded_input_, &best_columns_, &padded_results_, &candidates_,
          &loss_hidden_, &loss_logits_, &loss_rounded_, &loss_gradient_, &bias_}) {
      scratch->release();
    }
    host_->release_work_space();
  }

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
  void content_hash_of_parts(ConstTensorView x, std::uint64_t seed, TensorView sums) override;
  void adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
             const AdamWState& state, const AdamWHashes& hashes) override;

  using KernelSet::pack_weight;
  std::unique_ptr<PackedWeight> pack_weight(ConstTensorView weight, WeightStorage storage,
                                            MemoryAccount& account, ProductUse use) override;
  void invariant_linears(ConstTensorView x, std::span<const Projection> projections) override;
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
  struct DeviceRotary {
    RotaryTable table;
    Buffer cosines;
    Buffer sines;
  };
  struct HashedTensor {
    ConstTensorView x;
    TensorView sum;
  };
  struct LossCall;
  template <class Finish>
  struct ProductOutput;

  const DeviceRotary& rotary_table(const RotarySettings& settings, std::int64_t half,
                                   std::int64_t positions);
  void rotate_rows(const TensorView& q, const TensorView& k, const PlannedRows& rows,
                   const RotarySettings& settings, bool backward);
  template <class Finish>
  void lane_products(const ConstTensorView& x, std::span<const ProductOutput<Finish>> outputs,
                     const char* what);
  /// Makes the product recordable (CudaProducts::prepare_rows()).
  void prepare_product(const MatrixProduct& product);
  [[nodiscard]] const void* library_rows(const ConstTensorView& x, const DeviceWeight& weight);
  [[nodiscard]] const void* library_bias(const ConstTensorView& bias, const DeviceWeight& weight);
  /// y is [M, padded N].
  void multiply_by_library(const ConstTensorView& x, const DeviceWeight& weight,
                           const ConstTensorView& bias, DType result, void* y);
  void multiply_by_group(const ConstTensorView& x, std::span<const Projection> projections);
  [[nodiscard]] bool all_bfloat16(const ConstTensorView& weight);
  /// Handles empty dimensions too.
  void product(const MatrixProduct& product);
  /// Attention without tensor cores: packed (`pages` null) or decoding (`log_sum_exp` null).
  void lane_attention(const HeadShape& shape, const CudaPackedPlan::Queries& queries,
                      const std::int32_t* pages, const FloatSource& q, const FloatSource& k,
                      const FloatSource& v, const FloatTarget& output, float* log_sum_exp);
  /// Requires checked arguments.
  void lane_attention_backward(const PackedPlan& plan, const ConstTensorView& output_gradient,
                               const ConstTensorView& q, const ConstTensorView& k,
                               const ConstTensorView& v, const ConstTensorView& output,
                               const ConstTensorView& log_sum_exp, const TensorView& q_gradient,
                               const TensorView& k_gradient, const TensorView& v_gradient);
  /// Takes up to sixteen tensors, some may be empty, in one launch.
  void content_hash(std::span<const HashedTensor> tensors, std::uint64_t seed);
  void loss_chunk(const LossCall& call, const CudaPackedPlan::LossChunk& chunk);
  void warn_of_lanes(std::int64_t head_size);

  // Account names match the memory plan's rows.
  MemoryAccount account_{"CUDA kernels"};
  MemoryAccount products_account_{"products"};
  MemoryAccount loss_account_{"vocabulary loss"};
  std::unique_ptr<KernelSet> host_ = make_cpu_kernel_set();
  DeviceQueue queue_{products_account_};
  bool warned_of_lanes_ = false;
  std::vector<DeviceRotary> rotary_tables_;
  Buffer hash_table_;
  DeviceScratch partials_{account_};
  DeviceScratch rounded_input_{account_};  ///< A decoding product's input.
  DeviceScratch best_columns_{account_};
  DeviceScratch padded_results_{account_};  ///< Logits of invariant_argmax(), or results of odd N.
  std::set<std::array<std::int64_t, 4>> prepared_products_;  ///< N, K, result type, has bias.
  DeviceScratch candidates_{account_};  ///< This and the next three: of sample_tokens().
  StagedArray sampled_rows_{queue_, account_};
  std::vector<std::int32_t> sampled_block_;
  DistinctTokens distinct_tokens_;
  DeviceScratch loss_hidden_{loss_account_};
  DeviceScratch loss_logits_{loss_account_};
  DeviceScratch loss_rounded_{loss_account_};
  DeviceScratch loss_gradient_{loss_account_};
  DeviceScratch bias_{account_};
};

}  // namespace jforge
