#pragma once

/// The CUDA KernelSet: one class over several files (row_wise, product, attention,
/// attention_backward, vocabulary_loss, optimizer). Float32 throughout. Tensors lie on the device;
/// tokens, positions, rows and layouts are host values that are copied through StagedArray. One
/// user at a time.

#include <memory>
#include <vector>

#include "model/kernels/cuda/device_queue.h"
#include "model/kernels/kernel_arguments.h"
#include "model/kernels/kernel_set.h"

namespace jforge {

/// A projection's weight as [K][N] float32: adjacent lanes own adjacent outputs and read adjacent
/// floats.
class DeviceWeight final : public PackedWeight {
 public:
  DeviceWeight(std::int64_t rows, std::int64_t columns, MemoryAccount& account)
      : PackedWeight(rows, columns, DType::float32),
        storage_(static_cast<std::size_t>(rows * columns) * sizeof(float), account,
                 DeviceQueue::kDevice) {}
  [[nodiscard]] float* data() const { return reinterpret_cast<float*>(storage_.data()); }

 private:
  Buffer storage_;
};

/// Queries of adjacent rows that share keys: what one block of lanes works on for one key head.
/// Key j of the logical order (ascending position) lies at row first_key + j while j < first_count,
/// then at second_key + j − first_count.
struct QueryTile {
  std::int64_t row_begin = 0;
  std::int64_t rows = 0;
  std::int64_t first_key = 0;
  std::int64_t first_count = 0;
  std::int64_t second_key = 0;
  std::int64_t keys = 0;  ///< What the row that sees most sees.
};

struct HeadShape {
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t dim = 0;

  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t group() const { return heads / key_heads; }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t query_stride() const { return heads * dim; }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t key_stride() const { return key_heads * dim; }
};

/// Checks q [T, H, D] against the number of key heads. Throws InternalError.
[[nodiscard]] HeadShape check_heads(const ConstTensorView& q, std::int64_t key_heads);

/// The packed batch's blocks of at most `most_rows` rows, and how many keys each row sees.
void plan_packed_blocks(const PackedLayout& layout, std::int64_t most_rows,
                        std::vector<QueryTile>& blocks, std::vector<std::int32_t>& visible);

/// Pointer to a dense float32 tensor of the device. Throws InternalError for one elsewhere or of
/// another type.
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

class CudaKernelSet final : public KernelSet {
 public:
  CudaKernelSet() = default;

  [[nodiscard]] Device device() const noexcept override { return DeviceQueue::kDevice; }
  [[nodiscard]] KernelSet& host() override { return *host_; }
  [[nodiscard]] Queue& queue() noexcept override { return queue_; }

  void embedding(std::span<const TokenId> tokens, ConstTensorView table,
                 TensorView output) override;
  void embedding_backward(std::span<const TokenId> tokens, ConstTensorView output_gradient,
                          TensorView table_gradient) override;
  void rms_norm(ConstTensorView x, ConstTensorView weight, float epsilon, TensorView y,
                TensorView inverse_rms) override;
  void rms_norm_backward(ConstTensorView y_gradient, ConstTensorView x, ConstTensorView weight,
                         ConstTensorView inverse_rms, TensorView x_gradient,
                         TensorView weight_gradient) override;
  void rotary(TensorView x, std::span<const std::int32_t> positions, double theta) override;
  void rotary_backward(TensorView x_gradient, std::span<const std::int32_t> positions,
                       double theta) override;
  void swiglu(ConstTensorView gate, ConstTensorView up, TensorView y) override;
  void swiglu_backward(ConstTensorView y_gradient, ConstTensorView gate, ConstTensorView up,
                       TensorView gate_gradient, TensorView up_gradient) override;
  void add(ConstTensorView x, TensorView y) override;
  void convert(ConstTensorView x, TensorView y) override;
  void keep_rows(std::span<const std::int32_t> rows, TensorView x) override;

  void linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
              TensorView y) override;
  void linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                             TensorView x_gradient, bool accumulate) override;
  void linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                              TensorView weight_gradient, TensorView bias_gradient) override;
  void packed_attention(ConstTensorView q, ConstTensorView k, ConstTensorView v,
                        const PackedLayout& layout, TensorView output,
                        TensorView log_sum_exp) override;
  void packed_attention_backward(ConstTensorView output_gradient, ConstTensorView q,
                                 ConstTensorView k, ConstTensorView v, ConstTensorView output,
                                 ConstTensorView log_sum_exp, const PackedLayout& layout,
                                 TensorView q_gradient, TensorView k_gradient,
                                 TensorView v_gradient) override;
  VocabularyLossSums vocabulary_loss(ConstTensorView hidden, ConstTensorView head,
                                     std::span<const LossItem> items, float consistency_scale,
                                     float ar_scale, TensorView hidden_gradient,
                                     TensorView head_gradient, const LossTeacher& teacher) override;
  double sum_of_squares(ConstTensorView x) override;
  std::uint64_t content_hash(ConstTensorView x, std::uint64_t seed) override;
  void adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
             TensorView parameter, TensorView first_moment, TensorView second_moment) override;

  std::unique_ptr<PackedWeight> pack_weight(ConstTensorView weight, WeightStorage storage,
                                            MemoryAccount& account) override;
  void invariant_linear(ConstTensorView x, const PackedWeight& weight, ConstTensorView bias,
                        TensorView y) override;
  void cache_write(std::span<const CacheRow> rows, ConstTensorView k, ConstTensorView v,
                   LayerCache cache) override;
  void cached_attention(std::span<const CacheRow> rows, ConstTensorView q, LayerCache cache,
                        TensorView output) override;
  void invariant_argmax(ConstTensorView hidden, const PackedWeight& head,
                        std::span<TokenId> tokens) override;

 private:
  /// A table of angles and its copies on the device.
  struct DeviceRotary {
    RotaryTable table;
    Buffer cosines;
    Buffer sines;
  };
  struct LossCall;

  const DeviceRotary& rotary_table(double theta, std::int64_t half, std::int64_t positions);
  void rotate_rows(TensorView x, std::span<const std::int32_t> positions, double theta,
                   bool backward);
  void product(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
               const float* a, const float* b, bool accumulate, float* c);
  void attend(const HeadShape& shape, const float* q, const float* k, const float* v, float* output,
              float* log_sum_exp);
  void loss_chunk(LossCall& call, std::span<const LossItem> items);

  MemoryAccount account_{"CUDA kernels"};
  std::unique_ptr<KernelSet> host_ = make_cpu_kernel_set();
  DeviceQueue queue_{account_};
  // A kernel that takes several host arrays needs a place for each.
  StagedArray staged_tokens_{queue_, account_};
  StagedArray staged_positions_{queue_, account_};
  StagedArray staged_rows_{queue_, account_};
  StagedArray staged_blocks_{queue_, account_};
  StagedArray staged_ranges_{queue_, account_};
  std::vector<DeviceRotary> rotary_tables_;
  std::vector<QueryTile> blocks_;
  std::vector<std::int32_t> visible_;
  LossPlacement placement_;
  DeviceScratch partials_{account_};
  DeviceScratch loss_hidden_{account_};
  DeviceScratch loss_logits_{account_};
  DeviceScratch loss_gradient_{account_};
};

}  // namespace jforge
