#pragma once

/// Decoding products on tensor cores: bfloat16 operands in fragment order (fragment_order.h), sums
/// in float32. K is eight runs of steps (run_end); each is added up in ascending order, and their
/// sums in the order of the runs. Runs depend on K alone, so a row's bits do not depend on how many
/// rows there are, nor on the blocks that they are multiplied by: narrow ones whose warps have a
/// run each (FragmentProduct), or for many rows such as read less for an operation
/// (WideFragmentProduct). What either costs: decode_product.md.

#include <algorithm>

#include "model/kernels/cuda/decode_tiles.h"
#include "model/kernels/cuda/device_queue.h"
#include "model/kernels/cuda/fragment_order.h"
#include "model/kernels/cuda/tensor_core.cuh"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

/// Rows [M, K] rounded and in their order: nothing is left to be done by the blocks that read them.
struct RoundedRows {
  static constexpr int kWords = 1;  ///< Of 16 bytes, of a lane, for a step of a tile of rows.
  const BFloat16* x;
  std::int64_t m;
  std::int64_t steps;

  /// Begins the copies of this lane's words to `to` and every 512 bytes behind.
  __device__ void fetch(std::int64_t tile, int step, int lane, unsigned char* to) const {
    const bool valid = tile * kFragmentRows < m;
    copy_async(shared_address(to), x + (valid ? (tile * steps + step) * 256 + lane * 8 : 0), valid);
  }
  __device__ static void read(const unsigned char* from, FragmentB& first, FragmentB& second) {
    const uint4 word = *reinterpret_cast<const uint4*>(from);
    first = {{word.x, word.y}};
    second = {{word.z, word.w}};
  }
};

/// Rows as they are, K even: each block rounds what it reads. That spares a launch, which few rows
/// are quicker without; the bytes are twice as many.
struct FloatRows {
  static constexpr int kWords = 2;
  const float* x;
  std::int64_t m;
  std::int64_t k;

  __device__ void fetch(std::int64_t tile, int step, int lane, unsigned char* to) const {
    const std::int64_t row = tile * kFragmentRows + lane / 4;
    for (int eighth = 0; eighth < 4; ++eighth) {
      const std::int64_t at = step * kFragmentSteps + eighth * 8 + lane % 4 * 2;
      const bool valid = row < m && at < k;
      copy_async_8(shared_address(to + eighth / 2 * 512 + eighth % 2 * 8),
                   x + (valid ? row * k + at : 0), valid);
    }
  }
  __device__ static void read(const unsigned char* from, FragmentB& first, FragmentB& second) {
    const float4 a = *reinterpret_cast<const float4*>(from);
    const float4 b = *reinterpret_cast<const float4*>(from + 512);
    first = {{pack_bfloat16(a.x, a.y), pack_bfloat16(a.z, a.w)}};
    second = {{pack_bfloat16(b.x, b.y), pack_bfloat16(b.z, b.w)}};
  }
};

/// Eight rows of sixteen columns as [row][column], rows `stride` apart.
__device__ inline void store_sums(float* to, int stride, int lane, const Accumulator& sums) {
  float* const first = to + lane % 4 * 2 * stride + lane / 4;
  first[0] = sums.values[0];
  first[stride] = sums.values[1];
  first[8] = sums.values[2];
  first[stride + 8] = sums.values[3];
}

/// Runs of K whose sums are added up in order, and where the steps of run i end.
inline constexpr int kRuns = 8;
[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr int run_end(std::int64_t steps, int i) {
  return static_cast<int>(steps * (i + 1) / kRuns);
}

/// kColumnTiles · 16 columns by kRowTiles · 8 rows to a block, a run of K to a warp. Each lane
/// copies what it multiplies itself to shared memory some steps ahead, so the loop has no barrier.
template <int kColumnTiles, int kRowTiles, class Rows>
struct FragmentProduct {
  static constexpr int kWarps = kRuns;
  static constexpr int kStages = kRowTiles <= 2 ? 4 : (kRowTiles == 4 ? 3 : 2);
  static constexpr int kColumns = kColumnTiles * 16;
  static constexpr int kRows = kRowTiles * 8;
  /// Words of 16 bytes that a lane copies for one step: two a tile of columns, and those of rows.
  static constexpr int kWords = 2 * kColumnTiles + Rows::kWords * kRowTiles;
  /// Floats from one row of sums to the next: the lanes of a warp meet different banks.
  static constexpr int kStride = kColumns + 4;
  static constexpr std::int64_t kWarpBytes = std::int64_t{kStages} * kWords * 32 * 16;
  static_assert(kWarpBytes >= std::int64_t{kRows} * kStride * 4, "a warp's sums take its stages");

  Rows rows;
  const BFloat16* weight;  ///< [N, K] in its order.
  std::int64_t n;
  std::int64_t steps;  ///< ⌈K / 32⌉

  [[nodiscard]] std::int64_t blocks() const {
    return divide_up(n, kColumns) * divide_up(rows.m, kRows);
  }
  [[nodiscard]] static std::int64_t shared_bytes() { return kWarps * kWarpBytes; }

  template <class Group>
  JFORGE_DEVICE ProductTile multiply(Group& group, std::int64_t block) const {
    // Blocks that share a weight are neighbours: the second one finds it in the cache.
    const std::int64_t row_blocks = divide_up(rows.m, kRows);
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
    return {total,        kStride,
            first_row,    of_tile(rows.m - first_row, kRows),
            first_column, of_tile(n - first_column, kColumns)};
  }

  /// The warp's steps.
  __device__ void add_up(unsigned char* stages, int warp, int lane, std::int64_t first_row,
                         std::int64_t first_column,
                         Accumulator (&sums)[kColumnTiles][kRowTiles]) const {
    const int begin = run_end(steps, warp - 1);
    const int end = run_end(steps, warp);
    const std::int64_t column_tile = first_column / kFragmentColumns;
    const std::int64_t row_tile = first_row / kFragmentRows;
    const std::int64_t column_tiles = divide_up(n, kFragmentColumns) - column_tile;
    const BFloat16* const columns = weight + column_tile * steps * 512 + lane * 8;
    const auto place = [&](int stage, int word) {
      return stages + ((stage * kWords + word) * 32 + lane) * 16;
    };
    const auto fetch = [&](int step) {
      if (step < end) {
        const int stage = (step - begin) % kStages;
        for (int tile = 0; tile < kColumnTiles; ++tile) {
          const bool valid = tile < column_tiles;
          const BFloat16* const from = columns + (valid ? (tile * steps + step) * 512 : 0);
          copy_async(shared_address(place(stage, 2 * tile)), from, valid);
          copy_async(shared_address(place(stage, 2 * tile + 1)), from + (valid ? 256 : 0), valid);
        }
        for (int tile = 0; tile < kRowTiles; ++tile) {
          rows.fetch(row_tile + tile, step, lane,
                     place(stage, 2 * kColumnTiles + tile * Rows::kWords));
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
      FragmentB halves[2][kRowTiles];
      for (int tile = 0; tile < kRowTiles; ++tile) {
        Rows::read(place(stage, 2 * kColumnTiles + tile * Rows::kWords), halves[0][tile],
                   halves[1][tile]);
      }
      for (int half = 0; half < 2; ++half) {
        for (int column = 0; column < kColumnTiles; ++column) {
          const uint4 word = *reinterpret_cast<const uint4*>(place(stage, 2 * column + half));
          const FragmentA sixteen{{word.x, word.y, word.z, word.w}};
          for (int row = 0; row < kRowTiles; ++row) {
            multiply_add(sums[column][row], sixteen, halves[half][row]);
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
        store_sums(to + row * kFragmentRows * kStride + column * kFragmentColumns, kStride, lane,
                   sums[column][row]);
      }
    }
  }
};

/// 128 columns by kRowTiles · 32 rows to a block, a quarter of these by 64 columns to a warp, all
/// of K to each. The block copies its operands together, with a barrier a step: 128 rows take
/// 16 KiB for 2²⁰ operations, 64 for a byte, where FragmentProduct has 21; 64 rows read 1.5 bytes
/// of the second-level cache for one of weight, where that reads 3.
template <int kRowTiles>
struct WideFragmentProduct {
  static constexpr int kWarps = 8;
  static constexpr int kStages = 4;
  static constexpr int kColumns = 128;
  static constexpr int kRows = kRowTiles * 32;
  static constexpr int kColumnTiles = 4;  ///< Of a warp, as kRowTiles.
  static constexpr int kStride = kColumns + 4;
  static constexpr int kWeightBytes = kColumns / kFragmentColumns * 1024;  ///< Of a step.
  static constexpr int kStageBytes = kWeightBytes + kRows / kFragmentRows * 512;
  static constexpr int kSumBytes = kRows * kStride * 4;
  static constexpr int kAllStagesBytes = kStages * kStageBytes;
  /// The sums take the stages' place.
  static constexpr std::int64_t kBytes = std::max(kSumBytes, kAllStagesBytes);

  RoundedRows rows;
  const BFloat16* weight;  ///< [N, K] in its order.
  std::int64_t n;
  std::int64_t steps;  ///< ⌈K / 32⌉

  using Sums = Accumulator[kColumnTiles][kRowTiles];

  [[nodiscard]] std::int64_t blocks() const {
    return divide_up(n, kColumns) * divide_up(rows.m, kRows);
  }
  [[nodiscard]] static std::int64_t shared_bytes() { return kBytes; }

  template <class Group>
  JFORGE_DEVICE ProductTile multiply(Group& group, std::int64_t block) const {
    // Blocks that share a weight are neighbours: the second one finds it in the cache.
    const std::int64_t row_blocks = divide_up(rows.m, kRows);
    const std::int64_t first_row = block % row_blocks * kRows;
    const std::int64_t first_column = block / row_blocks * kColumns;
    unsigned char* const memory = group.template shared<unsigned char>(kBytes);
    Sums own = {};
    Sums total = {};
    int run = 0;
    const auto end_runs = [&](int done) {
      for (; run < kRuns && run_end(steps, run) == done; ++run) {
        add_run(own, total, run == 0);
      }
    };
    group.each([&](std::int64_t thread) {
      for (int step = 0; step < kStages - 1; ++step) {
        fetch(memory, step, static_cast<int>(thread), first_row, first_column);
      }
      wait_copies<kStages - 2>();
      end_runs(0);
    });
    for (int step = 0; step < steps; ++step) {
      group.each([&](std::int64_t thread) {
        add_step(memory + step % kStages * kStageBytes, static_cast<int>(thread), own);
        // Into the stage of the step before, which all warps have multiplied.
        fetch(memory, step + kStages - 1, static_cast<int>(thread), first_row, first_column);
        wait_copies<kStages - 2>();
        end_runs(step + 1);
      });
    }
    auto* const result = reinterpret_cast<float*>(memory);
    group.each([&](std::int64_t thread) { store(result, static_cast<int>(thread), total); });
    return {result,       kStride,
            first_row,    of_tile(rows.m - first_row, kRows),
            first_column, of_tile(n - first_column, kColumns)};
  }

  /// A run's sums to the total: as FragmentProduct adds up those of its warps.
  __device__ static void add_run(Sums& own, Sums& total, bool first) {
    for (int column = 0; column < kColumnTiles; ++column) {
      for (int row = 0; row < kRowTiles; ++row) {
        for (int i = 0; i < 4; ++i) {
          float& sum = own[column][row].values[i];
          float& all = total[column][row].values[i];
          all = first ? sum : all + sum;
          sum = 0;
        }
      }
    }
  }

  /// This thread's part of a step's operands, words of 16 bytes.
  __device__ void fetch(unsigned char* memory, int step, int thread, std::int64_t first_row,
                        std::int64_t first_column) const {
    if (step < steps) {
      unsigned char* const to = memory + step % kStages * kStageBytes + thread * 16;
      constexpr int kAtOnce = kWarps * 32 * 16;
      for (int begin = 0; begin < kWeightBytes; begin += kAtOnce) {
        const int at = (begin + thread * 16) / 2;  // In elements.
        const std::int64_t tile = first_column / kFragmentColumns + at / 512;
        const bool valid = tile * kFragmentColumns < n;
        copy_async(shared_address(to + begin),
                   weight + (valid ? (tile * steps + step) * 512 + at % 512 : 0), valid);
      }
      static_assert(kWeightBytes % kAtOnce == 0 && kStageBytes % kAtOnce == 0);
      for (int begin = kWeightBytes; begin < kStageBytes; begin += kAtOnce) {
        const int at = (begin - kWeightBytes + thread * 16) / 2;
        const std::int64_t tile = first_row / kFragmentRows + at / 256;
        const bool valid = tile * kFragmentRows < rows.m;
        copy_async(shared_address(to + begin),
                   rows.x + (valid ? (tile * steps + step) * 256 + at % 256 : 0), valid);
      }
    }
    // A group for every step, so that their number tells which have arrived.
    commit_copies();
  }

  __device__ static int first_column_tile(int thread) { return thread / 32 % 2 * kColumnTiles; }
  __device__ static int first_row_tile(int thread) { return thread / 64 * kRowTiles; }

  __device__ static void add_step(const unsigned char* stage, int thread, Sums& sums) {
    const unsigned char* const words = stage + thread % 32 * 16;
    FragmentB halves[2][kRowTiles];
    for (int row = 0; row < kRowTiles; ++row) {
      RoundedRows::read(words + kWeightBytes + (first_row_tile(thread) + row) * 512, halves[0][row],
                        halves[1][row]);
    }
    for (int half = 0; half < 2; ++half) {
      for (int column = 0; column < kColumnTiles; ++column) {
        const uint4 word = *reinterpret_cast<const uint4*>(
            words + ((first_column_tile(thread) + column) * 2 + half) * 512);
        const FragmentA sixteen{{word.x, word.y, word.z, word.w}};
        for (int row = 0; row < kRowTiles; ++row) {
          multiply_add(sums[column][row], sixteen, halves[half][row]);
        }
      }
    }
  }

  /// Sums as [row][column].
  __device__ static void store(float* to, int thread, const Sums& sums) {
    for (int column = 0; column < kColumnTiles; ++column) {
      for (int row = 0; row < kRowTiles; ++row) {
        store_sums(to + (first_row_tile(thread) + row) * kFragmentRows * kStride +
                       (first_column_tile(thread) + column) * kFragmentColumns,
                   kStride, thread % 32, sums[column][row]);
      }
    }
  }
};

/// Products of `rows` with each output's `weight`, `n` and `finish`.
template <class Product, class Rows, class Outputs>
void launch_fragment_products(DeviceQueue& queue, const Rows& rows, std::int64_t steps,
                              const Outputs& outputs, const char* what) {
  launch_together(
      queue, Product::kWarps * 32, outputs,
      [&](const auto& output) {
        return Product{rows, output.weight->template data<BFloat16>(), output.weight->rows(),
                       steps};
      },
      what);
}

/// Narrower blocks for few rows: more of them read at once. Wide ones where there are enough: of 64
/// rows one for each multiprocessor of an H100, so that all of them read; of more rows fewer take
/// longer than what all narrow ones read from the second-level cache.
template <class Outputs>
void launch_fragment_products(DeviceQueue& queue, const RoundedRows& rows, const Outputs& outputs,
                              const char* what) {
  using WideOf64 = WideFragmentProduct<2>;
  using WideOf128 = WideFragmentProduct<4>;
  constexpr std::int64_t kFewestOf64 = 132;
  constexpr std::int64_t kFewestOf128 = 32;
  std::int64_t across = 0;
  for (const auto& output : outputs) {
    across += divide_up(output.weight->rows(), WideOf128::kColumns);
  }
  const auto launch = [&]<class Product>() {
    launch_fragment_products<Product>(queue, rows, rows.steps, outputs, what);
  };
  if (rows.m <= 16) {
    launch.template operator()<FragmentProduct<1, 2, RoundedRows>>();
  } else if (rows.m <= 32) {
    launch.template operator()<FragmentProduct<2, 4, RoundedRows>>();
  } else if (rows.m <= WideOf64::kRows && across >= kFewestOf64) {
    launch.template operator()<WideOf64>();
  } else if (rows.m > WideOf64::kRows &&
             across * divide_up(rows.m, WideOf128::kRows) >= kFewestOf128) {
    launch.template operator()<WideOf128>();
  } else {
    launch.template operator()<FragmentProduct<2, 8, RoundedRows>>();
  }
}

}  // namespace jforge
