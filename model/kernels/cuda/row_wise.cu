/// Norm, rotary, SwiGLU, embedding. Reductions are trees of fixed shape, so that bits repeat.

#include <algorithm>
#include <cmath>

#include "model/kernels/cuda/column_sums.h"
#include "model/kernels/cuda/cuda_decode_plan_internal.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

namespace {

constexpr std::int64_t kRowLanes = 256;

std::int64_t length(std::size_t size) { return static_cast<std::int64_t>(size); }

struct CopyTableRow {
  const TokenId* tokens;
  FloatSource table;
  FloatTarget output;
  std::int64_t columns;
  JFORGE_DEVICE void operator()(std::int64_t i) const {
    output.set(i, table[tokens[i / columns] * columns + i % columns]);
  }
};

/// Adds the output rows of one token, in ascending order, to its row of the table: one block for
/// each token that occurs.
struct AddTokenRows {
  const std::int64_t* order;   ///< Rows sorted by token, then by row.
  const std::int64_t* begins;  ///< [distinct + 1] where each token's rows begin in `order`.
  const TokenId* tokens;
  FloatSource output_gradient;
  float* table_gradient;
  std::int64_t columns;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t block) const {
    group.each([&](std::int64_t lane) {
      const std::int64_t target = tokens[order[begins[block]]] * columns;
      for (std::int64_t column = lane; column < columns; column += group.lanes()) {
        float sum = table_gradient[target + column];
        for (std::int64_t i = begins[block]; i < begins[block + 1]; ++i) {
          sum += output_gradient[order[i] * columns + column];
        }
        table_gradient[target + column] = sum;
      }
    });
  }
};

struct NormRow {
  FloatSource x;
  FloatSource weight;
  float epsilon;
  FloatTarget y;
  float* inverse_rms;  ///< May be null.
  std::int64_t columns;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t row) const {
    const std::int64_t at = row * columns;
    const float squares = group.template sum<float>([&](std::int64_t lane) {
      float sum = 0;
      for (std::int64_t i = lane; i < columns; i += group.lanes()) {
        sum = fmaf(x[at + i], x[at + i], sum);
      }
      return sum;
    });
    const float inverse = 1.0F / sqrtf(squares / static_cast<float>(columns) + epsilon);
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < columns; i += group.lanes()) {
        y.set(at + i, x[at + i] * inverse * weight[i]);
      }
      if (lane == 0 && inverse_rms != nullptr) {
        inverse_rms[row] = inverse;
      }
    });
  }
};

/// dx += r·dy·w − x·(r³/C)·Σ dy·w·x
struct NormRowBackward {
  FloatSource y_gradient;
  FloatSource x;
  FloatSource weight;
  const float* inverse_rms;
  FloatTarget x_gradient;
  std::int64_t columns;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t row) const {
    const std::int64_t at = row * columns;
    const float projection = group.template sum<float>([&](std::int64_t lane) {
      float sum = 0;
      for (std::int64_t i = lane; i < columns; i += group.lanes()) {
        sum = fmaf(y_gradient[at + i] * weight[i], x[at + i], sum);
      }
      return sum;
    });
    const float inverse = inverse_rms[row];
    const float factor = projection * inverse * inverse * inverse / static_cast<float>(columns);
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = lane; i < columns; i += group.lanes()) {
        const float added = inverse * (y_gradient[at + i] * weight[i]) - x[at + i] * factor;
        x_gradient.set(at + i, x_gradient[at + i] + added);
      }
    });
  }
};

/// A row's part of the norm weight's gradient.
struct NormWeightTerm {
  FloatSource y_gradient;
  FloatSource x;
  const float* inverse_rms;
  std::int64_t columns;
  JFORGE_DEVICE float operator()(std::int64_t row, std::int64_t column) const {
    return inverse_rms[row] * (y_gradient[row * columns + column] * x[row * columns + column]);
  }
};

/// Rotates pair (i, i + D/2) of one head of one row; `direction` −1 is the inverse.
struct RotatePair {
  FloatTarget x;
  const std::int32_t* positions;
  const float* cosines;
  const float* sines;
  std::int64_t heads;
  std::int64_t half;
  float direction;
  JFORGE_DEVICE void operator()(std::int64_t pair) const {
    const std::int64_t i = pair % half;
    const std::int64_t head = pair / half;  // Of all rows.
    const std::int64_t angle = std::int64_t{positions[head / heads]} * half + i;
    const float cosine = cosines[angle];
    const float sine = direction * sines[angle];
    const std::int64_t low = head * 2 * half + i;
    const std::int64_t high = low + half;
    const float first = x[low];
    const float second = x[high];
    x.set(low, first * cosine - second * sine);
    x.set(high, second * cosine + first * sine);
  }
};

struct Swiglu {
  FloatSource gate;
  FloatSource up;
  FloatTarget y;
  JFORGE_DEVICE void operator()(std::int64_t i) const {
    const float g = gate[i];
    y.set(i, g / (1.0F + expf(-g)) * up[i]);
  }
};

struct SwigluBackward {
  FloatSource y_gradient;
  FloatSource gate;
  FloatSource up;
  FloatTarget gate_gradient;
  FloatTarget up_gradient;
  JFORGE_DEVICE void operator()(std::int64_t i) const {
    const float dy = y_gradient[i];
    const float g = gate[i];
    const float sigmoid = 1.0F / (1.0F + expf(-g));
    // The outputs may be the inputs' places: everything is read first.
    const float dg = dy * up[i] * sigmoid * (1.0F + g * (1.0F - sigmoid));
    const float du = dy * g * sigmoid;
    gate_gradient.set(i, dg);
    up_gradient.set(i, du);
  }
};

struct Convert {
  FloatSource x;
  FloatTarget y;
  JFORGE_DEVICE void operator()(std::int64_t i) const { y.set(i, x[i]); }
};

struct Add {
  FloatSource x;
  FloatTarget y;
  JFORGE_DEVICE void operator()(std::int64_t i) const { y.set(i, y[i] + x[i]); }
};

/// Moves kept rows to the front. A lane owns a column and goes through the rows in order, so that
/// nothing is overwritten before it is read; it reads several rows before it writes them, so as not
/// to wait for each.
struct KeepRows {
  const std::int32_t* rows;
  std::int64_t count;
  FloatTarget x;
  std::int64_t columns;
  JFORGE_DEVICE void operator()(std::int64_t column) const {
    constexpr std::int64_t kAtOnce = 8;
    float read[kAtOnce] = {};
    for (std::int64_t begin = 0; begin < count; begin += kAtOnce) {
      for (std::int64_t i = 0; i < kAtOnce; ++i) {
        if (begin + i < count) {
          read[i] = x[std::int64_t{rows[begin + i]} * columns + column];
        }
      }
      for (std::int64_t i = 0; i < kAtOnce; ++i) {
        if (begin + i < count) {
          x.set((begin + i) * columns + column, read[i]);
        }
      }
    }
  }
};

}  // namespace

void CudaKernelSet::embedding(const PlannedRows& rows, ConstTensorView table, TensorView output) {
  const std::int64_t columns = table.dim(1);
  expect_shape(output, Shape{rows.tokens.elements(), columns}, "embedding output");
  expect_tokens(rows, table.dim(0));
  expect_embedding_types(table, output);
  launch_elements(queue_, output.elements(),
                  CopyTableRow{indices(rows.tokens), floating(table), floating(output), columns},
                  "embedding");
}

void CudaKernelSet::embedding_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                                       TensorView table_gradient) {
  const std::int64_t columns = table_gradient.dim(1);
  expect_shape(output_gradient, Shape{plan.num_rows(), columns}, "embedding output_gradient");
  expect_tokens(plan.rows(), table_gradient.dim(0));
  const auto& [order, begins, distinct] = on_device(plan).token_rows();
  queue_.launch(distinct, kRowLanes,
                AddTokenRows{order, begins, indices(plan.rows().tokens), floating(output_gradient),
                             floats(table_gradient), columns},
                "embedding_backward");
}

void CudaKernelSet::rms_norm(ConstTensorView x, ConstTensorView weight, float epsilon, TensorView y,
                             TensorView inverse_rms) {
  const std::int64_t rows = x.dim(0);
  const std::int64_t columns = x.dim(1);
  expect_shape(weight, Shape{columns}, "rms_norm weight");
  expect_shape(y, x.shape(), "rms_norm y");
  if (!inverse_rms.empty()) {
    expect_shape(inverse_rms, Shape{rows}, "rms_norm inverse_rms");
  }
  queue_.launch(rows, kRowLanes,
                NormRow{floating(x), floating(weight), epsilon, floating(y),
                        inverse_rms.empty() ? nullptr : floats(inverse_rms), columns},
                "rms_norm");
}

void CudaKernelSet::rms_norm_backward(ConstTensorView y_gradient, ConstTensorView x,
                                      ConstTensorView weight, ConstTensorView inverse_rms,
                                      TensorView x_gradient, TensorView weight_gradient) {
  const std::int64_t rows = x.dim(0);
  const std::int64_t columns = x.dim(1);
  expect_shape(y_gradient, x.shape(), "rms_norm y_gradient");
  expect_shape(weight, Shape{columns}, "rms_norm weight");
  expect_shape(inverse_rms, Shape{rows}, "rms_norm inverse_rms");
  expect_shape(x_gradient, x.shape(), "rms_norm x_gradient");
  expect_shape(weight_gradient, Shape{columns}, "rms_norm weight_gradient");
  queue_.launch(rows, kRowLanes,
                NormRowBackward{floating(y_gradient), floating(x), floating(weight),
                                floats(inverse_rms), floating(x_gradient), columns},
                "rms_norm_backward");
  add_column_sums(queue_, partials_, rows, columns,
                  NormWeightTerm{floating(y_gradient), floating(x), floats(inverse_rms), columns},
                  floats(weight_gradient), "rms_norm_backward weight");
}

const CudaKernelSet::DeviceRotary& CudaKernelSet::rotary_table(const RotarySettings& settings,
                                                               std::int64_t half,
                                                               std::int64_t positions) {
  auto found =
      std::find_if(rotary_tables_.begin(), rotary_tables_.end(), [&](const DeviceRotary& rotary) {
        return rotary.table.settings == settings && rotary.table.half == half;
      });
  if (found == rotary_tables_.end()) {
    rotary_tables_.emplace_back();
    found = rotary_tables_.end() - 1;
    found->table.settings = settings;
    found->table.half = half;
  }
  if (found->table.grow(positions)) {
    const auto to_device = [&](const std::vector<float>& values) {
      const Shape shape{length(values.size())};
      Buffer buffer(values.size() * sizeof(float), account_, DeviceQueue::kDevice);
      copy_tensor(ConstTensorView(values.data(), shape), buffer.floats(shape));
      return buffer;
    };
    found->cosines = to_device(found->table.cosines);
    found->sines = to_device(found->table.sines);
  }
  return *found;
}

void CudaKernelSet::rotate_rows(TensorView x, const PlannedRows& rows,
                                const RotarySettings& settings, bool backward) {
  check_rotary(x, rows);
  const std::int64_t half = x.dim(2) / 2;
  const DeviceRotary& rotary = rotary_table(settings, half, rows.position_limit);
  launch_elements(queue_, x.elements() / 2,
                  RotatePair{floating(x), indices(rows.positions),
                             reinterpret_cast<const float*>(rotary.cosines.data()),
                             reinterpret_cast<const float*>(rotary.sines.data()), x.dim(1), half,
                             backward ? -1.0F : 1.0F},
                  "rotary");
}

void CudaKernelSet::rotary(TensorView x, const PlannedRows& rows, const RotarySettings& settings) {
  rotate_rows(x, rows, settings, false);
}

void CudaKernelSet::rotary_backward(TensorView x_gradient, const PlannedRows& rows,
                                    const RotarySettings& settings) {
  rotate_rows(x_gradient, rows, settings, true);
}

void CudaKernelSet::swiglu(ConstTensorView gate, ConstTensorView up, TensorView y) {
  expect_shape(up, gate.shape(), "swiglu up");
  expect_shape(y, gate.shape(), "swiglu y");
  launch_elements(queue_, gate.elements(), Swiglu{floating(gate), floating(up), floating(y)},
                  "swiglu");
}

void CudaKernelSet::swiglu_backward(ConstTensorView y_gradient, ConstTensorView gate,
                                    ConstTensorView up, TensorView gate_gradient,
                                    TensorView up_gradient) {
  expect_shape(y_gradient, gate.shape(), "swiglu y_gradient");
  expect_shape(up, gate.shape(), "swiglu up");
  expect_shape(gate_gradient, gate.shape(), "swiglu gate_gradient");
  expect_shape(up_gradient, gate.shape(), "swiglu up_gradient");
  launch_elements(queue_, gate.elements(),
                  SwigluBackward{floating(y_gradient), floating(gate), floating(up),
                                 floating(gate_gradient), floating(up_gradient)},
                  "swiglu_backward");
}

void CudaKernelSet::add(ConstTensorView x, TensorView y) {
  expect_shape(y, x.shape(), "add y");
  launch_elements(queue_, x.elements(), Add{floating(x), floating(y)}, "add");
}

void CudaKernelSet::convert(ConstTensorView x, TensorView y) {
  expect_shape(y, x.shape(), "convert y");
  launch_elements(queue_, x.elements(), Convert{floating(x), floating(y)}, "convert");
}

void CudaKernelSet::keep_rows(const DecodePlan& plan, TensorView x) {
  expect_kept_rows(plan, x);
  const std::int64_t columns = x.dim(1);
  const std::int64_t count = plan.num_rows(DecodeRows::kept);
  launch_elements(queue_, count == 0 ? 0 : columns,
                  KeepRows{on_device(plan).kept(), count, floating(x), columns}, "keep_rows");
}

}  // namespace jforge
