#pragma once

/// Decoding products on tensor cores: bfloat16 operands in fragment order (fragment_order.h), sums
/// in float32. The warps of a block share K among themselves, each a run of steps in ascending
/// order, and their sums are added up in the order of the warps: how K is shared depends on K
/// alone, so a row's bits do not depend on how many rows there are.
///
/// Weights are read once for up to 64 rows, 2 · N · K bytes, and per block of 16 or 32 columns the
/// rows, 2 · M · K, from the second-level cache. Each lane copies what it multiplies itself to
/// shared memory some steps ahead (16 to 32 KiB of weight on their way in a block, twice what an
/// H100's multiprocessor needs at 3.35 TB/s and 600 ns), so the loop has no barrier. M rows take
/// 2 · M · N · K operations: below some 200 rows, where an H100 has that many per byte, reading the
/// weight is the bound.

#include "model/kernels/cuda/decode_tiles.h"
#include "model/kernels/cuda/device_queue.h"
#include "model/kernels/cuda/fragment_order.h"
#include "model/kernels/cuda/tensor_core.cuh"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

struct FragmentOperands {
  const BFloat16* x;       ///< Rows [M, K] in their order.
  const BFloat16* weight;  ///< [N, K] in its order.
  std::int64_t m;
  std::int64_t n;
  std::int64_t steps;  ///< ⌈K / 32⌉
};

/// kColumnTiles · 16 columns by kRowTiles · 8 rows to a block; `finish` takes its tile.
template <int kColumnTiles, int kRowTiles, class Finish>
struct FragmentProduct {
  static constexpr int kWarps = 8;
  static constexpr int kStages = kRowTiles <= 2 ? 4 : (kRowTiles == 4 ? 3 : 2);
  static constexpr int kColumns = kColumnTiles * 16;
  static constexpr int kRows = kRowTiles * 8;
  /// Words of 16 bytes that a lane copies for one step: two a tile of columns, one a tile of rows.
  static constexpr int kWords = 2 * kColumnTiles + kRowTiles;
  /// Floats from one row of sums to the next: the lanes of a warp meet different banks.
  static constexpr int kStride = kColumns + 4;
  static constexpr std::int64_t kWarpBytes = std::int64_t{kStages} * kWords * 32 * 16;
  static_assert(kWarpBytes >= std::int64_t{kRows} * kStride * 4, "a warp's sums take its stages");

  FragmentOperands operands;
  Finish finish;

  [[nodiscard]] std::int64_t blocks() const {
    return divide_up(operands.n, kColumns) * divide_up(operands.m, kRows);
  }
  [[nodiscard]] static std::int64_t shared_bytes() { return kWarps * kWarpBytes; }

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t block) const {
    // Blocks that share a weight are neighbours: the second one finds it in the cache.
    const std::int64_t row_blocks = divide_up(operands.m, kRows);
    const std::int64_t first_row = block % row_blocks * kRows;
    const std::int64_t first_column = block / row_blocks * kColumns;
    unsigned char* const memory = group.template shared<unsigned char>(kWarps * kWarpBytes);
    group.each([&](std::int64_t thread) {
      const auto warp = static_cast<int>(thread / kWarpLanes);
      const auto lane = static_cast<int>(thread % kWarpLanes);
      unsigned char* const own = memory + warp * kWarpBytes;
      Accumulator sums[kColumnTiles][kRowTiles] = {};
      add_up(own, warp, lane, first_row, first_column, sums);
      // The sums take the place of the stages, and other lanes' too. Every step's copies were
      // waited for before it was multiplied.
      __syncwarp();
      store(reinterpret_cast<float*>(own), lane, sums);
    });
    auto* const total = reinterpret_cast<float*>(memory);
    group.each([&](std::int64_t thread) {
      for (auto i = static_cast<int>(thread); i < kRows * kColumns;
           i += static_cast<int>(group.lanes())) {
        const int at = i / kColumns * kStride + i % kColumns;
        float sum = total[at];
        for (int warp = 1; warp < kWarps; ++warp) {
          sum += total[warp * (kWarpBytes / 4) + at];
        }
        total[at] = sum;
      }
    });
    const auto within = [](std::int64_t left, std::int64_t most) {
      return left < most ? left : most;
    };
    finish(group, ProductTile{total, kStride, first_row, within(operands.m - first_row, kRows),
                              first_column, within(operands.n - first_column, kColumns)});
  }

  /// The warp's steps.
  __device__ void add_up(unsigned char* stages, int warp, int lane, std::int64_t first_row,
                         std::int64_t first_column,
                         Accumulator (&sums)[kColumnTiles][kRowTiles]) const {
    const auto begin = static_cast<int>(operands.steps * warp / kWarps);
    const auto end = static_cast<int>(operands.steps * (warp + 1) / kWarps);
    const std::int64_t column_tile = first_column / kFragmentColumns;
    const std::int64_t row_tile = first_row / kFragmentRows;
    const std::int64_t column_tiles = divide_up(operands.n, kFragmentColumns) - column_tile;
    const std::int64_t row_tiles = divide_up(operands.m, kFragmentRows) - row_tile;
    const BFloat16* const weight = operands.weight + column_tile * operands.steps * 512 + lane * 8;
    const BFloat16* const x = operands.x + row_tile * operands.steps * 256 + lane * 8;
    const auto place = [&](int stage, int word) {
      return stages + ((stage * kWords + word) * 32 + lane) * 16;
    };
    const auto fetch = [&](int step) {
      if (step < end) {
        const int stage = (step - begin) % kStages;
        for (int tile = 0; tile < kColumnTiles; ++tile) {
          const bool valid = tile < column_tiles;
          const BFloat16* const from = weight + (valid ? (tile * operands.steps + step) * 512 : 0);
          copy_async(shared_address(place(stage, 2 * tile)), from, valid);
          copy_async(shared_address(place(stage, 2 * tile + 1)), from + (valid ? 256 : 0), valid);
        }
        for (int tile = 0; tile < kRowTiles; ++tile) {
          const bool valid = tile < row_tiles;
          copy_async(shared_address(place(stage, 2 * kColumnTiles + tile)),
                     x + (valid ? (tile * operands.steps + step) * 256 : 0), valid);
        }
      }
      // A group for every step, so that their number tells which have arrived.
      commit_copies();
    };
    for (int step = begin; step < begin + kStages - 1; ++step) {
      fetch(step);
    }
    for (int step = begin; step < end; ++step) {
      wait_copies<kStages - 2>();
      const int stage = (step - begin) % kStages;
      FragmentB rows[2][kRowTiles];
      for (int tile = 0; tile < kRowTiles; ++tile) {
        const uint4 word = *reinterpret_cast<const uint4*>(place(stage, 2 * kColumnTiles + tile));
        rows[0][tile] = {{word.x, word.y}};
        rows[1][tile] = {{word.z, word.w}};
      }
      for (int half = 0; half < 2; ++half) {
        for (int column = 0; column < kColumnTiles; ++column) {
          const uint4 word = *reinterpret_cast<const uint4*>(place(stage, 2 * column + half));
          const FragmentA columns{{word.x, word.y, word.z, word.w}};
          for (int row = 0; row < kRowTiles; ++row) {
            multiply_add(sums[column][row], columns, rows[half][row]);
          }
        }
      }
      // Into the stage of the step before, which is multiplied.
      fetch(step + kStages - 1);
    }
  }

  /// Sums as [row][column].
  __device__ static void store(float* to, int lane,
                               const Accumulator (&sums)[kColumnTiles][kRowTiles]) {
    for (int column = 0; column < kColumnTiles; ++column) {
      for (int row = 0; row < kRowTiles; ++row) {
        float* const first = to + (row * 8 + lane % 4 * 2) * kStride + column * 16 + lane / 4;
        const Accumulator& sum = sums[column][row];
        first[0] = sum.values[0];
        first[kStride] = sum.values[1];
        first[8] = sum.values[2];
        first[kStride + 8] = sum.values[3];
      }
    }
  }
};

/// Narrower blocks for few rows: more of them read at once.
template <class Finish>
void launch_fragment_product(DeviceQueue& queue, const FragmentOperands& operands,
                             const Finish& finish, const char* what) {
  const auto launch = [&]<int kColumnTiles, int kRowTiles>() {
    const FragmentProduct<kColumnTiles, kRowTiles, Finish> product{operands, finish};
    queue.launch(product.blocks(), product.kWarps * 32, product, what);
  };
  if (operands.m <= 8) {
    launch.template operator()<1, 1>();
  } else if (operands.m <= 16) {
    launch.template operator()<1, 2>();
  } else if (operands.m <= 32) {
    launch.template operator()<2, 4>();
  } else {
    launch.template operator()<2, 8>();
  }
}

}  // namespace jforge
