/// Norm, rotary, SwiGLU and embedding: memory-bound. A lane moves eight elements at once
/// (MemoryWord) if tensors are aligned and rows are whole words, otherwise single ones in the same
/// order, so alignment changes no bit. Reductions are trees whose shape depends on the row's
/// length. Expected speed: results/reference/gpu_plan.md.

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "model/kernels/cuda/add_row_groups.h"
#include "model/kernels/cuda/column_sums.h"
#include "model/kernels/cuda/cuda_decode_plan_internal.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"

namespace jforge {

namespace {

constexpr std::int64_t kRowLanes = 256;

std::int64_t length(std::size_t size) { return static_cast<std::int64_t>(size); }

/// Calls element.take<kCount>(i) for elements i … i + kCount − 1 of [0, count), by words or singly.
template <class Element>
struct ForWords {
  Element element;
  std::int64_t count;
  std::int64_t blocks;
  bool words;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    group.each([&](std::int64_t lane) {
      const std::int64_t first = block * group.lanes() + lane;
      const std::int64_t step = blocks * group.lanes();
      const std::int64_t whole = words ? count / kWordElements : 0;
      for (std::int64_t word = first; word < whole; word += step) {
        element.template take<kWordElements>(word * kWordElements);
      }
      for (std::int64_t i = whole * kWordElements + first; i < count; i += step) {
        element.template take<1>(i);
      }
    });
  }
};

template <class Element>
void launch_words(DeviceQueue& queue, std::int64_t count, bool words, const Element& element,
                  const char* what) {
  const std::int64_t each = words ? kWordElements : 1;
  const std::int64_t blocks =
      std::min(divide_up(divide_up(count, each), kElementLanes), kMostElementBlocks);
  queue.launch(blocks, kElementLanes, ForWords<Element>{element, count, blocks, words}, what);
}

/// Visits a lane's share of a row in the same order by words or singly: take(Count<n>, i).
template <int kCount>
using Count = std::integral_constant<int, kCount>;
template <class Take>
__device__ void for_row(std::int64_t lane, std::int64_t lanes, std::int64_t columns, bool words,
                        const Take& take) {
  for (std::int64_t begin = lane * kWordElements; begin < columns; begin += lanes * kWordElements) {
    if (words) {
      take(Count<kWordElements>(), begin);
      continue;
    }
    const std::int64_t end = begin + kWordElements < columns ? begin + kWordElements : columns;
    for (std::int64_t i = begin; i < end; ++i) {
      take(Count<1>(), i);
    }
  }
}
/// One lane per word, but whole warps and at most kRowLanes.
std::int64_t row_lanes(std::int64_t columns) {
  const auto words = static_cast<std::uint64_t>(divide_up(columns, kWordElements));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::bit_ceil(words)), 32, kRowLanes);
}
bool whole_words(std::int64_t columns) { return columns % kWordElements == 0; }

struct CopyTableRow {
  const TokenId* tokens;
  FloatSource table;
  FloatTarget output;
  std::int64_t columns;
  template <int kCount>
  __device__ void take(std::int64_t i) const {
    float values[kCount];
    table.read(tokens[i / columns] * columns + i % columns, values);
    output.write(i, values);
  }
};

/// y = x / rms(x) · weight. With `added`, x is the residual stream and is increased first.
struct NormRow {
  FloatSource added;  ///< Null: none.
  FloatTarget x;
  FloatSource weight;
  float epsilon;
  FloatTarget y;
  float* inverse_rms;  ///< May be null.
  std::int64_t columns;
  bool words;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t row) const {
    const std::int64_t at = row * columns;
    const float squares = group.sum<float>([&](std::int64_t lane) {
      float sum = 0;
      for_row(lane, group.lanes(), columns, words, [&](auto count, std::int64_t i) {
        constexpr int kCount = decltype(count)::value;
        float values[kCount];
        x.read(at + i, values);
        if (added.data != nullptr) {
          float terms[kCount];
          added.read(at + i, terms);
          for (int e = 0; e < kCount; ++e) {
            values[e] += terms[e];
            values[e] = x.narrow ? widen(round_to_bfloat16(values[e])) : values[e];
          }
          x.write(at + i, values);
        }
        for (int e = 0; e < kCount; ++e) {
          sum = fmaf(values[e], values[e], sum);
        }
      });
      return sum;
    });
    const float inverse = 1.0F / sqrtf(squares / static_cast<float>(columns) + epsilon);
    group.each([&](std::int64_t lane) {
      for_row(lane, group.lanes(), columns, words, [&](auto count, std::int64_t i) {
        constexpr int kCount = decltype(count)::value;
        float values[kCount];
        float factors[kCount];
        x.read(at + i, values);  // Still in the L1 cache.
        weight.read(i, factors);
        for (int e = 0; e < kCount; ++e) {
          values[e] = values[e] * inverse * factors[e];
        }
        y.write(at + i, values);
      });
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
  bool words;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t row) const {
    const std::int64_t at = row * columns;
    const float projection = group.sum<float>([&](std::int64_t lane) {
      float sum = 0;
      for_row(lane, group.lanes(), columns, words, [&](auto count, std::int64_t i) {
        constexpr int kCount = decltype(count)::value;
        float dy[kCount];
        float factors[kCount];
        float values[kCount];
        y_gradient.read(at + i, dy);
        weight.read(i, factors);
        x.read(at + i, values);
        for (int e = 0; e < kCount; ++e) {
          sum = fmaf(dy[e] * factors[e], values[e], sum);
        }
      });
      return sum;
    });
    const float inverse = inverse_rms[row];
    const float factor = projection * inverse * inverse * inverse / static_cast<float>(columns);
    group.each([&](std::int64_t lane) {
      for_row(lane, group.lanes(), columns, words, [&](auto count, std::int64_t i) {
        constexpr int kCount = decltype(count)::value;
        float dy[kCount];
        float factors[kCount];
        float values[kCount];
        float dx[kCount];
        y_gradient.read(at + i, dy);
        weight.read(i, factors);
        x.read(at + i, values);
        x_gradient.read(at + i, dx);
        for (int e = 0; e < kCount; ++e) {
          dx[e] += inverse * (dy[e] * factors[e]) - values[e] * factor;
        }
        x_gradient.write(at + i, dx);
      });
    });
  }
};

/// A row's term of the norm weight's gradient.
struct NormWeightTerm {
  FloatSource y_gradient;
  FloatSource x;
  const float* inverse_rms;
  std::int64_t columns;
  __device__ float operator()(std::int64_t row, std::int64_t column) const {
    return inverse_rms[row] * (y_gradient[row * columns + column] * x[row * columns + column]);
  }
};

/// Rotates pairs (i, i + D/2) of a head; `direction` −1 is the inverse.
struct Rotation {
  const float* cosines;
  const float* sines;
  std::int64_t half;
  float direction;

  /// Heads begin at `from_head` and `to_head`.
  template <int kCount, class From>
  __device__ void take(const From& from, std::int64_t from_head, const FloatTarget& to,
                       std::int64_t to_head, std::int32_t position, std::int64_t i) const {
    const std::int64_t angle = std::int64_t{position} * half + i;
    float cosine[kCount];
    float sine[kCount];
    float low[kCount];
    float high[kCount];
    read_elements(cosines, false, angle, cosine);
    read_elements(sines, false, angle, sine);
    from.read(from_head + i, low);
    from.read(from_head + half + i, high);
    for (int e = 0; e < kCount; ++e) {
      const float first = low[e];
      const float second = high[e];
      sine[e] *= direction;
      low[e] = first * cosine[e] - second * sine[e];
      high[e] = second * cosine[e] + first * sine[e];
    }
    to.write(to_head + i, low);
    to.write(to_head + half + i, high);
  }
};

template <class Tables>
Rotation rotation(const Tables& tables, bool backward) {
  return {reinterpret_cast<const float*>(tables.cosines.data()),
          reinterpret_cast<const float*>(tables.sines.data()), tables.table.half,
          backward ? -1.0F : 1.0F};
}

struct RotatedHeads {
  FloatTarget x;
  const std::int32_t* positions;
  std::int64_t heads;
  std::int64_t pairs;

  template <int kCount>
  __device__ void take(const Rotation& rotation, std::int64_t pair) const {
    const std::int64_t head = pair / rotation.half;  // Of all rows.
    const std::int64_t at = head * 2 * rotation.half;
    rotation.take<kCount>(x, at, x, at, positions[head / heads], pair % rotation.half);
  }
};
RotatedHeads rotated_heads(const TensorView& x, const PlannedRows& rows) {
  if (x.empty()) {
    return {};
  }
  check_rotary(x, rows);
  return {floating(x), indices(rows.positions), x.dim(1), x.elements() / 2};
}

/// Pairs of q, then of k.
struct RotateBoth {
  Rotation rotation;
  RotatedHeads q;
  RotatedHeads k;
  template <int kCount>
  __device__ void take(std::int64_t pair) const {
    if (pair < q.pairs) {
      q.take<kCount>(rotation, pair);
    } else {
      k.take<kCount>(rotation, pair - q.pairs);
    }
  }
};

/// Pairs of q in place, of k into the cache, then of v unrotated.
struct RotateAndWrite {
  Rotation rotation;
  RotatedHeads q;
  RotatedHeads k;
  FloatSource v;
  const std::int32_t* places;  ///< Rows of the cache seen as [pages · kCachePageRows, …].
  FloatTarget keys;
  FloatTarget values;
  template <int kCount>
  __device__ void take(std::int64_t pair) const {
    if (pair < q.pairs) {
      q.take<kCount>(rotation, pair);
      return;
    }
    const std::int64_t half = rotation.half;
    const bool of_keys = pair < q.pairs + k.pairs;
    const std::int64_t own = pair - q.pairs - (of_keys ? 0 : k.pairs);
    const std::int64_t i = own % half;
    const std::int64_t head = own / half;
    const std::int64_t row = head / k.heads;
    const std::int64_t from = head * 2 * half;
    const std::int64_t place = places[row];
    if (place < 0) {
      return;
    }
    const std::int64_t to = (place * k.heads + head % k.heads) * 2 * half;
    if (of_keys) {
      rotation.take<kCount>(k.x, from, keys, to, k.positions[row], i);
      return;
    }
    float numbers[kCount];
    v.read(from + i, numbers);
    values.write(to + i, numbers);
    v.read(from + half + i, numbers);
    values.write(to + half + i, numbers);
  }
};

/// The same for normed heads. Block index = head of q, then of k, of all rows.
struct NormRotateAndWrite {
  RotateAndWrite heads;
  NormRow q_norm;
  NormRow k_norm;
  bool words = false;  ///< For rotations.

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t head) const {
    const std::int64_t half = heads.rotation.half;
    const bool of_q = head * half < heads.q.pairs;
    const NormRow& norm = of_q ? q_norm : k_norm;
    norm(group, of_q ? head : head - heads.q.pairs / half);
    const std::int64_t pair = head * half;
    group.each([&](std::int64_t lane) {
      for_row(lane, group.lanes(), half, words, [&](auto count, std::int64_t i) {
        heads.template take<decltype(count)::value>(pair + i);
        if (!of_q) {
          heads.template take<decltype(count)::value>(pair + heads.k.pairs + i);
        }
      });
    });
  }
};

struct Swiglu {
  FloatSource gate;
  FloatSource up;
  FloatTarget y;
  template <int kCount>
  __device__ void take(std::int64_t i) const {
    float g[kCount];
    float u[kCount];
    gate.read(i, g);
    up.read(i, u);
    for (int e = 0; e < kCount; ++e) {
      g[e] = g[e] / (1.0F + expf(-g[e])) * u[e];
    }
    y.write(i, g);
  }
};

struct SwigluBackward {
  FloatSource y_gradient;
  FloatSource gate;
  FloatSource up;
  FloatTarget gate_gradient;
  FloatTarget up_gradient;
  template <int kCount>
  __device__ void take(std::int64_t i) const {
    // Outputs may overlap inputs, so all reads come first.
    float dy[kCount];
    float g[kCount];
    float u[kCount];
    y_gradient.read(i, dy);
    gate.read(i, g);
    up.read(i, u);
    for (int e = 0; e < kCount; ++e) {
      const float sigmoid = 1.0F / (1.0F + expf(-g[e]));
      const float dg = dy[e] * u[e] * sigmoid * (1.0F + g[e] * (1.0F - sigmoid));
      u[e] = dy[e] * g[e] * sigmoid;
      g[e] = dg;
    }
    gate_gradient.write(i, g);
    up_gradient.write(i, u);
  }
};

struct Convert {
  FloatSource x;
  FloatTarget y;
  float factor;
  template <int kCount>
  __device__ void take(std::int64_t i) const {
    float values[kCount];
    x.read(i, values);
    for (int e = 0; e < kCount; ++e) {
      values[e] = factor == 1.0F ? values[e] : factor * values[e];
    }
    y.write(i, values);
  }
};

struct Add {
  FloatSource x;
  FloatTarget y;
  template <int kCount>
  __device__ void take(std::int64_t i) const {
    float added[kCount];
    float sums[kCount];
    x.read(i, added);
    y.read(i, sums);
    for (int e = 0; e < kCount; ++e) {
      sums[e] += added[e];
    }
    y.write(i, sums);
  }
};

/// A lane owns a column and takes rows in order, so nothing is overwritten before it is read.
struct KeepRows {
  const std::int32_t* rows;
  std::int64_t count;
  FloatTarget x;
  std::int64_t columns;
  __device__ void operator()(std::int64_t column) const {
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
  const CopyTableRow body{indices(rows.tokens), floating(table), floating(output), columns};
  launch_words(queue_, output.elements(),
               whole_words(columns) && begin_words(body.table, body.output), body, "embedding");
}

void CudaKernelSet::embedding_backward(const PackedPlan& plan, ConstTensorView output_gradient,
                                       TensorView table_gradient) {
  const std::int64_t columns = table_gradient.dim(1);
  expect_shape(output_gradient, Shape{plan.num_rows(), columns}, "embedding output_gradient");
  expect_tokens(plan.rows(), table_gradient.dim(0));
  const CudaPackedPlan::RowGroups& rows = on_device(plan).token_rows();
  queue_.launch(rows.distinct, kRowGroupLanes,
                AddRowGroups<TokenId>{rows,
                                      indices(plan.rows().tokens),
                                      floating(output_gradient),
                                      {floats(table_gradient)},
                                      columns},
                "embedding_backward");
}

namespace {

NormRow norm_row(const FloatSource& added, const FloatTarget& x, const ConstTensorView& weight,
                 float epsilon, const TensorView& y, const TensorView& inverse_rms) {
  const std::int64_t columns = y.dim(y.shape().rank() - 1);
  expect_shape(weight, Shape{columns}, "rms_norm weight");
  NormRow body{added,   x,           floating(weight),
               epsilon, floating(y), inverse_rms.empty() ? nullptr : floats(inverse_rms),
               columns, false};
  body.words = whole_words(columns) && begin_words(body.added, body.x, body.weight, body.y);
  return body;
}
void norm_rows(DeviceQueue& queue, const FloatSource& added, const FloatTarget& x,
               const ConstTensorView& weight, float epsilon, const TensorView& y,
               const TensorView& inverse_rms, const char* what) {
  if (!inverse_rms.empty()) {
    expect_shape(inverse_rms, Shape{y.dim(0)}, "rms_norm inverse_rms");
  }
  queue.launch(y.dim(0), row_lanes(y.dim(1)), norm_row(added, x, weight, epsilon, y, inverse_rms),
               what);
}

}  // namespace

void CudaKernelSet::rms_norm(ConstTensorView x, ConstTensorView weight, float epsilon, TensorView y,
                             TensorView inverse_rms) {
  expect_shape(y, x.shape(), "rms_norm y");
  const FloatSource source = floating(x);
  // Without `added`, x is only read.
  norm_rows(queue_, {}, {const_cast<void*>(source.data), source.narrow}, weight, epsilon, y,
            inverse_rms, "rms_norm");
}

void CudaKernelSet::add_rms_norm(ConstTensorView x, TensorView stream, ConstTensorView weight,
                                 float epsilon, TensorView y, TensorView inverse_rms) {
  expect_shape(stream, x.shape(), "add_rms_norm stream");
  expect_shape(y, x.shape(), "add_rms_norm y");
  norm_rows(queue_, floating(x), floating(stream), weight, epsilon, y, inverse_rms, "add_rms_norm");
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
  NormRowBackward body{floating(y_gradient),
                       floating(x),
                       floating(weight),
                       floats(inverse_rms),
                       floating(x_gradient),
                       columns,
                       false};
  body.words =
      whole_words(columns) && begin_words(body.y_gradient, body.x, body.weight, body.x_gradient);
  queue_.launch(rows, row_lanes(columns), body, "rms_norm_backward");
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

void CudaKernelSet::rotate_rows(const TensorView& q, const TensorView& k, const PlannedRows& rows,
                                const RotarySettings& settings, bool backward) {
  const std::int64_t half = (q.empty() ? k : q).dim(2) / 2;
  expect(k.empty() || k.dim(2) == 2 * half, "rotary: q and k differ in head size");
  const RotateBoth body{rotation(rotary_table(settings, half, rows.position_limit), backward),
                        rotated_heads(q, rows), rotated_heads(k, rows)};
  launch_words(queue_, body.q.pairs + body.k.pairs,
               whole_words(half) && begin_words(body.q.x, body.k.x), body, "rotary");
}

void CudaKernelSet::rotary(TensorView q, TensorView k, const PlannedRows& rows,
                           const RotarySettings& settings) {
  rotate_rows(q, k, rows, settings, false);
}

void CudaKernelSet::rotary_backward(TensorView q_gradient, TensorView k_gradient,
                                    const PlannedRows& rows, const RotarySettings& settings) {
  rotate_rows(q_gradient, k_gradient, rows, settings, true);
}

void CudaKernelSet::rotate_and_write(const DecodePlan& plan, DecodeRows which, TensorView q,
                                     TensorView k, ConstTensorView v, const HeadNorms& norms,
                                     const RotarySettings& settings, LayerCache cache) {
  check_rotate_and_write(plan, which, q, norms);
  check_cache_write(plan, k, v, cache);
  const PlannedRows& rows = plan.rows(DecodeRows::all);
  const std::int64_t half = plan.heads().size / 2;
  const RotateAndWrite body{rotation(rotary_table(settings, half, rows.position_limit), false),
                            rotated_heads(q, plan.rows(which)),
                            rotated_heads(k, rows),
                            floating(v),
                            on_device(plan).places(),
                            floating(cache.keys),
                            floating(cache.values)};
  const bool words =
      whole_words(half) && begin_words(body.q.x, body.k.x, body.v, body.keys, body.values);
  if (norms.k.empty()) {
    launch_words(queue_, body.q.pairs + 2 * body.k.pairs, words, body, "rotate_and_write");
    return;
  }
  NormRotateAndWrite normed{body, norm_row({}, floating(k), norms.k, norms.epsilon, k, {}),
                            norm_row({}, floating(k), norms.k, norms.epsilon, k, {})};
  if (!q.empty()) {
    normed.q_norm = norm_row({}, floating(q), norms.q, norms.epsilon, q, {});
  }
  normed.words = words;
  queue_.launch((body.q.pairs + body.k.pairs) / half, row_lanes(2 * half), normed,
                "norm, rotate and write");
}

void CudaKernelSet::swiglu(ConstTensorView gate, ConstTensorView up, TensorView y) {
  expect_shape(up, gate.shape(), "swiglu up");
  expect_shape(y, gate.shape(), "swiglu y");
  const Swiglu body{floating(gate), floating(up), floating(y)};
  launch_words(queue_, gate.elements(), begin_words(body.gate, body.up, body.y), body, "swiglu");
}

void CudaKernelSet::swiglu_backward(ConstTensorView y_gradient, ConstTensorView gate,
                                    ConstTensorView up, TensorView gate_gradient,
                                    TensorView up_gradient) {
  expect_shape(y_gradient, gate.shape(), "swiglu y_gradient");
  expect_shape(up, gate.shape(), "swiglu up");
  expect_shape(gate_gradient, gate.shape(), "swiglu gate_gradient");
  expect_shape(up_gradient, gate.shape(), "swiglu up_gradient");
  const SwigluBackward body{floating(y_gradient), floating(gate), floating(up),
                            floating(gate_gradient), floating(up_gradient)};
  launch_words(
      queue_, gate.elements(),
      begin_words(body.y_gradient, body.gate, body.up, body.gate_gradient, body.up_gradient), body,
      "swiglu_backward");
}

void CudaKernelSet::add(ConstTensorView x, TensorView y) {
  expect_shape(y, x.shape(), "add y");
  const Add body{floating(x), floating(y)};
  launch_words(queue_, x.elements(), begin_words(body.x, body.y), body, "add");
}

void CudaKernelSet::convert(ConstTensorView x, TensorView y, float factor) {
  expect_shape(y, x.shape(), "convert y");
  const Convert body{floating(x), floating(y), factor};
  launch_words(queue_, x.elements(), begin_words(body.x, body.y), body, "convert");
}

void CudaKernelSet::keep_rows(const DecodePlan& plan, TensorView x) {
  expect_kept_rows(plan, x);
  const std::int64_t columns = x.dim(1);
  const std::int64_t count = plan.num_rows(DecodeRows::kept);
  launch_elements(queue_, count == 0 ? 0 : columns,
                  KeepRows{on_device(plan).kept(), count, floating(x), columns}, "keep_rows");
}

}  // namespace jforge
