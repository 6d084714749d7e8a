/// Packed attention backward on tensor cores (Dao 2023, algorithm 2). One kernel over query tiles
/// and one, with transposed scores, over key tiles: all weights stay in registers, and every sum
/// has one owner and a fixed order without atomics, at seven products instead of five.

#include "model/kernels/cuda/tensor_core_attention.cuh"
#include "model/kernels/cuda/tensor_core_tiles.cuh"

namespace jforge {

namespace {

constexpr int kLanes = kTileStrips * kWarpLanes;
constexpr int kTileRows = kQueryTileRows;
constexpr int kStrip = kStripRows;
constexpr int kKeys = kKeyTileRows;
constexpr int kVisit = kVisitKeys;
constexpr float kLog2E = 1.44269504F;

/// log-sum-exp / log 2, and Σ_d output · output gradient.
struct alignas(8) QueryTerms {
  float log_sum_exp;
  float delta;
};

struct Arguments {
  TensorCoreInputs in;
  TensorCoreGradients out;
  QueryTerms* terms;  ///< [H][padded rows]
  float* parts;       ///< [parts][Hkv][2: keys, values][kKeys][D]
  float scale;
  float log2_scale;  ///< For exponents to base 2.
  unsigned padded_rows;
};

/// One warp per query. Padding rows get weights exp(s − ∞) = 0.
template <int kDim>
__global__ void __launch_bounds__(kLanes) attention_terms(const Arguments arguments) {
  const auto heads = static_cast<unsigned>(arguments.in.shape.heads);
  const unsigned query = blockIdx.x * (kLanes / kWarpLanes) + threadIdx.x / kWarpLanes;
  const unsigned lane = threadIdx.x % kWarpLanes;
  const unsigned row = query / heads;
  const unsigned head = query % heads;
  if (row >= arguments.padded_rows) {
    return;
  }
  QueryTerms terms{INFINITY, 0.0F};
  if (row < static_cast<unsigned>(arguments.in.num_rows)) {
    constexpr unsigned kWords = kDim / 2 / kWarpLanes;
    const auto* const output =
        reinterpret_cast<const std::uint32_t*>(arguments.out.output + std::uint64_t{query} * kDim);
    const auto* const gradient = reinterpret_cast<const std::uint32_t*>(
        arguments.out.output_gradient + std::uint64_t{query} * kDim);
#pragma unroll
    for (unsigned i = 0; i < kWords; ++i) {
      const std::uint32_t a = output[i * kWarpLanes + lane];
      const std::uint32_t b = gradient[i * kWarpLanes + lane];
      terms.delta = fmaf(low_bfloat16(a), low_bfloat16(b), terms.delta);
      terms.delta = fmaf(high_bfloat16(a), high_bfloat16(b), terms.delta);
    }
#pragma unroll
    for (int apart = 1; apart < static_cast<int>(kWarpLanes); apart *= 2) {
      terms.delta += __shfl_xor_sync(kEveryLane, terms.delta, apart);
    }
    terms.log_sum_exp = arguments.out.log_sum_exp[query] * kLog2E;
  }
  if (lane == 0) {
    arguments.terms[std::uint64_t{head} * arguments.padded_rows + row] = terms;
  }
}

template <int kDim>
struct QueryShared {
  unsigned char queries[SharedTile<kTileRows, kDim>::kBytes];
  unsigned char output_gradients[SharedTile<kTileRows, kDim>::kBytes];
  struct Stage {
    unsigned char keys[SharedTile<kVisit, kDim>::kBytes];
    unsigned char values[SharedTile<kVisit, kDim>::kBytes];
  } stages[2];
  RowKeys rows[kTileRows];
  float marks[2][kVisit];  ///< clean_row() of keys and values.
  int votes[kTileStrips];
};

/// Gradients of 128 rows of one query head.
template <int kDim>
__global__ void __launch_bounds__(kLanes, 2) attention_query_gradient(const Arguments arguments) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<QueryShared<kDim>*>(shared_bytes);
  constexpr int kRowBlocks = kStrip / 16;
  const TensorCoreInputs& in = arguments.in;
  const auto heads = static_cast<unsigned>(in.shape.heads);
  const TileWork work = in.visits.query_tiles[blockIdx.x / heads];
  const unsigned head = blockIdx.x % heads;
  const unsigned key_head = head / static_cast<unsigned>(in.shape.group());
  const int num_rows = static_cast<int>(in.num_rows);
  const int first_row = work.tile * kTileRows;
  const unsigned warp = threadIdx.x / kWarpLanes;
  const int strip_first = first_row + static_cast<int>(warp) * kStrip;
  const auto query_stride = static_cast<unsigned>(in.shape.query_stride());
  const auto key_stride = static_cast<unsigned>(in.shape.key_stride());

  const auto copy_visit = [&](int i) {
    typename QueryShared<kDim>::Stage& stage = shared.stages[i % 2];
    const int first_key = in.visits.key_visits[i].place * kVisit;
    copy_rows<kVisit, kDim, kLanes>(shared_address(stage.keys), in.k + key_head * kDim, key_stride,
                                    first_key, num_rows);
    copy_rows<kVisit, kDim, kLanes>(shared_address(stage.values), in.v + key_head * kDim,
                                    key_stride, first_key, num_rows);
    commit_copies();
  };
  copy_rows<kTileRows, kDim, kLanes>(shared_address(shared.queries), in.q + head * kDim,
                                     query_stride, first_row, num_rows);
  copy_rows<kTileRows, kDim, kLanes>(shared_address(shared.output_gradients),
                                     arguments.out.output_gradient + head * kDim, query_stride,
                                     first_row, num_rows);
  copy_async(shared_address(&shared.rows[threadIdx.x]), in.visits.rows + first_row + threadIdx.x,
             true);

  using Reader = BlockReader<kDim>;
  const Reader queries(shared_address(shared.queries), Reader::Order::down_first);
  const Reader output_gradients(shared_address(shared.output_gradients), Reader::Order::down_first);
  const int strip_block = static_cast<int>(warp) * kRowBlocks;
  QueryTerms terms[2 * kRowBlocks];
#pragma unroll
  for (int row = 0; row < 2 * kRowBlocks; ++row) {
    terms[row] = arguments.terms[std::uint64_t{head} * arguments.padded_rows +
                                 static_cast<unsigned>(strip_first + 8 * row + warp_lane() / 4)];
  }
  Accumulator sums[kRowBlocks][kDim / 8];
  for (bool careful = false;; careful = true) {
    clear(sums);
    copy_visit(work.begin);
    for (int i = work.begin; i < work.end; ++i) {
      wait_copies<0>();
      __syncthreads();  // This visit's tiles have arrived; the last visit's have been read.
      if (i + 1 < work.end) {
        copy_visit(i + 1);
      }
      typename QueryShared<kDim>::Stage& stage = shared.stages[i % 2];
      if (careful) {
        // Warp 0 cleans keys, warp 1 values.
        if (warp < 2) {
          shared.marks[warp][warp_lane()] =
              clean_row<kDim>(warp == 0 ? stage.keys : stage.values, warp_lane());
        }
        __syncthreads();
      }
      const KeyVisit visit = in.visits.key_visits[i];
      if (!visit.seen_by(warp)) {
        continue;
      }
      Accumulator weights[kRowBlocks][kVisit / 8];
      Accumulator gradients[kRowBlocks][kVisit / 8];
      clear(weights);
      multiply_rows(weights, queries, strip_block,
                    Reader(shared_address(stage.keys), Reader::Order::across_first));
      clear(gradients);
      multiply_rows(gradients, output_gradients, strip_block,
                    Reader(shared_address(stage.values), Reader::Order::across_first));
#pragma unroll
      for (int row = 0; row < 2 * kRowBlocks; ++row) {
#pragma unroll
        for (int n = 0; n < kVisit / 8; ++n) {
#pragma unroll
          for (int one = 0; one < 2; ++one) {
            const int at = row % 2 * 2 + one;
            float& gradient = gradients[row / 2][n].values[at];
            const float weight = exp2_fast(fmaf(weights[row / 2][n].values[at],
                                                arguments.log2_scale, -terms[row].log_sum_exp));
            gradient = weight * (gradient - terms[row].delta);
          }
        }
      }
      if (careful) {
        add_marks(gradients, shared.marks[0]);
        add_marks(gradients, shared.marks[1]);
      }
      if (!visit.complete_for(warp)) {
        const int lane = warp_lane();
        const int first_key = visit.place * kVisit + lane % 4 * 2;
#pragma unroll
        for (int row = 0; row < 2 * kRowBlocks; ++row) {
          const RowKeys seen = shared.rows[strip_block * 16 + 8 * row + lane / 4];
#pragma unroll
          for (int n = 0; n < kVisit / 8; ++n) {
#pragma unroll
            for (int one = 0; one < 2; ++one) {
              if (!seen.sees(first_key + 8 * n + one)) {
                gradients[row / 2][n].values[row % 2 * 2 + one] = 0.0F;
              }
            }
          }
        }
      }
      add_weighted_rows<kDim>(sums, rounded(gradients),
                              Reader(shared_address(stage.keys), Reader::Order::down_first));
    }
    if (careful || !any_of_block(!all_finite(sums), shared.votes)) {
      break;
    }
  }
  store_rows<kDim>(
      sums, shared.queries, strip_block, arguments.out.q_gradient + head * kDim, query_stride,
      strip_first, [&](int row) { return strip_first + row < num_rows; },
      [&](int /*m*/, int /*half*/) { return arguments.scale; });
}

template <int kDim>
struct KeyShared {
  unsigned char keys[SharedTile<kKeys, kDim>::kBytes];
  unsigned char values[SharedTile<kKeys, kDim>::kBytes];
  struct Stage {
    unsigned char queries[SharedTile<kStrip, kDim>::kBytes];
    unsigned char output_gradients[SharedTile<kStrip, kDim>::kBytes];
    RowKeys rows[kStrip];
    alignas(16) QueryTerms terms[kStrip];
  } stages[2];
  float marks[2][kStrip];  ///< clean_row() of queries and output gradients.
  int votes[kTileStrips];
};

/// Sums of keys, then of values.
template <int kDim>
[[nodiscard]] __device__ __forceinline__ float* part_of(const Arguments& arguments, int part,
                                                        unsigned key_head) {
  const auto index =
      static_cast<unsigned>(part) * static_cast<unsigned>(arguments.in.shape.key_heads) + key_head;
  return arguments.parts + std::uint64_t{index} * (2 * kKeys * kDim);
}

template <int kDim>
__device__ __forceinline__ void store_sums(const Accumulator (&sums)[kDim / 8], float* rows) {
  const int lane = warp_lane();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<float2*>(rows + (lane / 4 + 8 * half) * kDim + 8 * n + lane % 4 * 2) = {
          sums[n].values[2 * half], sums[n].values[2 * half + 1]};
    }
  }
}

/// Gradients of 64 keys and values of one key head over all its query heads, or a part of that; a
/// warp owns 16 keys. Scores are transposed: rows are keys, columns a strip's queries.
template <int kDim>
__global__ void __launch_bounds__(kLanes, kDim == 64 ? 3 : 2)
    attention_key_gradient(const Arguments arguments) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<KeyShared<kDim>*>(shared_bytes);
  const TensorCoreInputs& in = arguments.in;
  const auto key_heads = static_cast<unsigned>(in.shape.key_heads);
  const KeyWork work = in.visits.key_work[blockIdx.x / key_heads];
  const unsigned key_head = blockIdx.x % key_heads;
  const auto group = static_cast<int>(in.shape.group());
  const int num_rows = static_cast<int>(in.num_rows);
  const int first_key = work.tile * kKeys;
  const int warp = static_cast<int>(threadIdx.x / kWarpLanes);
  const auto query_stride = static_cast<unsigned>(in.shape.query_stride());
  const auto key_stride = static_cast<unsigned>(in.shape.key_stride());

  const auto copy_step = [&](int stage_index, int member, int visit) {
    typename KeyShared<kDim>::Stage& stage = shared.stages[stage_index];
    const unsigned head = key_head * static_cast<unsigned>(group) + static_cast<unsigned>(member);
    const int first = in.visits.strip_visits[visit].strip * kStrip;
    copy_rows<kStrip, kDim, kLanes>(shared_address(stage.queries), in.q + head * kDim, query_stride,
                                    first, num_rows);
    copy_rows<kStrip, kDim, kLanes>(shared_address(stage.output_gradients),
                                    arguments.out.output_gradient + head * kDim, query_stride,
                                    first, num_rows);
    const int lane = block_lane();
    constexpr int kTermsAtOnce = 16 / sizeof(QueryTerms);
    if (lane < kStrip) {
      copy_async(shared_address(stage.rows + lane), in.visits.rows + first + lane, true);
    } else if (const int at = (lane - kStrip) * kTermsAtOnce; at < kStrip) {
      copy_async(shared_address(stage.terms + at),
                 arguments.terms + std::uint64_t{head} * arguments.padded_rows + first + at, true);
    }
    commit_copies();
  };
  copy_rows<kKeys, kDim, kLanes>(shared_address(shared.keys), in.k + key_head * kDim, key_stride,
                                 first_key, num_rows);
  copy_rows<kKeys, kDim, kLanes>(shared_address(shared.values), in.v + key_head * kDim, key_stride,
                                 first_key, num_rows);

  using Reader = BlockReader<kDim>;
  const Reader keys(shared_address(shared.keys), Reader::Order::down_first);
  const Reader values(shared_address(shared.values), Reader::Order::down_first);
  Accumulator key_sums[1][kDim / 8];
  Accumulator value_sums[1][kDim / 8];
  for (bool careful = false;; careful = true) {
    clear(key_sums);
    clear(value_sums);
    int member = work.first_step / (work.end - work.begin);
    int visit = work.begin + work.first_step % (work.end - work.begin);
    copy_step(work.first_step % 2, member, visit);
    for (int step = work.first_step; step < work.last_step; ++step) {
      const StripVisit strip = in.visits.strip_visits[visit];
      wait_copies<0>();
      __syncthreads();  // This step's queries have arrived; the last step's have been read.
      if (++visit == work.end) {
        visit = work.begin;
        ++member;
      }
      if (step + 1 < work.last_step) {
        copy_step((step + 1) % 2, member, visit);
      }
      typename KeyShared<kDim>::Stage& stage = shared.stages[step % 2];
      if (careful) {
        // Warp 0 cleans queries, warp 1 output gradients.
        if (warp < 2) {
          shared.marks[warp][warp_lane()] =
              clean_row<kDim>(warp == 0 ? stage.queries : stage.output_gradients, warp_lane());
        }
        __syncthreads();
      }
      Accumulator weights[1][kStrip / 8];
      Accumulator gradients[1][kStrip / 8];
      clear(weights);
      multiply_rows(weights, keys, warp,
                    Reader(shared_address(stage.queries), Reader::Order::across_first));
      clear(gradients);
      multiply_rows(gradients, values, warp,
                    Reader(shared_address(stage.output_gradients), Reader::Order::across_first));
      const int lane = warp_lane();
#pragma unroll
      for (int n = 0; n < kStrip / 8; ++n) {
#pragma unroll
        for (int one = 0; one < 2; ++one) {
          const int query = 8 * n + lane % 4 * 2 + one;
          const QueryTerms terms = stage.terms[query];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& weight = weights[0][n].values[2 * half + one];
            float& gradient = gradients[0][n].values[2 * half + one];
            weight = exp2_fast(fmaf(weight, arguments.log2_scale, -terms.log_sum_exp));
            gradient = weight * (gradient - terms.delta);
          }
          if (careful) {
            const float mark = shared.marks[0][query] + shared.marks[1][query];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              weights[0][n].values[2 * half + one] += mark;
              gradients[0][n].values[2 * half + one] += mark;
            }
          }
          if (strip.complete == 0) {
            const RowKeys seen = stage.rows[query];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              if (!seen.sees(first_key + 16 * warp + lane / 4 + 8 * half)) {
                weights[0][n].values[2 * half + one] = 0.0F;
                gradients[0][n].values[2 * half + one] = 0.0F;
              }
            }
          }
        }
      }
      add_weighted_rows<kDim>(
          value_sums, rounded(weights),
          Reader(shared_address(stage.output_gradients), Reader::Order::down_first));
      add_weighted_rows<kDim>(key_sums, rounded(gradients),
                              Reader(shared_address(stage.queries), Reader::Order::down_first));
    }
    const bool finite = all_finite(key_sums) && all_finite(value_sums);
    if (careful || !any_of_block(!finite, shared.votes)) {
      break;
    }
  }
  if (work.part >= 0) {
    float* const part = part_of<kDim>(arguments, work.part, key_head) + 16 * warp * kDim;
    store_sums<kDim>(key_sums[0], part);
    store_sums<kDim>(value_sums[0], part + kKeys * kDim);
    return;
  }
  const int own_first = first_key + 16 * warp;
  const auto is_there = [&](int row) { return own_first + row < num_rows; };
  store_rows<kDim>(key_sums, shared.keys, warp, arguments.out.k_gradient + key_head * kDim,
                   key_stride, own_first, is_there,
                   [&](int /*m*/, int /*half*/) { return arguments.scale; });
  store_rows<kDim>(value_sums, shared.values, warp, arguments.out.v_gradient + key_head * kDim,
                   key_stride, own_first, is_there, [](int /*m*/, int /*half*/) { return 1.0F; });
}

/// In the order of the parts.
template <int kDim>
__global__ void __launch_bounds__(kLanes) attention_add_parts(const Arguments arguments) {
  const TensorCoreInputs& in = arguments.in;
  const auto key_heads = static_cast<unsigned>(in.shape.key_heads);
  const SplitTile split = in.visits.split_tiles[blockIdx.x / (2 * key_heads)];
  const unsigned key_head = blockIdx.x / 2 % key_heads;
  const bool values = blockIdx.x % 2 != 0;
  BFloat16* const gradient = values ? arguments.out.v_gradient : arguments.out.k_gradient;
  const float factor = values ? 1.0F : arguments.scale;
  for (int at = 2 * block_lane(); at < kKeys * kDim; at += 2 * kLanes) {
    float2 sum{0.0F, 0.0F};
    for (int part = split.first_part; part < split.last_part; ++part) {
      const float2 two = *reinterpret_cast<const float2*>(part_of<kDim>(arguments, part, key_head) +
                                                          (values ? kKeys * kDim : 0) + at);
      sum.x += two.x;
      sum.y += two.y;
    }
    const int row = split.tile * kKeys + at / kDim;
    if (row < in.num_rows) {
      *reinterpret_cast<std::uint32_t*>(gradient + row * in.shape.key_stride() + key_head * kDim +
                                        at % kDim) = pack_bfloat16(factor * sum.x, factor * sum.y);
    }
  }
}

/// Rows of full query tiles × heads.
std::int64_t num_terms(const TensorCoreInputs& inputs) {
  return divide_up(inputs.num_rows, kQueryTileRows) * kQueryTileRows * inputs.shape.heads;
}

template <class Kernel>
void launch(const DeviceQueue& queue, Kernel* kernel, std::int64_t blocks, int shared_bytes,
            const Arguments& arguments, const char* what) {
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      what);
  kernel<<<static_cast<unsigned>(blocks), kLanes, static_cast<std::size_t>(shared_bytes),
           queue.stream().get()>>>(arguments);
  cuda_check(cudaGetLastError(), what);
}

template <int kDim>
void launch_all(const DeviceQueue& queue, const Arguments& arguments) {
  const CudaPackedPlan::Visits& visits = arguments.in.visits;
  const HeadShape& shape = arguments.in.shape;
  static_assert(blocks_fit(2, sizeof(QueryShared<kDim>), kDim == 64 ? 164 : 228));
  static_assert(blocks_fit(kDim == 64 ? 3 : 2, sizeof(KeyShared<kDim>), 164));
  launch(queue, attention_terms<kDim>, divide_up(num_terms(arguments.in), kLanes / kWarpLanes), 0,
         arguments, "attention_backward terms");
  launch(queue, attention_query_gradient<kDim>, visits.num_query_tiles * shape.heads,
         sizeof(QueryShared<kDim>), arguments, "attention_backward queries");
  launch(queue, attention_key_gradient<kDim>, visits.num_key_work * shape.key_heads,
         sizeof(KeyShared<kDim>), arguments, "attention_backward keys");
  if (visits.num_split_tiles > 0) {
    launch(queue, attention_add_parts<kDim>, visits.num_split_tiles * shape.key_heads * 2, 0,
           arguments, "attention_backward parts");
  }
}

}  // namespace

std::int64_t tensor_core_scratch(const TensorCoreInputs& inputs) {
  return shared_size<QueryTerms>(num_terms(inputs)) +
         shared_size<float>(inputs.visits.num_parts * inputs.shape.key_heads * 2 * kKeys *
                            inputs.shape.dim);
}

void tensor_core_attention_backward(const DeviceQueue& queue, const TensorCoreInputs& inputs,
                                    const TensorCoreGradients& gradients) {
  if (inputs.num_rows == 0) {
    return;
  }
  auto* const scratch = static_cast<std::byte*>(gradients.scratch);
  const Arguments arguments{
      inputs,
      gradients,
      reinterpret_cast<QueryTerms*>(scratch),
      reinterpret_cast<float*>(scratch + shared_size<QueryTerms>(num_terms(inputs))),
      inputs.scale(),
      inputs.scale() * kLog2E,
      static_cast<unsigned>(divide_up(inputs.num_rows, kQueryTileRows) * kQueryTileRows)};
  inputs.shape.dim == 64 ? launch_all<64>(queue, arguments) : launch_all<128>(queue, arguments);
}

}  // namespace jforge
