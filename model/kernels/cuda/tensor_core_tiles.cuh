#pragma once

/// Tiles of bfloat16 rows in shared memory without bank conflicts. Chunk c (16 bytes) of row r lies
/// at chunk c ^ (r mod 8). Eight chunks use different banks if their places differ modulo 8:
/// ldmatrix reads one chunk c of eight aligned rows, at places c ^ 0 … c ^ 7; copies and stores
/// access eight adjacent chunks of a row, at places 0 ^ x … 7 ^ x.

#include "model/kernels/cuda/tensor_core.cuh"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

/// Read anew at every call to save a register in loops.
[[nodiscard]] __device__ __forceinline__ int block_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(lane));
  return lane;
}
[[nodiscard]] __device__ __forceinline__ int warp_lane() {
  return block_lane() % static_cast<int>(kWarpLanes);
}

/// Whether the blocks' shared memory fits a multiprocessor; the system takes 1 KiB per block.
[[nodiscard]] constexpr bool blocks_fit(std::size_t blocks, std::size_t bytes,
                                        std::size_t kibibytes) {
  return blocks * (bytes + 1024) <= kibibytes * 1024;
}

template <int kRows, int kDim>
struct SharedTile {
  static_assert(kDim == 64 || kDim == 128);
  static constexpr int kChunks = kDim / 8;
  static constexpr int kRowBytes = 2 * kDim;
  static constexpr int kBytes = kRows * kRowBytes;

  [[nodiscard]] static __device__ __forceinline__ std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
};

/// Starts copies of rows [first, first + kRows) with distance `stride` (elements) by kLanes lanes;
/// rows from `limit` on become zeros.
template <int kRows, int kDim, int kLanes>
__device__ __forceinline__ void copy_rows(std::uint32_t tile, const BFloat16* tensor,
                                          unsigned stride, int first, int limit) {
  using Tile = SharedTile<kRows, kDim>;
  constexpr int kRowsAtOnce = kLanes / Tile::kChunks;
  static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
  const int lane = block_lane();
  const int chunk = lane % Tile::kChunks;
  const int lane_row = lane / Tile::kChunks;
  // A lane's rows are multiples of 8 apart, so they share a swizzle.
  const std::uint32_t to = tile + Tile::offset(lane_row, chunk);
#pragma unroll
  for (int step = 0; step < kRows; step += kRowsAtOnce) {
    const int row = first + lane_row + step;
    // 32 × 32 bits: one instruction, and no pointer is kept.
    const std::uint64_t from = std::uint64_t{static_cast<unsigned>(row)} * stride;
    copy_async(to + static_cast<std::uint32_t>(step * Tile::kRowBytes), tensor + chunk * 8 + from,
               row < limit);
  }
}

/// Reads 16×16 blocks of a tile at multiples of 16, so that a lane has one swizzle.
template <int kDim>
class BlockReader {
 public:
  /// Order of a block's four 8×8 matrices.
  enum class Order { down_first, across_first };

  __device__ __forceinline__ BlockReader(std::uint32_t tile, Order order) {
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
    const int low = lane / 8 % 2;
    const int high = lane / 16;
    const int row = lane % 8 + 8 * (order == Order::down_first ? low : high);
    const int chunk = order == Order::down_first ? high : low;
    row_ = tile + static_cast<std::uint32_t>(row * 2 * kDim);
    swizzle_ = static_cast<std::uint32_t>((chunk ^ (row & 7)) << 4);
  }

  /// A of a product. Requires: down_first.
  [[nodiscard]] __device__ __forceinline__ FragmentA as_a(int row_block, int column_block) const {
    FragmentA a;
    load_matrices(address(row_block, column_block), a.words);
    return a;
  }
  /// Two adjacent Bs: rows are product columns, columns are steps. Requires: across_first.
  __device__ __forceinline__ void as_transposed_b(int row_block, int column_block, FragmentB& first,
                                                  FragmentB& second) const {
    std::uint32_t words[4];
    load_matrices(address(row_block, column_block), words);
    first = {{words[0], words[1]}};
    second = {{words[2], words[3]}};
  }
  /// Two adjacent Bs: rows are steps. Requires: down_first.
  __device__ __forceinline__ void as_b(int row_block, int column_block, FragmentB& first,
                                       FragmentB& second) const {
    std::uint32_t words[4];
    load_matrices_transposed(address(row_block, column_block), words);
    first = {{words[0], words[1]}};
    second = {{words[2], words[3]}};
  }

 private:
  [[nodiscard]] __device__ __forceinline__ std::uint32_t address(int row_block,
                                                                 int column_block) const {
    return row_ + static_cast<std::uint32_t>(row_block * 16 * 2 * kDim) +
           (swizzle_ ^ static_cast<std::uint32_t>(column_block << 5));
  }

  std::uint32_t row_;
  std::uint32_t swizzle_;
};

/// left(m) is A.
template <int kDim, int kM, int kN, class Left>
__device__ __forceinline__ void multiply_row_step(Accumulator (&c)[kM][kN], const Left& left,
                                                  const BlockReader<kDim>& b, int step) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    FragmentB first;
    FragmentB second;
    b.as_transposed_b(n / 2, step, first, second);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      multiply_add(c[m][n], left(m), first);
      multiply_add(c[m][n + 1], left(m), second);
    }
  }
}

/// c[m][n] += a · bᵀ over D, for rows 16 · (first_row + m) … of `a` and 16 · n / 2 … of `b`.
template <int kDim, int kM, int kN>
__device__ __forceinline__ void multiply_rows(Accumulator (&c)[kM][kN], const BlockReader<kDim>& a,
                                              int first_row, const BlockReader<kDim>& b) {
  // With full unrolling registers spill.
#pragma unroll 2
  for (int step = 0; step < kDim / 16; ++step) {
    FragmentA left[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      left[m] = a.as_a(first_row + m, step);
    }
    multiply_row_step(
        c, [&](int m) -> const FragmentA& { return left[m]; }, b, step);
  }
}

/// kM × kSteps blocks of 16×16.
template <int kM, int kSteps>
struct LeftFragments {
  FragmentA blocks[kM][kSteps];
};

/// The same with the rows of `a` in registers.
template <int kDim, int kM, int kN>
__device__ __forceinline__ void multiply_rows(Accumulator (&c)[kM][kN],
                                              const LeftFragments<kM, kDim / 16>& a,
                                              const BlockReader<kDim>& b) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    multiply_row_step(
        c, [&](int m) -> const FragmentA& { return a.blocks[m][step]; }, b, step);
  }
}

template <int kM, int kN>
[[nodiscard]] __device__ __forceinline__ LeftFragments<kM, kN / 2> rounded(
    const Accumulator (&c)[kM][kN]) {
  LeftFragments<kM, kN / 2> result;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int step = 0; step < kN / 2; ++step) {
      const float* const left = c[m][2 * step].values;
      const float* const right = c[m][2 * step + 1].values;
      result.blocks[m][step] = {{pack_bfloat16(left[0], left[1]), pack_bfloat16(left[2], left[3]),
                                 pack_bfloat16(right[0], right[1]),
                                 pack_bfloat16(right[2], right[3])}};
    }
  }
  return result;
}

/// c[m][n] += weights · rows of `b`.
template <int kDim, int kM, int kSteps>
__device__ __forceinline__ void add_weighted_rows(Accumulator (&c)[kM][kDim / 8],
                                                  const LeftFragments<kM, kSteps>& weights,
                                                  const BlockReader<kDim>& b) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      FragmentB first;
      FragmentB second;
      b.as_b(step, n / 2, first, second);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(c[m][n], weights.blocks[m][step], first);
        multiply_add(c[m][n + 1], weights.blocks[m][step], second);
      }
    }
  }
}

template <int kM, int kN>
__device__ __forceinline__ void clear(Accumulator (&c)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      c[m][n] = {};
    }
  }
}

// A weight of 0 does not mask a non-finite element: 0 · ∞ is NaN. So a block with a non-finite
// result repeats its work: it sets non-finite elements to 0 and makes the weights of their rows NaN
// before masking. Rows that see them become NaN; others keep their bits.

template <int kM, int kN>
[[nodiscard]] __device__ __forceinline__ bool all_finite(const Accumulator (&c)[kM][kN]) {
  float zero = 0.0F;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (const float value : c[m][n].values) {
        zero = fmaf(value, 0.0F, zero);
      }
    }
  }
  return zero == 0.0F;
}

/// Whether `mine` holds on any lane; `votes` has a place per warp.
template <int kWarps>
[[nodiscard]] __device__ __forceinline__ bool any_of_block(bool mine, int (&votes)[kWarps]) {
  const bool any = __any_sync(kEveryLane, mine);
  if (warp_lane() == 0) {
    votes[block_lane() / static_cast<int>(kWarpLanes)] = any ? 1 : 0;
  }
  __syncthreads();
  int result = 0;
#pragma unroll
  for (const int vote : votes) {
    result |= vote;
  }
  return result != 0;
}

/// Sets non-finite elements of a row to 0; returns NaN if there were any, else 0.
template <int kDim>
[[nodiscard]] __device__ __forceinline__ float clean_row(unsigned char* tile, int row) {
  constexpr std::uint32_t kExponent = 0x7f80U;
  float mark = 0.0F;
  for (int i = 0; i < kDim / 2; ++i) {
    auto* const word = reinterpret_cast<std::uint32_t*>(
        tile + SharedTile<1, kDim>::offset(row, i / 4) + i % 4 * 4);
    const std::uint32_t low = (*word & kExponent) == kExponent ? 0U : *word & 0xffffU;
    const std::uint32_t high = (*word >> 16 & kExponent) == kExponent ? 0U : *word & 0xffff0000U;
    if ((low | high) != *word) {
      *word = low | high;
      mark = __int_as_float(0x7fc00000);
    }
  }
  return mark;
}

template <int kM, int kN>
__device__ __forceinline__ void add_marks(Accumulator (&c)[kM][kN], const float* marks) {
  const int first = warp_lane() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float even = marks[8 * n + first];
    const float odd = marks[8 * n + first + 1];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      c[m][n].values[0] += even;
      c[m][n].values[1] += odd;
      c[m][n].values[2] += even;
      c[m][n].values[3] += odd;
    }
  }
}

/// Rounds factor_of(m, half) · c, row 16 m + lane / 4 + 8 half, into the warp's rows [16 ·
/// first_row …) of a tile, and stores those with writes(row) to the tensor's rows first + row.
template <int kDim, int kM, class Writes, class FactorOf>
__device__ __forceinline__ void store_rows(const Accumulator (&c)[kM][kDim / 8],
                                           unsigned char* tile, int first_row, BFloat16* tensor,
                                           std::int64_t stride, int first, Writes writes,
                                           FactorOf factor_of) {
  using Tile = SharedTile<16, kDim>;
  const int lane = warp_lane();
  unsigned char* const rows = tile + first_row * 16 * Tile::kRowBytes;
  __syncwarp();  // The warp has read these rows.
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = factor_of(m, half);
      const int row = 16 * m + 8 * half + lane / 4;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        *reinterpret_cast<std::uint32_t*>(rows + Tile::offset(row, n) + lane % 4 * 4) =
            pack_bfloat16(factor * c[m][n].values[2 * half], factor * c[m][n].values[2 * half + 1]);
      }
    }
  }
  __syncwarp();
  constexpr int kRowsAtOnce = static_cast<int>(kWarpLanes) / Tile::kChunks;
  const int chunk = lane % Tile::kChunks;
#pragma unroll
  for (int row = lane / Tile::kChunks; row < 16 * kM; row += kRowsAtOnce) {
    if (writes(row)) {
      *reinterpret_cast<uint4*>(tensor + (first + row) * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(rows + Tile::offset(row, chunk));
    }
  }
}

}  // namespace jforge
