#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

namespace {

/// Minimum elements for a parallel region.
constexpr std::int64_t kParallelElements = 1 << 16;
/// Columns of a unit of work if rows must stay in order.
constexpr std::int64_t kColumnBlock = 64;

std::int64_t length(std::size_t size) { return static_cast<std::int64_t>(size); }

/// Elements widened at once; several runs fit the L1 cache.
constexpr std::int64_t kRun = 1024;
using Run = float[kRun];

template <class Body>
void for_runs(std::int64_t total, Body body) {
  const std::int64_t runs = (total + kRun - 1) / kRun;
  parallel_for(total > kParallelElements, runs,
               [&](std::int64_t run) { body(run * kRun, std::min(kRun, total - run * kRun)); });
}

}  // namespace

const float* CpuKernelSet::all_floats(const ConstTensorView& view, Scratch& scratch) const {
  if (view.dtype() == DType::float32) {
    return view.data<float>();
  }
  float* const widened = scratch.at_least(view.elements());
  const auto* source = view.data<BFloat16>();
  for_runs(view.elements(), [&](std::int64_t begin, std::int64_t count) {
    vector_.widen(source + begin, widened + begin, count);
  });
  return widened;
}

float* CpuKernelSet::zeroed_floats(const TensorView& view, Scratch& scratch) {
  float* const sums =
      view.dtype() == DType::float32 ? view.data<float>() : scratch.at_least(view.elements());
  std::fill_n(sums, view.elements(), 0.0F);
  return sums;
}

void CpuKernelSet::round_all(const float* values, const TensorView& view) const {
  if (view.dtype() == DType::float32) {
    return;
  }
  for_runs(view.elements(), [&](std::int64_t begin, std::int64_t count) {
    round_floats(vector_, values + begin, view, begin, count);
  });
}

void CpuKernelSet::embedding(const PlannedRows& planned, ConstTensorView table, TensorView output) {
  const std::span<const TokenId> tokens = planned.tokens.span<TokenId>();
  const std::int64_t rows = length(tokens.size());
  const std::int64_t columns = table.dim(1);
  expect_shape(output, Shape{rows, columns}, "embedding output");
  expect_tokens(planned, table.dim(0));
  expect_embedding_types(table, output);
  for (std::int64_t t = 0; t < rows; ++t) {
    const std::int64_t from = tokens[static_cast<std::size_t>(t)] * columns;
    if (output.dtype() == DType::bfloat16) {
      std::copy_n(table.data<BFloat16>() + from, columns, output.data<BFloat16>() + t * columns);
    } else {
      copy_floats(vector_, table, from, columns, output.data<float>() + t * columns);
    }
  }
}

void CpuKernelSet::embedding_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                                      TensorView table_gradient) {
  const std::span<const TokenId> tokens = plan.rows().tokens.span<TokenId>();
  const std::int64_t rows = length(tokens.size());
  const std::int64_t columns = table_gradient.dim(1);
  expect_shape(output_gradient, Shape{rows, columns}, "embedding output_gradient");
  expect_floating(output_gradient, "embedding output_gradient");
  expect_tokens(plan.rows(), table_gradient.dim(0));
  float* target = table_gradient.data<float>();
  const std::int64_t blocks = (columns + kColumnBlock - 1) / kColumnBlock;
  parallel_for(rows * columns > kParallelElements, blocks, [&](std::int64_t block) {
    const std::int64_t begin = block * kColumnBlock;
    const std::int64_t width = std::min(kColumnBlock, columns - begin);
    float widened[kColumnBlock];
    for (std::int64_t t = 0; t < rows; ++t) {
      vector_.add(floats_of(vector_, output_gradient, t * columns + begin, width, widened),
                  target + tokens[static_cast<std::size_t>(t)] * columns + begin, width);
    }
  });
}

/// row_at(first element, scratch of 2 · columns) returns a row as float32.
template <class RowAt>
void CpuKernelSet::norm_rows(const ConstTensorView& x, const ConstTensorView& weight, float epsilon,
                             const TensorView& y, const TensorView& inverse_rms,
                             const RowAt& row_at) {
  const std::int64_t rows = x.dim(0);
  const std::int64_t columns = x.dim(1);
  expect_shape(weight, Shape{columns}, "rms_norm weight");
  expect_shape(y, x.shape(), "rms_norm y");
  expect_floating(x, "rms_norm x");
  expect_floating(weight, "rms_norm weight");
  expect_floating(y, "rms_norm y");
  if (!inverse_rms.empty()) {
    expect_shape(inverse_rms, Shape{rows}, "rms_norm inverse_rms");
  }
  const float* scale = floats_of(vector_, weight, 0, columns, widened_.at_least(columns));
  float* kept = inverse_rms.empty() ? nullptr : inverse_rms.data<float>();
  reserve_threads(2 * columns);
  parallel_for(rows * columns > kParallelElements, rows, [&](std::int64_t t) {
    float* const scratch = thread_floats(2 * columns);
    const std::int64_t at = t * columns;
    const float* row = row_at(at, scratch);
    float* const result = room_for(y, at, scratch + columns);
    const float mean = vector_.dot(row, row, columns) / static_cast<float>(columns);
    const float inverse = 1.0F / std::sqrt(mean + epsilon);
    vector_.rms_apply(row, scale, inverse, result, columns);
    round_floats(vector_, result, y, at, columns);
    if (kept != nullptr) {
      kept[t] = inverse;
    }
  });
}

void CpuKernelSet::rms_norm(ConstTensorView x, ConstTensorView weight, float epsilon, TensorView y,
                            TensorView inverse_rms) {
  norm_rows(x, weight, epsilon, y, inverse_rms, [&](std::int64_t at, float* scratch) {
    return floats_of(vector_, x, at, x.dim(1), scratch);
  });
}

void CpuKernelSet::add_rms_norm(ConstTensorView x, TensorView stream, ConstTensorView weight,
                                float epsilon, TensorView y, TensorView inverse_rms) {
  expect_shape(stream, x.shape(), "add_rms_norm stream");
  expect_floating(x, "add_rms_norm x");
  norm_rows(stream, weight, epsilon, y, inverse_rms, [&](std::int64_t at, float* scratch) {
    const std::int64_t columns = x.dim(1);
    float* const sum = floats_of(vector_, stream, at, columns, scratch);
    vector_.add(floats_of(vector_, x, at, columns, scratch + columns), sum, columns);
    round_floats(vector_, sum, stream, at, columns);
    // The sum as rounded by add().
    return floats_of(vector_, stream, at, columns, scratch);
  });
}

void CpuKernelSet::rms_norm_backward(ConstTensorView y_gradient, ConstTensorView x,
                                     ConstTensorView weight, ConstTensorView inverse_rms,
                                     TensorView x_gradient, TensorView weight_gradient) {
  const std::int64_t rows = x.dim(0);
  const std::int64_t columns = x.dim(1);
  expect_shape(y_gradient, x.shape(), "rms_norm y_gradient");
  expect_shape(weight, Shape{columns}, "rms_norm weight");
  expect_shape(inverse_rms, Shape{rows}, "rms_norm inverse_rms");
  expect_shape(x_gradient, x.shape(), "rms_norm x_gradient");
  expect_shape(weight_gradient, Shape{columns}, "rms_norm weight_gradient");
  expect_floating(y_gradient, "rms_norm y_gradient");
  expect_floating(x, "rms_norm x");
  expect_floating(weight, "rms_norm weight");
  expect_floating(x_gradient, "rms_norm x_gradient");
  const float* scale = floats_of(vector_, weight, 0, columns, widened_.at_least(columns));
  const float* inverse = inverse_rms.data<float>();
  float* dw = weight_gradient.data<float>();
  reserve_threads(3 * columns);
  parallel_for(rows * columns > kParallelElements, rows, [&](std::int64_t t) {
    float* const scratch = thread_floats(3 * columns);
    const std::int64_t at = t * columns;
    const float* dy = floats_of(vector_, y_gradient, at, columns, scratch);
    const float* source = floats_of(vector_, x, at, columns, scratch + columns);
    float* const dx = floats_of(vector_, x_gradient, at, columns, scratch + 2 * columns);
    const float projection = vector_.rms_projection(dy, scale, source, columns);
    const float factor =
        projection * inverse[t] * inverse[t] * inverse[t] / static_cast<float>(columns);
    vector_.rms_backward(dy, scale, source, inverse[t], factor, dx, columns);
    round_floats(vector_, dx, x_gradient, at, columns);
  });
  const std::int64_t blocks = (columns + kColumnBlock - 1) / kColumnBlock;
  parallel_for(rows * columns > kParallelElements, blocks, [&](std::int64_t block) {
    const std::int64_t begin = block * kColumnBlock;
    const std::int64_t width = std::min(kColumnBlock, columns - begin);
    float widened_dy[kColumnBlock];
    float widened_x[kColumnBlock];
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int64_t at = t * columns + begin;
      const float* dy = floats_of(vector_, y_gradient, at, width, widened_dy);
      const float* source = floats_of(vector_, x, at, width, widened_x);
      vector_.rms_backward(dy, source, source, inverse[t], 0.0F, dw + begin, width);
    }
  });
}

const RotaryTable& CpuKernelSet::rotary_table(const RotarySettings& settings, std::int64_t half,
                                              std::int64_t positions) {
  auto found = std::find_if(
      rotary_tables_.begin(), rotary_tables_.end(),
      [&](const RotaryTable& table) { return table.settings == settings && table.half == half; });
  if (found == rotary_tables_.end()) {
    rotary_tables_.push_back(
        {.settings = settings, .half = half, .positions = 0, .cosines = {}, .sines = {}});
    found = rotary_tables_.end() - 1;
  }
  found->grow(positions);
  return *found;
}

void CpuKernelSet::rotate_rows(TensorView x, const PlannedRows& planned,
                               const RotarySettings& settings, bool backward) {
  if (x.empty()) {
    return;
  }
  check_rotary(x, planned);
  const std::span<const std::int32_t> positions = planned.positions.span<std::int32_t>();
  expect_floating(x, "rotary x");
  const std::int64_t rows = x.dim(0);
  const std::int64_t heads = x.dim(1);
  const std::int64_t dim = x.dim(2);
  const std::int64_t half = dim / 2;
  const RotaryTable& table = rotary_table(settings, half, planned.position_limit);
  const auto rotate = backward ? vector_.rotate_back : vector_.rotate;
  reserve_threads(dim);
  parallel_for(x.elements() > kParallelElements, rows, [&](std::int64_t t) {
    float* const scratch = thread_floats(dim);
    const auto at = static_cast<std::size_t>(positions[static_cast<std::size_t>(t)] * half);
    for (std::int64_t head = t * heads; head < (t + 1) * heads; ++head) {
      float* const low = floats_of(vector_, x, head * dim, dim, scratch);
      rotate(low, low + half, table.cosines.data() + at, table.sines.data() + at, half);
      round_floats(vector_, low, x, head * dim, dim);
    }
  });
}

void CpuKernelSet::rotary(TensorView q, TensorView k, const PlannedRows& rows,
                          const RotarySettings& settings) {
  rotate_rows(q, rows, settings, false);
  rotate_rows(k, rows, settings, false);
}

void CpuKernelSet::rotary_backward(TensorView q_gradient, TensorView k_gradient,
                                   const PlannedRows& rows, const RotarySettings& settings) {
  rotate_rows(q_gradient, rows, settings, true);
  rotate_rows(k_gradient, rows, settings, true);
}

void CpuKernelSet::rotate_and_write(const DecodePlan& plan, DecodeRows which, TensorView q,
                                    TensorView k, ConstTensorView v, const HeadNorms& norms,
                                    const RotarySettings& settings, LayerCache cache) {
  check_rotate_and_write(plan, which, q, norms);
  const auto norm = [&](const TensorView& x, const ConstTensorView& weight) {
    if (!weight.empty() && !x.empty()) {
      const TensorView heads = x.reshaped({x.dim(0) * x.dim(1), x.dim(2)});
      rms_norm(heads, weight, norms.epsilon, heads, {});
    }
  };
  norm(q, norms.q);
  norm(k, norms.k);
  rotate_rows(q, plan.rows(which), settings, false);
  rotate_rows(k, plan.rows(DecodeRows::all), settings, false);
  cache_write(plan, k, v, cache);
}

void CpuKernelSet::swiglu(ConstTensorView gate, ConstTensorView up, TensorView y) {
  expect_shape(up, gate.shape(), "swiglu up");
  expect_shape(y, gate.shape(), "swiglu y");
  expect_floating(gate, "swiglu gate");
  expect_floating(up, "swiglu up");
  expect_floating(y, "swiglu y");
  for_runs(gate.elements(), [&](std::int64_t begin, std::int64_t count) {
    Run scratch[3];
    float* const result = room_for(y, begin, scratch[2]);
    vector_.swiglu(floats_of(vector_, gate, begin, count, scratch[0]),
                   floats_of(vector_, up, begin, count, scratch[1]), result, count);
    round_floats(vector_, result, y, begin, count);
  });
}

void CpuKernelSet::swiglu_backward(ConstTensorView y_gradient, ConstTensorView gate,
                                   ConstTensorView up, TensorView gate_gradient,
                                   TensorView up_gradient) {
  expect_shape(y_gradient, gate.shape(), "swiglu y_gradient");
  expect_shape(up, gate.shape(), "swiglu up");
  expect_shape(gate_gradient, gate.shape(), "swiglu gate_gradient");
  expect_shape(up_gradient, gate.shape(), "swiglu up_gradient");
  expect_floating(y_gradient, "swiglu y_gradient");
  expect_floating(gate, "swiglu gate");
  expect_floating(up, "swiglu up");
  expect_floating(gate_gradient, "swiglu gate_gradient");
  expect_floating(up_gradient, "swiglu up_gradient");
  for_runs(gate.elements(), [&](std::int64_t begin, std::int64_t count) {
    Run scratch[5];
    float* const dg = room_for(gate_gradient, begin, scratch[3]);
    float* const du = room_for(up_gradient, begin, scratch[4]);
    vector_.swiglu_backward(floats_of(vector_, y_gradient, begin, count, scratch[0]),
                            floats_of(vector_, gate, begin, count, scratch[1]),
                            floats_of(vector_, up, begin, count, scratch[2]), dg, du, count);
    round_floats(vector_, dg, gate_gradient, begin, count);
    round_floats(vector_, du, up_gradient, begin, count);
  });
}

void CpuKernelSet::add(ConstTensorView x, TensorView y) {
  expect_shape(y, x.shape(), "add y");
  expect_floating(x, "add x");
  expect_floating(y, "add y");
  for_runs(x.elements(), [&](std::int64_t begin, std::int64_t count) {
    Run scratch[2];
    float* const sum = floats_of(vector_, y, begin, count, scratch[1]);
    vector_.add(floats_of(vector_, x, begin, count, scratch[0]), sum, count);
    round_floats(vector_, sum, y, begin, count);
  });
}

void CpuKernelSet::convert(ConstTensorView x, TensorView y, float factor) {
  expect_shape(y, x.shape(), "convert y");
  expect_floating(x, "convert x");
  expect_floating(y, "convert y");
  for_runs(x.elements(), [&](std::int64_t begin, std::int64_t count) {
    Run scratch;
    float* const result = room_for(y, begin, scratch);
    const float* values = floats_of(vector_, x, begin, count, result);
    if (factor != 1.0F) {
      std::transform(values, values + count, result, [&](float value) { return factor * value; });
      values = result;
    } else if (values != result && y.dtype() == DType::float32) {
      std::copy_n(values, count, result);
    }
    round_floats(vector_, values, y, begin, count);
  });
}

void CpuKernelSet::keep_rows(const DecodePlan& plan, TensorView x) {
  expect_kept_rows(plan, x);
  expect_floating(x, "keep_rows x");
  const std::span<const std::int32_t> rows = plan.batch().kept;
  const std::size_t row_bytes = storage_bytes(x.dim(1), x.dtype());
  auto* const data = static_cast<std::byte*>(x.raw());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != static_cast<std::int32_t>(i)) {
      std::memcpy(data + i * row_bytes, data + static_cast<std::size_t>(rows[i]) * row_bytes,
                  row_bytes);
    }
  }
}

}  // namespace jforge
