/// Matrix products: cuBLASLt's for training, our own batch-invariant one for decoding, where every
/// element is accumulated over K in ascending order by FMA and never depends on how many rows there
/// are.

#include <string>

#include "model/kernels/cuda/column_sums.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

namespace {

/// A product over no steps.
struct EmptySums {
  FloatSource bias;  ///< No data: zero.
  FloatTarget c;
  std::int64_t columns;
  JFORGE_DEVICE void operator()(std::int64_t i) const {
    c.set(i, bias.data == nullptr ? 0.0F : bias[i % columns]);
  }
};

struct WidenBias {
  FloatSource bias;
  float* widened;
  JFORGE_DEVICE void operator()(std::int64_t i) const { widened[i] = bias[i]; }
};

struct BiasTerm {
  FloatSource y_gradient;
  std::int64_t columns;
  JFORGE_DEVICE float operator()(std::int64_t row, std::int64_t column) const {
    return y_gradient[row * columns + column];
  }
};

/// packed [K][N] from weight [N][K].
struct TransposeWeight {
  const float* weight;
  float* packed;
  std::int64_t n;
  std::int64_t k;
  JFORGE_DEVICE void operator()(std::int64_t i) const { packed[i] = weight[i % n * k + i / n]; }
};

constexpr std::int64_t kTileColumns = 64;  ///< Lanes of a block: one output column each.
constexpr std::int64_t kTileRows = 8;
constexpr std::int64_t kTileDepth = 64;

/// Sums of one lane's column for the rows of a tile.
struct RowSums {
  float values[kTileRows];
};

/// x [M, K] times a packed weight, in tiles of kTileRows by kTileColumns.
struct InvariantTiles {
  const float* x;
  const float* weight;
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;

  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t column_tiles() const {
    return (n + kTileColumns - 1) / kTileColumns;
  }
  [[nodiscard]] std::int64_t blocks() const { return divide_up(m, kTileRows) * column_tiles(); }
  [[nodiscard]] static std::int64_t shared_bytes() {
    return shared_size<float>(kTileRows * kTileDepth);
  }
  [[nodiscard]] JFORGE_DEVICE std::int64_t row(std::int64_t block) const {
    return block / column_tiles() * kTileRows;
  }
  [[nodiscard]] JFORGE_DEVICE std::int64_t column(std::int64_t block) const {
    return block % column_tiles() * kTileColumns;
  }
  [[nodiscard]] JFORGE_DEVICE std::int64_t rows_of(std::int64_t block) const {
    const std::int64_t left = m - row(block);
    return left < kTileRows ? left : kTileRows;
  }

  template <class Group, class Sums>
  JFORGE_DEVICE void compute(Group& group, std::int64_t block, float* tile, Sums& sums) const {
    const std::int64_t first_row = row(block);
    for (std::int64_t begin = 0; begin < k; begin += kTileDepth) {
      const std::int64_t depth = k - begin < kTileDepth ? k - begin : kTileDepth;
      group.each([&](std::int64_t lane) {
        for (std::int64_t i = lane; i < kTileRows * kTileDepth; i += group.lanes()) {
          const std::int64_t r = i / kTileDepth;
          const std::int64_t d = i % kTileDepth;
          tile[i] = first_row + r < m && d < depth ? x[(first_row + r) * k + begin + d] : 0.0F;
        }
      });
      group.each([&](std::int64_t lane) {
        const std::int64_t at = column(block) + lane;
        if (at >= n) {
          return;
        }
        RowSums& own = sums[lane];
        for (std::int64_t d = 0; d < depth; ++d) {
          const float w = weight[(begin + d) * n + at];
          for (std::int64_t r = 0; r < kTileRows; ++r) {
            own.values[r] = fmaf(tile[r * kTileDepth + d], w, own.values[r]);
          }
        }
      });
    }
  }
};

struct InvariantLinear {
  InvariantTiles tiles;
  const float* bias;  ///< May be null.
  float* y;

  [[nodiscard]] std::int64_t shared_bytes() const { return InvariantTiles::shared_bytes(); }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t block) const {
    float* const tile = group.template shared<float>(kTileRows * kTileDepth);
    typename Group::template PerLane<RowSums> sums(group);
    tiles.compute(group, block, tile, sums);
    group.each([&](std::int64_t lane) {
      const std::int64_t at = tiles.column(block) + lane;
      if (at >= tiles.n) {
        return;
      }
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        if (r < tiles.rows_of(block)) {
          const float value = sums[lane].values[r];
          y[(tiles.row(block) + r) * tiles.n + at] = bias == nullptr ? value : value + bias[at];
        }
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

/// Best column of every tile: best[row][column tile].
struct BestOfTiles {
  InvariantTiles tiles;
  BestColumn* best;

  [[nodiscard]] std::int64_t shared_bytes() const {
    return InvariantTiles::shared_bytes() + shared_size<float>(kTileRows * kTileColumns);
  }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t block) const {
    float* const tile = group.template shared<float>(kTileRows * kTileDepth);
    float* const logits = group.template shared<float>(kTileRows * kTileColumns);
    typename Group::template PerLane<RowSums> sums(group);
    tiles.compute(group, block, tile, sums);
    group.each([&](std::int64_t lane) {
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        logits[r * kTileColumns + lane] = sums[lane].values[r];
      }
    });
    group.each([&](std::int64_t lane) {
      if (lane >= tiles.rows_of(block)) {
        return;
      }
      const std::int64_t first = tiles.column(block);
      const std::int64_t count = tiles.n - first < kTileColumns ? tiles.n - first : kTileColumns;
      BestColumn own{0.0F, kNone};
      for (std::int64_t i = 0; i < count; ++i) {
        const float value = logits[lane * kTileColumns + i];
        own.meet({value, value == value ? first + i : kNaN});
      }
      best[(tiles.row(block) + lane) * tiles.column_tiles() + block % tiles.column_tiles()] = own;
    });
  }
};

constexpr std::int64_t kBestLanes = 128;

/// Best of a row's tiles; one block a row.
struct BestOfRow {
  const BestColumn* best;
  std::int64_t tiles;
  std::int64_t* indices;

  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<BestColumn>(kBestLanes); }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t row) const {
    BestColumn* const own = group.template shared<BestColumn>(kBestLanes);
    group.each([&](std::int64_t lane) {
      BestColumn found{0.0F, kNone};
      for (std::int64_t tile = lane; tile < tiles; tile += group.lanes()) {
        found.meet(best[row * tiles + tile]);
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
      indices[row] = found.index;
    });
  }
};

const DeviceWeight& device_weight(const PackedWeight& weight) {
  const auto* found = dynamic_cast<const DeviceWeight*>(&weight);
  expect(found != nullptr, "packed weight was made by another kernel set");
  return *found;
}

}  // namespace

void CudaKernelSet::product(const MatrixProduct& product) {
  if (product.m == 0 || product.n == 0) {
    return;
  }
  if (product.k > 0) {
    queue_.multiply(product);
  } else if (!product.accumulate) {
    const bool narrow = product.result == DType::bfloat16;
    launch_elements(queue_, product.m * product.n,
                    EmptySums{{product.bias, narrow}, {product.c, narrow}, product.n},
                    "empty product");
  }
}

void CudaKernelSet::linear(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                           TensorView y) {
  const auto [m, n, k] = check_linear(x, weight, y);
  const DType operands = product_type(x, weight, y, "linear");
  const void* added = nullptr;
  if (!bias.empty()) {
    expect_shape(bias, Shape{n}, "linear bias");
    added = floating(bias).data;
    if (bias.dtype() != y.dtype()) {
      // What rounds once cannot be fused with what has more digits than the result.
      expect(y.dtype() == DType::float32, "linear: a float32 bias needs a float32 result");
      auto* const widened = bias_.at_least<float>(n);
      launch_elements(queue_, n, WidenBias{floating(bias), widened}, "linear bias");
      added = widened;
    }
  }
  product({.transpose_b = true,
           .m = m,
           .n = n,
           .k = k,
           .operands = operands,
           .a = floating(x).data,
           .b = floating(weight).data,
           .result = y.dtype(),
           .c = floating(y).data,
           .bias = added});
}

void CudaKernelSet::linear_backward_input(ConstTensorView y_gradient, ConstTensorView weight,
                                          TensorView x_gradient, bool accumulate) {
  const auto [m, n, k] = check_linear(x_gradient, weight, y_gradient);
  product({.m = m,
           .n = k,
           .k = n,
           .operands = product_type(y_gradient, weight, x_gradient, "linear_backward_input"),
           .a = floating(y_gradient).data,
           .b = floating(weight).data,
           .result = x_gradient.dtype(),
           .c = floating(x_gradient).data,
           .accumulate = accumulate});
}

void CudaKernelSet::linear_backward_weight(ConstTensorView y_gradient, ConstTensorView x,
                                           TensorView weight_gradient, TensorView bias_gradient) {
  const auto [m, n, k] = check_linear(x, weight_gradient, y_gradient);
  product({.transpose_a = true,
           .m = n,
           .n = k,
           .k = m,
           .operands = product_type(y_gradient, x, weight_gradient, "linear_backward_weight"),
           .a = floating(y_gradient).data,
           .b = floating(x).data,
           .c = floats(weight_gradient),
           .accumulate = true});
  if (bias_gradient.empty()) {
    return;
  }
  expect_shape(bias_gradient, Shape{n}, "linear bias_gradient");
  add_column_sums(queue_, partials_, m, n, BiasTerm{floating(y_gradient), n}, floats(bias_gradient),
                  "linear bias_gradient");
}

std::unique_ptr<PackedWeight> CudaKernelSet::pack_weight(ConstTensorView weight,
                                                         WeightStorage storage,
                                                         MemoryAccount& account) {
  expect(weight.shape().rank() == 2 && weight.elements() > 0,
         "pack_weight: weight must be a non-empty matrix");
  const std::int64_t n = weight.dim(0);
  const std::int64_t k = weight.dim(1);
  auto packed = std::make_unique<DeviceWeight>(n, k, account);
  Buffer rounded;
  if (storage == WeightStorage::bfloat16_arithmetic) {
    throw ConfigError(
        "model.decode_weights = \"bfloat16_arithmetic\" is there on the CPU only; set \"bfloat16\" "
        "for a device");
  }
  if (storage == WeightStorage::bfloat16) {
    // The values that the CPU's kernels compute with, though stored as float32 here.
    rounded = Buffer(weight.bytes(), account);
    const TensorView values = rounded.floats(weight.shape());
    copy_tensor(weight, values);
    for (float& value : values.span<float>()) {
      value = to_float(to_bfloat16(value));
    }
    weight = values;
  }
  Buffer copy;
  if (weight.device() != DeviceQueue::kDevice) {
    copy = Buffer(weight.bytes(), account, DeviceQueue::kDevice);
    copy_tensor(weight, copy.floats(weight.shape()));
    weight = copy.floats(weight.shape());
  }
  launch_elements(queue_, n * k, TransposeWeight{floats(weight), packed->data(), n, k},
                  "pack_weight");
  return packed;
}

void CudaKernelSet::invariant_linear(ConstTensorView x, const PackedWeight& weight,
                                     ConstTensorView bias, TensorView y) {
  const std::int64_t m = x.dim(0);
  const std::int64_t n = weight.rows();
  const std::int64_t k = weight.columns();
  expect_shape(x, Shape{m, k}, "invariant_linear x");
  expect_shape(y, Shape{m, n}, "invariant_linear y");
  if (!bias.empty()) {
    expect_shape(bias, Shape{n}, "invariant_linear bias");
  }
  const InvariantTiles tiles{floats(x), device_weight(weight).data(), m, n, k};
  queue_.launch(tiles.blocks(), kTileColumns,
                InvariantLinear{tiles, bias.empty() ? nullptr : floats(bias), floats(y)},
                "invariant_linear");
}

void CudaKernelSet::invariant_argmax(ConstTensorView hidden, const PackedWeight& head,
                                     std::span<TokenId> tokens) {
  const auto m = static_cast<std::int64_t>(tokens.size());
  expect_shape(hidden, Shape{m, head.columns()}, "invariant_argmax hidden");
  if (m == 0) {
    return;
  }
  const InvariantTiles tiles{floats(hidden), device_weight(head).data(), m, head.rows(),
                             head.columns()};
  auto* const best = partials_.at_least<BestColumn>(m * (tiles.column_tiles() + 1));
  // The rows' winners follow the tiles'; an index takes no more room than a BestColumn.
  auto* const winners = reinterpret_cast<std::int64_t*>(best + m * tiles.column_tiles());
  queue_.launch(tiles.blocks(), kTileColumns, BestOfTiles{tiles, best}, "invariant_argmax");
  queue_.launch(m, kBestLanes, BestOfRow{best, tiles.column_tiles(), winners}, "invariant_argmax");
  std::vector<std::int64_t> indices(tokens.size());
  queue_.download(indices.data(), winners, indices.size() * sizeof(std::int64_t));
  for (std::size_t row = 0; row < indices.size(); ++row) {
    if (indices[row] == kNaN) {
      throw NumericalError("logits of decoding row " + std::to_string(row) +
                           " hold NaN: the model's weights are damaged or training diverged");
    }
    tokens[row] = static_cast<TokenId>(indices[row]);
  }
}

}  // namespace jforge
