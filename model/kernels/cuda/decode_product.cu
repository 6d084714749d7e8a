/// Decoding products: few rows by a weight that is read once. A row's bits depend only on the row
/// and the weight. With WeightStorage::bfloat16_arithmetic cuBLASLt multiplies (row-invariant
/// products, cuda_products.h). Otherwise each lane owns a column and adds its steps in ascending
/// order by FMA, with the CPU's bits.

#include <algorithm>
#include <type_traits>
#include <vector>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/decode_tiles.h"
#include "model/kernels/cuda/float_elements.h"
#include "model/kernels/cuda/reads_ahead.h"

namespace jforge {

namespace {

struct SourceMatrix {
  FloatSource values;
  std::int64_t n;
  std::int64_t k;

  /// 0 in the padding.
  [[nodiscard]] __device__ float at(std::int64_t row, std::int64_t step) const {
    return row < n && step < k ? values[row * k + step] : 0.0F;
  }
};

/// packed[i] of [⌈K / kEach⌉][N][kEach].
template <class Element, int kEach>
struct PackColumns {
  SourceMatrix source;
  Element* packed;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t group = i / kEach;
    put(packed[i], source.at(group % source.n, group / source.n * kEach + i % kEach));
  }
  __device__ static void put(float& to, float value) { to = value; }
  __device__ static void put(BFloat16& to, float value) { to = round_to_bfloat16(value); }
};

struct alignas(16) FourFloats {
  float values[4];
};
[[nodiscard]] __device__ inline float number_of(const MemoryWord& word, int i) {
  const std::uint32_t pair = word.bits[i / 2];
  return __builtin_bit_cast(float, i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U);
}

/// Rounds [rows, K] and pads it with zeros, one word per call.
struct PadRows {
  FloatSource x;
  BFloat16* padded;
  std::int64_t rows;
  std::int64_t k;
  std::int64_t padded_k;
  __device__ void operator()(std::int64_t word) const {
    const std::int64_t row = word * kProductPadding / padded_k;
    const std::int64_t step = word * kProductPadding % padded_k;
    float values[kProductPadding];
#pragma unroll
    for (int i = 0; i < kProductPadding; ++i) {
      values[i] = row < rows && step + i < k ? x[row * k + step + i] : 0.0F;
    }
    FloatTarget{padded, true}.write(word * kProductPadding, values);
  }
};

/// Copies columns [M, N] out of a padded matrix.
struct TakeColumns {
  FloatSource padded;
  std::int64_t padded_n;
  FloatTarget y;
  std::int64_t n;
  __device__ void operator()(std::int64_t i) const { y.set(i, padded[i / n * padded_n + i % n]); }
};

/// Copies a group's sums to the outputs and adds biases; kProductPadding columns per call.
struct TakeGroup {
  struct Output {
    std::int64_t first;  ///< Column of the group.
    std::int64_t n;
    const float* bias;  ///< May be null.
    float* y;
  };
  const float* sums;
  std::int64_t columns;
  Output outputs[kProductsTogether];  ///< Missing ones repeat the last.

  __device__ void operator()(std::int64_t word) const {
    const std::int64_t row = word * kProductPadding / columns;
    const std::int64_t column = word * kProductPadding % columns;
    Output own = outputs[0];
    for (std::size_t i = 1; i < kProductsTogether; ++i) {
      if (column >= outputs[i].first) {
        own = outputs[i];
      }
    }
    const std::int64_t at = column - own.first;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      FourFloats four = reinterpret_cast<const FourFloats*>(sums)[word * 2 + half];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        four.values[i] += own.bias == nullptr ? 0.0F : own.bias[at + 4 * half + i];
      }
      reinterpret_cast<FourFloats*>(own.y + row * own.n + at)[half] = four;
    }
  }
};

/// Counts elements that are not exact bfloat16 into partial[block].
struct CountUnrounded {
  const float* values;
  std::int64_t count;
  std::int64_t blocks;
  double* partial;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    const double found = group.sum<double>([&](std::int64_t lane) {
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

/// Words of kEach adjacent steps of a column.
struct FloatColumns {
  static constexpr int kEach = 4;
  using Word = FourFloats;
  const float* packed;
  std::int64_t n;
  [[nodiscard]] __device__ Word word(std::int64_t step, std::int64_t column) const {
    return reinterpret_cast<const Word*>(packed)[step / kEach * n + column];
  }
  __device__ static float number(const Word& word, int i) { return word.values[i]; }
};

struct RoundedColumns {
  static constexpr int kEach = 8;
  using Word = MemoryWord;
  const BFloat16* packed;
  std::int64_t n;
  [[nodiscard]] __device__ Word word(std::int64_t step, std::int64_t column) const {
    return reinterpret_cast<const Word*>(packed)[step / kEach * n + column];
  }
  __device__ static float number(const Word& word, int i) { return number_of(word, i); }
};

constexpr std::int64_t kTileColumns = 64;  ///< Lanes of a block: one output column each.
constexpr std::int64_t kTileRows = 8;
constexpr int kTileWords = 16;  ///< Overlapping reads.

template <class Weight>
struct TileColumn {
  typename Weight::Word words[kTileWords];
  float sums[kTileRows];
};

/// x [M, K] times a packed weight.
template <class Weight>
struct ColumnProduct {
  static constexpr int kTileDepth = kTileWords * Weight::kEach;

  const float* x;
  Weight weight;
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;

  [[nodiscard]] std::int64_t blocks() const {
    return divide_up(m, kTileRows) * divide_up(n, kTileColumns);
  }
  [[nodiscard]] static std::int64_t shared_bytes() {
    return shared_size<float>(kTileRows * kTileDepth) +
           shared_size<float>(kTileRows * kTileColumns);
  }
  __device__ ProductTile multiply(BlockGroup& group, std::int64_t block) const {
    // Blocks that share a weight are adjacent, so that it is cached.
    const std::int64_t row_tiles = divide_up(m, kTileRows);
    const std::int64_t first_row = block % row_tiles * kTileRows;
    const std::int64_t first_column = block / row_tiles * kTileColumns;
    const std::int64_t rows = of_tile(m - first_row, kTileRows);
    const std::int64_t filled = rows == 1 ? 1 : kTileRows;  // As add_tile() reads.
    float* const tile = group.shared<float>(kTileRows * kTileDepth);
    float* const result = group.shared<float>(kTileRows * kTileColumns);
    TileColumn<Weight> column{};
    for (std::int64_t begin = 0; begin < k; begin += kTileDepth) {
      const auto depth = static_cast<int>(of_tile(k - begin, kTileDepth));
      group.each([&](std::int64_t lane) {
        if (first_column + lane < n) {
          for (int w = 0; w < kTileWords; ++w) {
            if (w * Weight::kEach < depth) {
              column.words[w] = weight.word(begin + w * Weight::kEach, first_column + lane);
            }
          }
        }
        for (std::int64_t i = lane; i < filled * kTileDepth; i += group.lanes()) {
          const std::int64_t row = i / kTileDepth;
          const std::int64_t d = i % kTileDepth;
          tile[i] = row < rows && d < depth ? x[(first_row + row) * k + begin + d] : 0.0F;
        }
      });
      group.each([&](std::int64_t /*lane*/) {
        if (rows == 1) {
          add_tile<1>(tile, depth, column);
        } else {
          add_tile<kTileRows>(tile, depth, column);
        }
      });
    }
    group.each([&](std::int64_t lane) {
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        result[r * kTileColumns + lane] = column.sums[r];
      }
    });
    return {result, kTileColumns, first_row,
            rows,   first_column, of_tile(n - first_column, kTileColumns)};
  }

  template <int kRows>
  __device__ static void add_tile(const float* tile, int depth, TileColumn<Weight>& column) {
#pragma unroll
    for (int w = 0; w < kTileWords; ++w) {
      for (int first = 0; first < Weight::kEach; first += 4) {
        const int step = w * Weight::kEach + first;
        FourFloats some[kRows];
        for (int r = 0; r < kRows; ++r) {
          some[r] = *reinterpret_cast<const FourFloats*>(tile + r * kTileDepth + step);
        }
        for (int i = 0; i < 4; ++i) {
          if (step + i < depth) {  // Adding zeros would turn a sum of −0 into +0.
            const float number = Weight::number(column.words[w], first + i);
            for (int r = 0; r < kRows; ++r) {
              column.sums[r] = fmaf(some[r].values[i], number, column.sums[r]);
            }
          }
        }
      }
    }
  }
};

struct WriteProduct {
  const float* bias;  ///< May be null.
  float* y;
  std::int64_t n;

  __device__ void operator()(BlockGroup& group, const ProductTile& tile) const {
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

/// Marks of a best column: none seen; NaN seen.
constexpr TokenId kNone = -1;
constexpr TokenId kNaN = -2;

struct alignas(8) BestColumn {
  float value;
  TokenId index;

  /// NaN wins; ties go to the smaller index.
  __device__ void meet(const BestColumn& other) {
    if (index == kNaN || other.index == kNone) {
      return;
    }
    if (other.index == kNaN || index == kNone || other.value > value ||
        (other.value == value && other.index < index)) {
      *this = other;
    }
  }
};

/// Divides every product's tiles.
constexpr std::int64_t kBestColumns = 16;

/// best[row][column / kBestColumns]
struct FindBest {
  BestColumn* best;
  std::int64_t groups;

  __device__ void operator()(BlockGroup& group, const ProductTile& tile) const {
    group.each([&](std::int64_t lane) {
      const std::int64_t own = divide_up(tile.columns, kBestColumns);
      for (std::int64_t i = lane; i < tile.rows * own; i += group.lanes()) {
        const std::int64_t row = i / own;
        const std::int64_t begin = i % own * kBestColumns;
        BestColumn found{0.0F, kNone};
        for (std::int64_t c = begin; c < begin + kBestColumns && c < tile.columns; ++c) {
          const float value = tile.values[row * tile.stride + c];
          found.meet({value, value == value ? static_cast<TokenId>(tile.first_column + c) : kNaN});
        }
        best[(tile.first_row + row) * groups + (tile.first_column + begin) / kBestColumns] = found;
      }
    });
  }
};

constexpr std::int64_t kBestLanes = 128;

/// Calls `take` on the first lane with the best.
template <class Take>
__device__ void best_of_lanes(BlockGroup& group, BestColumn* own, const Take& take) {
  for (std::int64_t left = group.lanes() / 2; left > 0; left /= 2) {
    group.each([&](std::int64_t lane) {
      if (lane < left) {
        own[lane].meet(own[lane + left]);
      }
    });
  }
  group.each([&](std::int64_t lane) {
    if (lane == 0) {
      take(own[0]);
    }
  });
}

constexpr std::int64_t kBestLogits = 1024;

/// Block index = row · groups + group.
struct BestOfLogits {
  static constexpr int kAhead = kBestLogits / kBestLanes;
  const float* logits;
  std::int64_t row_step;  ///< Elements between rows.
  std::int64_t columns;
  std::int64_t groups;
  BestColumn* best;

  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<BestColumn>(kBestLanes); }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    BestColumn* const own = group.shared<BestColumn>(kBestLanes);
    const std::int64_t begin = block % groups * kBestLogits;
    const float* const row = logits + block / groups * row_step;
    group.each([&](std::int64_t lane) {
      BestColumn found{0.0F, kNone};
      read_ahead<kAhead>(
          begin + lane, of_tile(columns, begin + kBestLogits), group.lanes(),
          [&](std::int64_t i) { return row[i]; },
          [&](std::int64_t i, float value) {
            found.meet({value, value == value ? static_cast<TokenId>(i) : kNaN});
          });
      own[lane] = found;
    });
    best_of_lanes(group, own, [&](const BestColumn& found) { best[block] = found; });
  }
};

/// One block per row.
struct BestOfRow {
  static constexpr int kAhead = 8;
  const BestColumn* best;
  std::int64_t groups;
  TokenId* tokens;

  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<BestColumn>(kBestLanes); }
  __device__ void operator()(BlockGroup& group, std::int64_t row) const {
    BestColumn* const own = group.shared<BestColumn>(kBestLanes);
    group.each([&](std::int64_t lane) {
      BestColumn found{0.0F, kNone};
      read_ahead<kAhead>(
          lane, groups, group.lanes(), [&](std::int64_t i) { return best[row * groups + i]; },
          [&](std::int64_t /*i*/, const BestColumn& other) { found.meet(other); });
      own[lane] = found;
    });
    best_of_lanes(group, own, [&](const BestColumn& found) {
      tokens[row] = found.index < 0 ? kNoToken : found.index;
    });
  }
};

MatrixProduct library_product(const DeviceWeight& weight, DType result, const void* bias) {
  return {.transpose_b = true,
          .n = weight.padded_rows(),
          .k = weight.padded_columns(),
          .operands = DType::bfloat16,
          .b = weight.data<BFloat16>(),
          .result = result,
          .bias = bias,
          .row_invariant = true};
}

/// The same for all weights of its group.
MatrixProduct group_product(const DeviceWeight& weight) {
  MatrixProduct product = library_product(weight, DType::float32, nullptr);
  product.n = weight.group().rows;
  product.b = weight.group().storage.data();
  return product;
}

const DeviceWeight& device_weight(const PackedWeight& weight) {
  const auto* found = dynamic_cast<const DeviceWeight*>(&weight);
  expect(found != nullptr, "packed weight was made by another kernel set");
  return *found;
}

/// Whether these are all weights of a group, in order, with float32 results.
bool are_a_group(std::span<const Projection> projections) {
  if (projections.size() < 2 || projections.size() > kProductsTogether) {
    return false;
  }
  const DeviceWeight& first = device_weight(projections.front().weight);
  std::int64_t row = 0;
  for (const Projection& one : projections) {
    const DeviceWeight& weight = device_weight(one.weight);
    if (!weight.by_library() || &weight.group() != &first.group() || weight.first_row() != row ||
        one.y.dtype() != DType::float32) {
      return false;
    }
    row += weight.rows();
  }
  return row == first.group().rows;
}

FloatSource source_of(const ConstTensorView& weight) {
  return {weight.raw(), weight.dtype() == DType::bfloat16};
}

}  // namespace

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
                                                         MemoryAccount& account, ProductUse use) {
  expect(weight.shape().rank() == 2 && weight.elements() > 0,
         "pack_weight: weight must be a non-empty matrix");
  expect_floating(weight, "pack_weight weight");
  expect(storage != WeightStorage::int8, "pack_weight: CUDA has no products of int8");
  Buffer copy;
  if (weight.device() != DeviceQueue::kDevice) {
    copy = Buffer(weight.bytes(), account, DeviceQueue::kDevice);
    const TensorView here = copy.view(weight.dtype(), weight.shape());
    copy_tensor(weight, here);
    weight = here;
  }
  const bool by_library = storage == WeightStorage::bfloat16_arithmetic;
  const bool shorts =
      rounds(storage) || (storage == WeightStorage::automatic &&
                          (weight.dtype() == DType::bfloat16 || all_bfloat16(weight)));
  const SourceMatrix source{source_of(weight), weight.dim(0), weight.dim(1)};
  const DeviceWeight* const after = use.after == nullptr ? nullptr : &device_weight(*use.after);
  // Weights whose results would be misaligned for the library stay alone.
  const bool grouped = by_library && source.n % kProductPadding == 0 &&
                       (after == nullptr ? use.group_rows > source.n
                                         : after->group().filled + source.n <= after->group().rows);
  auto packed =
      grouped
          ? std::make_unique<DeviceWeight>(source.n, source.k, use.group_rows, after, account)
          : std::make_unique<DeviceWeight>(
                source.n, source.k, shorts ? DType::bfloat16 : DType::float32, by_library, account);
  if (by_library) {
    launch_elements(queue_, packed->elements() / kProductPadding,
                    PadRows{source.values, packed->data<BFloat16>(), source.n, source.k,
                            packed->padded_columns()},
                    "pack_weight");
    if (!grouped) {
      const Buffer bias(use.bias ? storage_bytes(packed->padded_rows(), DType::float32) : 0,
                        account, DeviceQueue::kDevice);
      prepare_product(library_product(*packed, use.result, use.bias ? bias.data() : nullptr));
    } else if (packed->group().filled == packed->group().rows) {
      prepare_product(group_product(*packed));
    }
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

void CudaKernelSet::prepare_product(const MatrixProduct& product) {
  constexpr std::int64_t kMaxRows = 1024;
  if (prepared_products_
          .insert({product.n, product.k, static_cast<std::int64_t>(product.result),
                   product.bias != nullptr ? 1 : 0})
          .second) {
    queue_.prepare_rows(product, kMaxRows);
  }
}

const void* CudaKernelSet::library_rows(const ConstTensorView& x, const DeviceWeight& weight) {
  if (x.dtype() == DType::bfloat16 && weight.padded_columns() == weight.columns()) {
    return floating(x).data;
  }
  const std::int64_t elements = x.dim(0) * weight.padded_columns();
  auto* const rounded = rounded_input_.at_least<BFloat16>(elements);
  launch_elements(
      queue_, elements / kProductPadding,
      PadRows{floating(x), rounded, x.dim(0), weight.columns(), weight.padded_columns()},
      "invariant_linear");
  return rounded;
}

/// Null for none.
const void* CudaKernelSet::library_bias(const ConstTensorView& bias, const DeviceWeight& weight) {
  if (bias.empty()) {
    return nullptr;
  }
  const float* const values = floats(bias);
  if (reinterpret_cast<std::uintptr_t>(values) % kProductBiasAlignment == 0 &&
      weight.padded_rows() == weight.rows()) {
    return values;
  }
  // The copy's padding is not set; it affects only unused columns.
  auto* const copy = bias_.at_least<float>(weight.padded_rows());
  queue_.copy(bias, TensorView(copy, DType::float32, bias.shape(), device()));
  return copy;
}

void CudaKernelSet::multiply_by_library(const ConstTensorView& x, const DeviceWeight& weight,
                                        const ConstTensorView& bias, DType result, void* y) {
  MatrixProduct product = library_product(weight, result, library_bias(bias, weight));
  prepare_product(product);
  product.m = x.dim(0);
  product.a = library_rows(x, weight);
  product.c = y;
  queue_.multiply(product);
}

void CudaKernelSet::multiply_by_group(const ConstTensorView& x,
                                      std::span<const Projection> projections) {
  const DeviceWeight& first = device_weight(projections.front().weight);
  MatrixProduct product = group_product(first);
  prepare_product(product);
  auto* const sums = padded_results_.at_least<float>(x.dim(0) * product.n);
  product.m = x.dim(0);
  product.a = library_rows(x, first);
  product.c = sums;
  queue_.multiply(product);
  TakeGroup take{sums, product.n, {}};
  for (std::size_t i = 0; i < kProductsTogether; ++i) {
    const Projection& one = projections[std::min(i, projections.size() - 1)];
    take.outputs[i] = {device_weight(one.weight).first_row(), one.weight.rows(),
                       one.bias.empty() ? nullptr : floats(one.bias), floats(one.y)};
  }
  launch_elements(queue_, product.m * product.n / kProductPadding, take, "invariant_linear");
}

template <class Finish>
struct CudaKernelSet::ProductOutput {
  const DeviceWeight* weight;
  Finish finish;
};

/// Calls each `finish` for every tile of x · weightᵀ; one launch for weights of the same storage.
template <class Finish>
void CudaKernelSet::lane_products(const ConstTensorView& x,
                                  std::span<const ProductOutput<Finish>> outputs,
                                  const char* what) {
  using Output = ProductOutput<Finish>;
  const std::int64_t m = x.dim(0);
  const std::int64_t k = x.dim(1);
  while (!outputs.empty()) {
    std::size_t count = 1;
    while (count < std::min(outputs.size(), kProductsTogether) &&
           outputs[0].weight->dtype() == outputs[count].weight->dtype()) {
      ++count;
    }
    const auto some = outputs.first(count);
    outputs = outputs.subspan(count);
    const auto by_columns = [&](const auto& columns_of) {
      launch_together(
          queue_, kTileColumns, some,
          [&](const Output& output) {
            const auto columns = columns_of(*output.weight);
            return ColumnProduct<std::remove_const_t<decltype(columns)>>{floats(x), columns, m,
                                                                         output.weight->rows(), k};
          },
          what);
    };
    if (some[0].weight->dtype() == DType::bfloat16) {
      by_columns([](const DeviceWeight& weight) {
        return RoundedColumns{weight.data<BFloat16>(), weight.rows()};
      });
    } else {
      by_columns([](const DeviceWeight& weight) {
        return FloatColumns{weight.data<float>(), weight.rows()};
      });
    }
  }
}

void CudaKernelSet::invariant_linears(ConstTensorView x, std::span<const Projection> projections) {
  const std::int64_t m = x.dim(0);
  for (const auto& [weight, bias, y] : projections) {
    expect_shape(x, Shape{m, weight.columns()}, "invariant_linear x");
    expect_shape(y, Shape{m, weight.rows()}, "invariant_linear y");
    if (!bias.empty()) {
      expect_shape(bias, Shape{weight.rows()}, "invariant_linear bias");
      expect(y.dtype() == DType::float32, "invariant_linear: a bias needs float32 sums");
    }
  }
  if (m == 0) {
    return;
  }
  if (are_a_group(projections)) {
    return multiply_by_group(x, projections);
  }
  std::vector<ProductOutput<WriteProduct>> outputs;
  for (const auto& [packed, bias, y] : projections) {
    const DeviceWeight& weight = device_weight(packed);
    const std::int64_t n = weight.rows();
    if (!weight.by_library()) {
      outputs.push_back({&weight, {bias.empty() ? nullptr : floats(bias), floats(y), n}});
    } else if (weight.padded_rows() == n) {
      multiply_by_library(x, weight, bias, y.dtype(), floating(y).data);
    } else {
      void* const padded = padded_results_.at_least<std::byte>(
          static_cast<std::int64_t>(storage_bytes(m * weight.padded_rows(), y.dtype())));
      multiply_by_library(x, weight, bias, y.dtype(), padded);
      launch_elements(
          queue_, m * n,
          TakeColumns{{padded, y.dtype() == DType::bfloat16}, weight.padded_rows(), floating(y), n},
          "invariant_linear");
    }
  }
  lane_products<WriteProduct>(x, outputs, "invariant_linear");
}

void CudaKernelSet::invariant_argmax(ConstTensorView hidden, const PackedWeight& head,
                                     TensorView tokens) {
  const std::int64_t m = hidden.dim(0);
  expect_shape(hidden, Shape{m, head.columns()}, "invariant_argmax hidden");
  expect_shape(tokens, Shape{m}, "invariant_argmax tokens");
  if (m == 0) {
    return;
  }
  const DeviceWeight& weight = device_weight(head);
  const std::int64_t each = weight.by_library() ? kBestLogits : kBestColumns;
  const std::int64_t groups = divide_up(head.rows(), each);
  auto* const best = best_columns_.at_least<BestColumn>(m * groups);
  if (weight.by_library()) {
    const std::int64_t row_step = weight.padded_rows();
    const std::int64_t chunk = std::min(m, kDeviceArgmaxRows);
    auto* const logits = padded_results_.at_least<float>(chunk * row_step);
    for (std::int64_t begin = 0; begin < m; begin += chunk) {
      const std::int64_t rows = std::min(chunk, m - begin);
      multiply_by_library(hidden.rows(begin, begin + rows), weight, {}, DType::float32, logits);
      queue_.launch(rows * groups, kBestLanes,
                    BestOfLogits{logits, row_step, head.rows(), groups, best + begin * groups},
                    "invariant_argmax");
    }
  } else {
    const ProductOutput<FindBest> output{&weight, {best, groups}};
    lane_products<FindBest>(hidden, {&output, 1}, "invariant_argmax");
  }
  queue_.launch(m, kBestLanes, BestOfRow{best, groups, indices(tokens)}, "invariant_argmax");
}

}  // namespace jforge
