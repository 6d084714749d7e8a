/// Products of decoding: few rows by a weight that is read once. A row's bits depend on the row and
/// the weight alone: sums over K are taken in an order that K alone decides.
///
/// Lanes own a column and add its steps up in ascending order by FMA, with the CPU's bits; a
/// bfloat16 is widened in a register. With WeightStorage::bfloat16_arithmetic tensor cores multiply
/// (fragment_product.cuh); where there are none, lanes do the same sums in ascending order.

#include <algorithm>
#include <vector>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/decode_tiles.h"
#include "model/kernels/cuda/float_elements.h"
#include "model/kernels/cuda/fragment_order.h"
#if !defined(JFORGE_EMULATED_DEVICE)
#include "model/kernels/cuda/fragment_product.cuh"
#endif

namespace jforge {

namespace {

/// A matrix [N, K] to be packed.
struct SourceMatrix {
  FloatSource values;
  std::int64_t n;
  std::int64_t k;

  /// 0 in the padding.
  [[nodiscard]] JFORGE_DEVICE float at(std::int64_t row, std::int64_t step) const {
    return row < n && step < k ? values[row * k + step] : 0.0F;
  }
};

/// packed[i] of [⌈K / kEach⌉][N][kEach].
template <class Element, int kEach>
struct PackColumns {
  SourceMatrix source;
  Element* packed;
  JFORGE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t group = i / kEach;
    put(packed[i], source.at(group % source.n, group / source.n * kEach + i % kEach));
  }
  JFORGE_DEVICE static void put(float& to, float value) { to = value; }
  JFORGE_DEVICE static void put(BFloat16& to, float value) { to = round_to_bfloat16(value); }
};

struct PackFragments {
  SourceMatrix source;
  BFloat16* packed;
  std::int64_t steps;  ///< ⌈K / kFragmentSteps⌉
  JFORGE_DEVICE void operator()(std::int64_t i) const {
    const WeightPlace place = WeightPlace::of(i, steps);
    packed[i] = round_to_bfloat16(source.at(place.row, place.step));
  }
};

/// Rows that are multiplied with fragments, rounded and in their order: a word of eight steps each.
struct PackRows {
  const float* x;
  BFloat16* packed;
  std::int64_t m;
  std::int64_t k;
  std::int64_t steps;
  JFORGE_DEVICE void operator()(std::int64_t word) const {
    for (std::int64_t i = word * 8; i < word * 8 + 8; ++i) {
      const RowPlace place = RowPlace::of(i, steps);
      packed[i] = place.row < m && place.step < k ? round_to_bfloat16(x[place.row * k + place.step])
                                                  : BFloat16{};
    }
  }
};

/// Numbers of a float32 matrix that are no bfloat16: partial[block] of them.
struct CountUnrounded {
  const float* values;
  std::int64_t count;
  std::int64_t blocks;
  double* partial;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t block) const {
    const double found = group.template sum<double>([&](std::int64_t lane) {
      double sum = 0;
      for (std::int64_t i = block * group.lanes() + lane; i < count; i += blocks * group.lanes()) {
        sum += (__builtin_bit_cast(std::uint32_t, values[i]) & 0xFFFFU) != 0 ? 1 : 0;
      }
      return sum;
    });
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        partial[block] = found;
      }
    });
  }
};

/// Sixteen bytes that are read together.
struct alignas(16) FourFloats {
  float values[4];
};
struct alignas(16) EightShorts {
  BFloat16 values[8];
};

/// Where lanes read kEach adjacent steps of a column.
struct FloatColumns {
  static constexpr int kEach = 4;
  static constexpr bool kRoundsInput = false;
  const float* packed;
  std::int64_t n;
  JFORGE_DEVICE void read(std::int64_t step, std::int64_t column, float (&values)[kEach]) const {
    const FourFloats word = reinterpret_cast<const FourFloats*>(packed)[step / kEach * n + column];
    for (int e = 0; e < kEach; ++e) {
      values[e] = word.values[e];
    }
  }
};

struct RoundedColumns {
  static constexpr int kEach = 8;
  static constexpr bool kRoundsInput = false;
  const BFloat16* packed;
  std::int64_t n;
  JFORGE_DEVICE void read(std::int64_t step, std::int64_t column, float (&values)[kEach]) const {
    const EightShorts word =
        reinterpret_cast<const EightShorts*>(packed)[step / kEach * n + column];
    for (int e = 0; e < kEach; ++e) {
      values[e] = widen(word.values[e]);
    }
  }
};

#if defined(JFORGE_EMULATED_DEVICE)
struct FragmentColumns {
  static constexpr int kEach = 8;
  static constexpr bool kRoundsInput = true;
  const BFloat16* packed;
  std::int64_t steps;
  void read(std::int64_t step, std::int64_t column, float (&values)[kEach]) const {
    for (int e = 0; e < kEach; ++e) {
      values[e] = widen(packed[WeightPlace{column, step + e}.index(steps)]);
    }
  }
};
#endif

constexpr std::int64_t kTileColumns = 64;  ///< Lanes of a block: one output column each.
constexpr std::int64_t kTileRows = 8;
constexpr std::int64_t kTileDepth = 64;

/// Sums of one lane's column for the rows of a tile.
struct RowSums {
  float values[kTileRows];
};

/// x [M, K] times a packed weight, in tiles of kTileRows by kTileColumns; `finish` takes each.
template <class Weight, class Finish>
struct ColumnProduct {
  const float* x;
  Weight weight;
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  Finish finish;

  [[nodiscard]] std::int64_t blocks() const {
    return divide_up(m, kTileRows) * divide_up(n, kTileColumns);
  }
  [[nodiscard]] static std::int64_t shared_bytes() {
    return shared_size<float>(kTileRows * kTileDepth) +
           shared_size<float>(kTileRows * kTileColumns);
  }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t block) const {
    const std::int64_t column_tiles = divide_up(n, kTileColumns);
    float* const tile = group.template shared<float>(kTileRows * kTileDepth);
    float* const result = group.template shared<float>(kTileRows * kTileColumns);
    typename Group::template PerLane<RowSums> sums(group);
    const std::int64_t first_row = block / column_tiles * kTileRows;
    const std::int64_t first_column = block % column_tiles * kTileColumns;
    for (std::int64_t begin = 0; begin < k; begin += kTileDepth) {
      const std::int64_t depth = k - begin < kTileDepth ? k - begin : kTileDepth;
      group.each([&](std::int64_t lane) {
        for (std::int64_t i = lane; i < kTileRows * kTileDepth; i += group.lanes()) {
          const std::int64_t r = i / kTileDepth;
          const std::int64_t d = i % kTileDepth;
          const float value =
              first_row + r < m && d < depth ? x[(first_row + r) * k + begin + d] : 0.0F;
          tile[i] = Weight::kRoundsInput ? widen(round_to_bfloat16(value)) : value;
        }
      });
      group.each([&](std::int64_t lane) {
        const std::int64_t column = first_column + lane;
        if (column >= n) {
          return;
        }
        RowSums& own = sums[lane];
        for (std::int64_t d = 0; d < depth; d += Weight::kEach) {
          float word[Weight::kEach];
          weight.read(begin + d, column, word);
          for (int e = 0; e < Weight::kEach; ++e) {
            if (d + e < depth) {
              for (std::int64_t r = 0; r < kTileRows; ++r) {
                own.values[r] = fmaf(tile[r * kTileDepth + d + e], word[e], own.values[r]);
              }
            }
          }
        }
      });
    }
    group.each([&](std::int64_t lane) {
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        result[r * kTileColumns + lane] = sums[lane].values[r];
      }
    });
    const auto within = [](std::int64_t left, std::int64_t most) {
      return left < most ? left : most;
    };
    finish(group, ProductTile{result, kTileColumns, first_row, within(m - first_row, kTileRows),
                              first_column, within(n - first_column, kTileColumns)});
  }
};

/// y = the product (+ bias).
struct WriteProduct {
  const float* bias;  ///< May be null.
  float* y;
  std::int64_t n;

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, const ProductTile& tile) const {
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < tile.rows * tile.columns; i += group.lanes()) {
        const std::int64_t row = i / tile.columns;
        const std::int64_t column = tile.first_column + i % tile.columns;
        const float value = tile.values[row * tile.stride + i % tile.columns];
        y[(tile.first_row + row) * n + column] = bias == nullptr ? value : value + bias[column];
      }
    });
  }
};

/// Marks of a best column: none seen yet, and a NaN seen.
constexpr std::int64_t kNone = -1;
constexpr std::int64_t kNaN = -2;

struct BestColumn {
  float value;
  std::int64_t index;

  /// Takes `other` when it is better: larger, or equal and of smaller index. NaN beats all.
  JFORGE_DEVICE void meet(const BestColumn& other) {
    if (index == kNaN || other.index == kNone) {
      return;
    }
    if (other.index == kNaN || index == kNone || other.value > value ||
        (other.value == value && other.index < index)) {
      *this = other;
    }
  }
};

/// Columns whose best is kept: a multiple of every product's tiles.
constexpr std::int64_t kBestColumns = 16;

/// Best column of every kBestColumns: best[row][column / kBestColumns].
struct FindBest {
  BestColumn* best;
  std::int64_t groups;

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, const ProductTile& tile) const {
    group.each([&](std::int64_t lane) {
      const std::int64_t own = divide_up(tile.columns, kBestColumns);
      for (std::int64_t i = lane; i < tile.rows * own; i += group.lanes()) {
        const std::int64_t row = i / own;
        const std::int64_t begin = i % own * kBestColumns;
        BestColumn found{0.0F, kNone};
        for (std::int64_t c = begin; c < begin + kBestColumns && c < tile.columns; ++c) {
          const float value = tile.values[row * tile.stride + c];
          found.meet({value, value == value ? tile.first_column + c : kNaN});
        }
        best[(tile.first_row + row) * groups + (tile.first_column + begin) / kBestColumns] = found;
      }
    });
  }
};

constexpr std::int64_t kBestLanes = 128;

/// Best of a row; one block a row.
struct BestOfRow {
  const BestColumn* best;
  std::int64_t groups;
  TokenId* tokens;

  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<BestColumn>(kBestLanes); }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t row) const {
    BestColumn* const own = group.template shared<BestColumn>(kBestLanes);
    group.each([&](std::int64_t lane) {
      BestColumn found{0.0F, kNone};
      for (std::int64_t i = lane; i < groups; i += group.lanes()) {
        found.meet(best[row * groups + i]);
      }
      own[lane] = found;
    });
    group.each([&](std::int64_t lane) {
      if (lane != 0) {
        return;
      }
      BestColumn found = own[0];
      for (std::int64_t i = 1; i < group.lanes(); ++i) {
        found.meet(own[i]);
      }
      tokens[row] = found.index < 0 ? kNoToken : static_cast<TokenId>(found.index);
    });
  }
};

const DeviceWeight& device_weight(const PackedWeight& weight) {
  const auto* found = dynamic_cast<const DeviceWeight*>(&weight);
  expect(found != nullptr, "packed weight was made by another kernel set");
  return *found;
}

FloatSource source_of(const ConstTensorView& weight) {
  return {weight.raw(), weight.dtype() == DType::bfloat16};
}

}  // namespace

/// Whether no number of a float32 matrix on the device needs rounding.
bool CudaKernelSet::all_bfloat16(const ConstTensorView& weight) {
  constexpr std::int64_t kLanes = 256;
  constexpr std::int64_t kMostBlocks = 256;
  const std::int64_t blocks = std::min(divide_up(weight.elements(), kLanes), kMostBlocks);
  auto* const partial = partials_.at_least<double>(blocks);
  queue_.launch(blocks, kLanes, CountUnrounded{floats(weight), weight.elements(), blocks, partial},
                "pack_weight");
  std::vector<double> found(static_cast<std::size_t>(blocks));
  queue_.download(found.data(), partial, found.size() * sizeof(double));
  return std::ranges::all_of(found, [](double count) { return count == 0; });
}

std::unique_ptr<PackedWeight> CudaKernelSet::pack_weight(ConstTensorView weight,
                                                         WeightStorage storage,
                                                         MemoryAccount& account) {
  expect(weight.shape().rank() == 2 && weight.elements() > 0,
         "pack_weight: weight must be a non-empty matrix");
  expect_floating(weight, "pack_weight weight");
  Buffer copy;
  if (weight.device() != DeviceQueue::kDevice) {
    copy = Buffer(weight.bytes(), account, DeviceQueue::kDevice);
    const TensorView here = copy.view(weight.dtype(), weight.shape());
    copy_tensor(weight, here);
    weight = here;
  }
  const bool shorts =
      rounds(storage) || (storage == WeightStorage::automatic &&
                          (weight.dtype() == DType::bfloat16 || all_bfloat16(weight)));
  const SourceMatrix source{source_of(weight), weight.dim(0), weight.dim(1)};
  auto packed =
      std::make_unique<DeviceWeight>(source.n, source.k, shorts ? DType::bfloat16 : DType::float32,
                                     storage == WeightStorage::bfloat16_arithmetic, account);
  if (packed->fragments()) {
    launch_elements(
        queue_, packed->elements(),
        PackFragments{source, packed->data<BFloat16>(), divide_up(source.k, kFragmentSteps)},
        "pack_weight");
  } else if (shorts) {
    launch_elements(queue_, packed->elements(),
                    PackColumns<BFloat16, RoundedColumns::kEach>{source, packed->data<BFloat16>()},
                    "pack_weight");
  } else {
    launch_elements(queue_, packed->elements(),
                    PackColumns<float, FloatColumns::kEach>{source, packed->data<float>()},
                    "pack_weight");
  }
  return packed;
}

/// Has `finish` take every tile of x · weightᵀ.
template <class Finish>
void CudaKernelSet::invariant_product(const ConstTensorView& x, const PackedWeight& weight,
                                      const Finish& finish, const char* what) {
  const DeviceWeight& packed = device_weight(weight);
  const std::int64_t m = x.dim(0);
  const std::int64_t n = weight.rows();
  const std::int64_t k = weight.columns();
  const auto by_columns = [&]<class Weight>(const Weight& columns) {
    const ColumnProduct<Weight, Finish> product{floats(x), columns, m, n, k, finish};
    queue_.launch(product.blocks(), kTileColumns, product, what);
  };
  if (!packed.fragments()) {
    if (weight.dtype() == DType::bfloat16) {
      by_columns(RoundedColumns{packed.data<BFloat16>(), n});
    } else {
      by_columns(FloatColumns{packed.data<float>(), n});
    }
    return;
  }
  const std::int64_t steps = divide_up(k, kFragmentSteps);
#if defined(JFORGE_EMULATED_DEVICE)
  by_columns(FragmentColumns{packed.data<BFloat16>(), steps});
#else
  const std::int64_t elements =
      divide_up(m, kFragmentRows) * kFragmentRows * steps * kFragmentSteps;
  auto* const rounded = rounded_input_.at_least<BFloat16>(elements);
  launch_elements(queue_, elements / 8, PackRows{floats(x), rounded, m, k, steps}, what);
  launch_fragment_product(queue_, FragmentOperands{rounded, packed.data<BFloat16>(), m, n, steps},
                          finish, what);
#endif
}

void CudaKernelSet::invariant_linear(ConstTensorView x, const PackedWeight& weight,
                                     ConstTensorView bias, TensorView y) {
  const std::int64_t m = x.dim(0);
  const std::int64_t n = weight.rows();
  expect_shape(x, Shape{m, weight.columns()}, "invariant_linear x");
  expect_shape(y, Shape{m, n}, "invariant_linear y");
  if (!bias.empty()) {
    expect_shape(bias, Shape{n}, "invariant_linear bias");
  }
  if (m > 0) {
    invariant_product(x, weight, WriteProduct{bias.empty() ? nullptr : floats(bias), floats(y), n},
                      "invariant_linear");
  }
}

void CudaKernelSet::invariant_argmax(ConstTensorView hidden, const PackedWeight& head,
                                     TensorView tokens) {
  const std::int64_t m = hidden.dim(0);
  expect_shape(hidden, Shape{m, head.columns()}, "invariant_argmax hidden");
  expect_shape(tokens, Shape{m}, "invariant_argmax tokens");
  if (m == 0) {
    return;
  }
  const std::int64_t groups = divide_up(head.rows(), kBestColumns);
  auto* const best = best_columns_.at_least<BestColumn>(m * groups);
  invariant_product(hidden, head, FindBest{best, groups}, "invariant_argmax");
  queue_.launch(m, kBestLanes, BestOfRow{best, groups, indices(tokens)}, "invariant_argmax");
}

}  // namespace jforge
