/// Attention over a paged bfloat16 cache on tensor cores. A warp takes 16 queries (a group's heads,
/// row by row) of one key head through its keys, copying the next 32 meanwhile; up to four warps of
/// a block share the keys. As in decode_attention.cu, the slow reference, neither tiles nor the
/// block that takes a split change a bit; nor does a query's place among the 16, since each result
/// of mma.sync is a separate sum. In a split keys add up in products of 32 in logical order.

#include "model/kernels/cuda/attention_tiles.h"
#include "model/kernels/cuda/cached_attention_parts.h"
#include "model/kernels/cuda/tensor_core_softmax.cuh"

namespace jforge {

namespace {

constexpr int kWarpQueries = 16;
constexpr int kMostLanes =
    static_cast<int>(kMostTensorCoreQueries) / kWarpQueries * static_cast<int>(kWarpLanes);
constexpr int kKeys = 32;
constexpr int kSplit = static_cast<int>(kSplitKeys);
static_assert(kKeys == kWarpLanes, "a lane finds the place of one key");
static_assert(kSplit % kKeys == 0);

struct Arguments {
  CachedAttentionInputs<const BFloat16*> in;
  float log2_scale;  ///< For exponents to base 2.
  float slack;       ///< kSoftmaxSlack in units of scores.
};

template <int kDim>
struct Shared {
  struct Stage {
    unsigned char keys[SharedTile<kKeys, kDim>::kBytes];
    unsigned char values[SharedTile<kKeys, kDim>::kBytes];
  } stages[2];
  float marks[kKeys];  ///< clean_row() of the values.
};

using Softmax = RunningSoftmax<1>;
/// Rows lane / 4 and lane / 4 + 8 of 16.
constexpr int kHalves = Softmax::kRows;

struct Query {
  int row;      ///< Of the batch.
  int head;     ///< Of all query heads.
  int visible;  ///< Keys that it sees; 0: no query.
};

[[nodiscard]] __device__ __forceinline__ int warp_least(int value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = min(value, __shfl_xor_sync(kEveryLane, value, step));
  }
  return value;
}

/// Starts copies of 32 keys and values, zeros from key_end on; the warps take turns.
template <int kDim>
__device__ __forceinline__ void copy_stage(const CachedAttentionInputs<const BFloat16*>& in,
                                           const DecodeTile& tile, unsigned key_head, int first,
                                           typename Shared<kDim>::Stage& stage) {
  using Tile = SharedTile<kKeys, kDim>;
  constexpr int kRowsAtOnce = static_cast<int>(kWarpLanes) / Tile::kChunks;
  const int lane = warp_lane();
  const int key = first + lane;
  int own = -1;
  if (key < tile.key_end) {
    constexpr int kPage = static_cast<int>(kCachePageRows);
    const int row = key < tile.fork ? key : tile.fork_row + key - tile.fork;
    own = in.pages[tile.first_page + row / kPage] * kPage + row % kPage;
  }
  const std::uint32_t keys = shared_address(stage.keys);
  const std::uint32_t values = shared_address(stage.values);
  const auto key_stride = static_cast<unsigned>(in.shape.key_stride());
  const int warps = static_cast<int>(blockDim.x / kWarpLanes);
  for (int rows = block_lane() / static_cast<int>(kWarpLanes) * kRowsAtOnce; rows < kKeys;
       rows += warps * kRowsAtOnce) {
    const int row = rows + lane / Tile::kChunks;
    const int chunk = lane % Tile::kChunks;
    const int place = __shfl_sync(kEveryLane, own, row);
    const bool valid = place >= 0;
    const std::uint64_t from =
        std::uint64_t{static_cast<unsigned>(valid ? place : 0)} * key_stride + key_head * kDim +
        static_cast<unsigned>(chunk * 8);
    copy_async(keys + Tile::offset(row, chunk), in.k + from, valid);
    copy_async(values + Tile::offset(row, chunk), in.v + from, valid);
  }
  commit_copies();
}

template <int kDim>
[[nodiscard]] __device__ __forceinline__ LeftFragments<1, kDim / 16> load_queries(
    const CachedAttentionInputs<const BFloat16*>& in, const Query (&queries)[kHalves]) {
  LeftFragments<1, kDim / 16> result;
  const int column = warp_lane() % 4 * 2;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const Query query = queries[half];
    const float* const from =
        in.q + (std::int64_t{query.row} * in.shape.heads + query.head) * kDim + column;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        float2 two = {0.0F, 0.0F};
        if (query.visible > 0) {
          two = *reinterpret_cast<const float2*>(from + 16 * step + 8 * side);
        }
        result.blocks[0][step].words[2 * side + half] = pack_bfloat16(two.x, two.y);
      }
    }
  }
  return result;
}

/// Writes a lane's columns, two adjacent elements each.
template <int kDim, class NumberOf>
__device__ __forceinline__ void store_row(const FloatTarget& to, std::int64_t row,
                                          NumberOf number_of) {
  row += warp_lane() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    const float2 pair{number_of(n, 0), number_of(n, 1)};
    if (to.narrow) {
      *reinterpret_cast<std::uint32_t*>(static_cast<BFloat16*>(to.data) + row + 8 * n) =
          pack_bfloat16(pair.x, pair.y);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(to.data) + row + 8 * n) = pair;
    }
  }
}

/// kWhole: a block merges all splits of its tile; otherwise it takes one split.
template <int kDim, bool kWhole>
__global__ void __launch_bounds__(kMostLanes, 2) cached_attention(const Arguments arguments) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(shared_bytes);
  const CachedAttentionInputs<const BFloat16*>& in = arguments.in;
  const auto key_heads = static_cast<unsigned>(in.shape.key_heads);
  const DecodeTile tile = in.tiles[blockIdx.x / key_heads];
  if (tile.rows == 0) {
    return;
  }
  const unsigned key_head = blockIdx.x % key_heads;
  const int group = static_cast<int>(in.shape.group());
  const int lane = warp_lane();
  copy_stage<kDim>(in, tile, key_head, tile.key_begin, shared.stages[0]);

  Query queries[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int i = block_lane() / static_cast<int>(kWarpLanes) * kWarpQueries + lane / 4 + 8 * half;
    const bool exists = i < tile.rows * group;
    const int row = tile.row_begin + (exists ? i / group : 0);
    queries[half] = {row, static_cast<int>(key_head) * group + i % group,
                     exists ? in.visible[row] : 0};
  }
  const LeftFragments<1, kDim / 16> left = load_queries<kDim>(in, queries);
  // Keys that every row of the tile, every query of the warp, or any query of the warp sees.
  int seen_by_all = tile.key_end;
  for (int row = lane; row < tile.rows; row += static_cast<int>(kWarpLanes)) {
    seen_by_all = min(seen_by_all, in.visible[tile.row_begin + row]);
  }
  seen_by_all = warp_least(seen_by_all);
  const int seen_by_warp = warp_least(min(queries[0].visible, queries[1].visible));
  const int seen_by_any = -warp_least(-max(queries[0].visible, queries[1].visible));

  Accumulator sums[1][kDim / 8];
  // Earlier splits; their sums do not fit the registers.
  [[maybe_unused]] SoftmaxPart total[kHalves];
  [[maybe_unused]] Accumulator* const totals =
      reinterpret_cast<Accumulator*>(shared_bytes + sizeof(Shared<kDim>)) +
      block_lane() / static_cast<int>(kWarpLanes) * (kDim / 8) * static_cast<int>(kWarpLanes) +
      lane;
  Softmax softmax;
  using Reader = BlockReader<kDim>;
  const int stages = (tile.key_end - tile.key_begin + kKeys - 1) / kKeys;
  for (int i = 0; i < stages; ++i) {
    const int first = tile.key_begin + i * kKeys;
    if (first % kSplit == 0) {
      clear(sums);
      softmax.clear();
    }
    wait_copies<0>();
    __syncthreads();  // These keys and values have arrived; the last ones have been read.
    if (i + 1 < stages) {
      copy_stage<kDim>(in, tile, key_head, first + kKeys, shared.stages[(i + 1) % 2]);
    }
    auto& stage = shared.stages[i % 2];
    // A weight of 0 must not meet a non-finite value if a row does not see all keys.
    const bool careful = seen_by_all < min(first + kKeys, tile.key_end);
    if (careful) {
      if (threadIdx.x < kKeys) {
        shared.marks[threadIdx.x] = clean_row<kDim>(stage.values, block_lane());
      }
      __syncthreads();
    }
    if (first < seen_by_any) {
      Accumulator scores[1][kKeys / 8];
      clear(scores);
      multiply_rows(scores, left, Reader(shared_address(stage.keys), Reader::Order::across_first));
      if (careful) {
        add_marks(scores, shared.marks);
      }
      if (seen_by_warp < first + kKeys) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int one = 0; one < 2; ++one) {
              if (first + 8 * n + lane % 4 * 2 + one >= queries[half].visible) {
                scores[0][n].values[2 * half + one] = -INFINITY;
              }
            }
          }
        }
      }
      softmax.soften(scores, sums, arguments.log2_scale, arguments.slack);
      add_weighted_rows<kDim>(sums, rounded(scores),
                              Reader(shared_address(stage.values), Reader::Order::down_first));
    }
    if (i + 1 < stages && (first + kKeys) % kSplit != 0) {
      continue;
    }

    const int begin = first / kSplit * kSplit;
    [[maybe_unused]] Merge merges[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const Query query = queries[half];
      const SoftmaxPart own{softmax.reference[half] * in.scale, row_sum(softmax.sum[half])};
      if constexpr (kWhole) {
        if (begin == 0) {
          total[half] = own;
        } else if (begin < query.visible) {
          merges[half] = Merge::of(total[half], own);
        }
      } else if (begin < query.visible) {
        const int first_part = in.first_part[query.row];
        if (first_part < 0) {
          store_row<kDim>(
              in.output, (std::int64_t{query.row} * in.shape.heads + query.head) * kDim,
              [&](int n, int one) { return sums[0][n].values[2 * half + one] / own.sum; });
        } else {
          const std::int64_t part =
              std::int64_t{first_part + begin / kSplit} * in.shape.heads + query.head;
          store_row<kDim>(FloatTarget{in.parts.sums}, part * kDim,
                          [&](int n, int one) { return sums[0][n].values[2 * half + one]; });
          if (lane % 4 == 0) {
            in.parts.softmax[part] = own;
          }
        }
      }
    }
    if constexpr (kWhole) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        Accumulator sum = begin == 0 ? sums[0][n] : totals[n * kWarpLanes];
#pragma unroll
        for (int one = 0; one < 4; ++one) {
          if (begin != 0 && begin < queries[one / 2].visible) {
            sum.values[one] = merges[one / 2].together(sum.values[one], sums[0][n].values[one]);
          }
        }
        totals[n * kWarpLanes] = sum;
      }
    }
  }
  if constexpr (kWhole) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const Query query = queries[half];
      if (query.visible > 0) {
        store_row<kDim>(in.output, (std::int64_t{query.row} * in.shape.heads + query.head) * kDim,
                        [&](int n, int one) {
                          return totals[n * kWarpLanes].values[2 * half + one] / total[half].sum;
                        });
      }
    }
  }
}

template <int kDim, bool kWhole>
void launch(const DeviceQueue& queue, std::int64_t blocks, const Arguments& arguments) {
  constexpr std::size_t kTotals = kWhole ? sizeof(Accumulator) * kDim / 8 * kWarpLanes : 0;
  constexpr std::size_t kStages = sizeof(Shared<kDim>);
  static_assert(blocks_fit(kDim == 64 ? 8 : 4, kStages, 164));
  static_assert(blocks_fit(2, kStages + kMostLanes / kWarpLanes * kTotals, 164));
  const auto warps = static_cast<unsigned>(divide_up(arguments.in.most_queries, kWarpQueries));
  const std::size_t shared = kStages + warps * kTotals;
  // Recorded launches keep their size.
  constexpr std::size_t kMostShared = kStages + kMostLanes / kWarpLanes * kTotals;
  cuda_check(cudaFuncSetAttribute(cached_attention<kDim, kWhole>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kMostShared)),
             "cached_attention");
  cached_attention<kDim, kWhole>
      <<<static_cast<unsigned>(blocks), warps * kWarpLanes, shared, queue.stream().get()>>>(
          arguments);
  cuda_check(cudaGetLastError(), "cached_attention");
}

}  // namespace

void tensor_core_cached_attention(const DeviceQueue& queue, std::int64_t num_tiles, bool whole,
                                  const CachedAttentionInputs<const BFloat16*>& inputs) {
  const std::int64_t blocks = num_tiles * inputs.shape.key_heads;
  const float log2_scale = inputs.scale * kLog2E;
  const Arguments arguments{inputs, log2_scale, kSoftmaxSlack / log2_scale};
  if (inputs.shape.dim == 64) {
    whole ? launch<64, true>(queue, blocks, arguments)
          : launch<64, false>(queue, blocks, arguments);
  } else {
    whole ? launch<128, true>(queue, blocks, arguments)
          : launch<128, false>(queue, blocks, arguments);
  }
}

}  // namespace jforge
