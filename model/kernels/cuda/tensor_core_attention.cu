/// Packed attention forward on tensor cores (Dao 2023, algorithm 1). A block of four warps takes
/// 128 rows of a query head, a warp one strip, and visits the planned key tiles, copying the next
/// 32 keys meanwhile. Scores in registers become the left side of the second product. Expected
/// speed: results/reference/gpu_plan.md.

#include <cmath>

#include "model/kernels/cuda/tensor_core_attention.cuh"
#include "model/kernels/cuda/tensor_core_softmax.cuh"

namespace jforge {

namespace {

constexpr int kLanes = kTileStrips * kWarpLanes;
constexpr int kTileRows = kQueryTileRows;
constexpr int kKeys = kVisitKeys;
constexpr int kRowBlocks = kStripRows / 16;
using Softmax = RunningSoftmax<kRowBlocks>;

struct Arguments {
  TensorCoreInputs in;
  BFloat16* output;
  float* log_sum_exp;
  float scale;
  float log2_scale;  ///< For exponents to base 2.
  float slack;       ///< kSoftmaxSlack in units of scores.
};

template <int kDim>
struct ForwardShared {
  unsigned char queries[SharedTile<kTileRows, kDim>::kBytes];
  struct Stage {
    unsigned char keys[SharedTile<kKeys, kDim>::kBytes];
    unsigned char values[SharedTile<kKeys, kDim>::kBytes];
  } stages[2];
  RowKeys rows[kTileRows];
  float marks[kKeys];  ///< clean_row() of the values.
  int votes[kTileStrips];
};

template <int kDim>
__global__ void __launch_bounds__(kLanes, kDim == 64 ? 3 : 2)
    attention_forward(const Arguments arguments) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<ForwardShared<kDim>*>(shared_bytes);
  const TensorCoreInputs& in = arguments.in;
  const auto heads = static_cast<unsigned>(in.shape.heads);
  const TileWork work = in.visits.query_tiles[blockIdx.x / heads];
  const unsigned head = blockIdx.x % heads;
  const unsigned key_head = head / static_cast<unsigned>(in.shape.group());
  const int num_rows = static_cast<int>(in.num_rows);
  const int first_row = work.tile * kTileRows;
  const unsigned warp = threadIdx.x / kWarpLanes;

  const auto query_stride = static_cast<unsigned>(in.shape.query_stride());
  const auto key_stride = static_cast<unsigned>(in.shape.key_stride());
  using Stage = typename ForwardShared<kDim>::Stage;

  const auto copy_visit = [&](int i) {
    Stage& stage = shared.stages[i % 2];
    const int first_key = in.visits.key_visits[i].place * kKeys;
    copy_rows<kKeys, kDim, kLanes>(shared_address(stage.keys), in.k + key_head * kDim, key_stride,
                                   first_key, num_rows);
    copy_rows<kKeys, kDim, kLanes>(shared_address(stage.values), in.v + key_head * kDim, key_stride,
                                   first_key, num_rows);
    commit_copies();
  };
  copy_rows<kTileRows, kDim, kLanes>(shared_address(shared.queries), in.q + head * kDim,
                                     query_stride, first_row, num_rows);
  copy_async(shared_address(&shared.rows[threadIdx.x]), in.visits.rows + first_row + threadIdx.x,
             true);

  using Reader = BlockReader<kDim>;
  const Reader queries(shared_address(shared.queries), Reader::Order::down_first);
  const int strip_block = static_cast<int>(warp) * kRowBlocks;
  Accumulator sums[kRowBlocks][kDim / 8];
  Softmax softmax;
  for (bool careful = false;; careful = true) {
    clear(sums);
    softmax.clear();
    copy_visit(work.begin);
    for (int i = work.begin; i < work.end; ++i) {
      wait_copies<0>();
      __syncthreads();  // This visit's tiles have arrived; the last visit's have been read.
      if (i + 1 < work.end) {
        copy_visit(i + 1);
      }
      Stage& stage = shared.stages[i % 2];
      if (careful) {
        if (threadIdx.x < kKeys) {
          shared.marks[threadIdx.x] = clean_row<kDim>(stage.values, block_lane());
        }
        __syncthreads();
      }
      const KeyVisit visit = in.visits.key_visits[i];
      if (!visit.seen_by(warp)) {
        continue;
      }
      Accumulator scores[kRowBlocks][kKeys / 8];
      clear(scores);
      multiply_rows(scores, queries, strip_block,
                    Reader(shared_address(stage.keys), Reader::Order::across_first));
      if (careful) {
        add_marks(scores, shared.marks);
      }
      if (!visit.complete_for(warp)) {
        const int lane = warp_lane();
        const int first_key = visit.place * kKeys + lane % 4 * 2;
#pragma unroll
        for (int row = 0; row < Softmax::kRows; ++row) {
          const RowKeys seen = shared.rows[strip_block * 16 + 8 * row + lane / 4];
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int one = 0; one < 2; ++one) {
              if (!seen.sees(first_key + 8 * n + one)) {
                scores[row / 2][n].values[row % 2 * 2 + one] = -INFINITY;
              }
            }
          }
        }
      }
      softmax.soften(scores, sums, arguments.log2_scale, arguments.slack);
      add_weighted_rows<kDim>(sums, rounded(scores),
                              Reader(shared_address(stage.values), Reader::Order::down_first));
    }
    if (careful || !any_of_block(!all_finite(sums), shared.votes)) {
      break;
    }
  }

  const int lane = warp_lane();
  // Read again to save a register during visits.
  const int strip_first = in.visits.query_tiles[blockIdx.x / heads].tile * kTileRows +
                          static_cast<int>(warp) * static_cast<int>(kStripRows);
  // Padding rows see nothing.
  const auto is_row = [&](int row) { return !shared.rows[strip_block * 16 + row].sees_nothing(); };
#pragma unroll
  for (int row = 0; row < Softmax::kRows; ++row) {
    softmax.sum[row] = row_sum(softmax.sum[row]);
    const int own = 8 * row + lane / 4;
    if (lane % 4 == 0 && is_row(own)) {
      arguments.log_sum_exp[std::int64_t{strip_first + own} * heads + head] =
          softmax.reference[row] * arguments.scale + logf(softmax.sum[row]);
    }
  }
  store_rows<kDim>(sums, shared.queries, strip_block, arguments.output + head * kDim,
                   in.shape.query_stride(), strip_first, is_row,
                   [&](int m, int half) { return 1.0F / softmax.sum[2 * m + half]; });
}

template <int kDim>
void launch(const DeviceQueue& queue, const Arguments& arguments) {
  constexpr int kShared = sizeof(ForwardShared<kDim>);
  static_assert(blocks_fit(kDim == 64 ? 3 : 2, kShared, 164));
  const std::int64_t blocks = arguments.in.visits.num_query_tiles * arguments.in.shape.heads;
  cuda_check(cudaFuncSetAttribute(attention_forward<kDim>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
             "attention");
  attention_forward<kDim>
      <<<static_cast<unsigned>(blocks), kLanes, kShared, queue.stream().get()>>>(arguments);
  cuda_check(cudaGetLastError(), "attention");
}

}  // namespace

bool on_tensor_cores(const ConstTensorView& q) {
  return q.dtype() == DType::bfloat16 && on_tensor_cores(q.dim(2));
}

const BFloat16* tensor_core_rows(const ConstTensorView& view) {
  expect(view.empty() || view.device() == DeviceQueue::kDevice, "tensor is not on the device");
  constexpr std::uintptr_t kAlignment = 16;
  expect(reinterpret_cast<std::uintptr_t>(view.raw()) % kAlignment == 0,
         "attention: a tensor is not aligned to 16 bytes");
  return view.data<BFloat16>();
}
BFloat16* tensor_core_rows(const TensorView& view) {
  static_cast<void>(tensor_core_rows(ConstTensorView(view)));
  return view.data<BFloat16>();
}

TensorCoreInputs tensor_core_inputs(const PackedPlan& plan, const ConstTensorView& q,
                                    const ConstTensorView& k, const ConstTensorView& v) {
  return {check_heads(q, k.dim(1)), plan.num_rows(),     on_device(plan).visits(),
          tensor_core_rows(q),      tensor_core_rows(k), tensor_core_rows(v)};
}

void tensor_core_attention(const DeviceQueue& queue, const TensorCoreInputs& inputs,
                           BFloat16* output, float* log_sum_exp) {
  if (inputs.num_rows == 0) {
    return;
  }
  const float scale = inputs.scale();
  const float log2_scale = scale * kLog2E;
  const Arguments arguments{inputs, output,     log_sum_exp,
                            scale,  log2_scale, kSoftmaxSlack / log2_scale};
  inputs.shape.dim == 64 ? launch<64>(queue, arguments) : launch<128>(queue, arguments);
}

}  // namespace jforge
