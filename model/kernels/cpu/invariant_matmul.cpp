/// Decoding products over packed panels. Elements are accumulated over K in ascending order by FMA,
/// so a row's bits depend only on the row and the weight.

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

namespace {

/// Steps of K between (exact) stores of partial sums: two groups of panels fit the L2 cache.
constexpr std::int64_t kFloatDepthBlock = 1024;
/// So few rows pass over the panels together and need no blocks.
constexpr std::int64_t kRowsAtOnce = 8;
/// A block of AMX.
constexpr std::int64_t kGroupRowsAtOnce = 32;
/// bfloat16 has half the bytes.
constexpr std::int64_t kPairDepthBlock = 2048;
static_assert(kFloatDepthBlock % 2 == 0 && kPairDepthBlock % 2 == 0,
              "a pair of bfloat16 is not cut");
constexpr std::int64_t kArgmaxRows = 96;

/// Marks in best_indices_: no column seen; NaN seen.
constexpr std::int64_t kNone = -1;
constexpr std::int64_t kNaN = -2;

const PanelWeight& panels_of(const PackedWeight& weight) {
  const auto* panels = dynamic_cast<const PanelWeight*>(&weight);
  expect(panels != nullptr, "packed weight was made by another kernel set");
  return *panels;
}

/// About 256 KiB of weight, which stay cached for the next rows; twice that for rounded rows, which
/// take less time.
std::int64_t argmax_panels(const PanelWeight& head) {
  const std::int64_t words = head.input() == DType::float32 ? 65536 : 131072;
  return std::clamp<std::int64_t>(words / head.panel_words() / 4 * 4, 4, 32);
}

/// The lower half of each float must be zero.
bool all_bfloat16(bool parallel, const float* source, std::int64_t rows, std::int64_t columns) {
  std::atomic<bool> exact = true;
  parallel_for(parallel, rows, [&](std::int64_t row) {
    if (!exact.load(std::memory_order_relaxed)) {
      return;
    }
    std::uint32_t lower = 0;
    for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      lower |= std::bit_cast<std::uint32_t>(source[i]) & 0xFFFFU;
    }
    if (lower != 0) {
      exact.store(false, std::memory_order_relaxed);
    }
  });
  return exact.load();
}

BFloat16 rounded(float value) { return to_bfloat16(value); }
BFloat16 rounded(BFloat16 value) { return value; }

/// Fills columns of a zeroed panel of pairs (PanelWeight).
template <class Element>
void fill_pairs(const Element* source, std::int64_t count, std::int64_t k, std::uint32_t* panel) {
  constexpr std::int64_t kBlock = 128;  // This depth of a panel fits the L1 cache.
  for (std::int64_t begin = 0; begin < k; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, k);
    for (std::int64_t column = 0; column < count; ++column) {
      const Element* const row = source + column * k;
      for (std::int64_t i = begin; i < end; i += 2) {
        const std::uint32_t first = rounded(row[i]).bits;
        const std::uint32_t second = i + 1 < end ? rounded(row[i + 1]).bits : 0U;
        panel[i / 2 * kLanes + column] = first | second << 16U;
      }
    }
  }
}

/// Estimated multiply-adds; reading a weight costs as much as about 8 rows.
double product_work(std::int64_t m, std::int64_t n, std::int64_t k) {
  return static_cast<double>(std::max<std::int64_t>(m, 8)) * static_cast<double>(n) *
         static_cast<double>(k);
}

int decoding_threads(double work) { return work < kParallelDecoding ? 1 : omp_get_max_threads(); }

struct ProductRange {
  std::int64_t row_begin, row_end, panel_begin, panel_end;
};

/// `more_panels`: later panels are read next.
void product_range(const VectorKernels& vector, BFloat16Sums sums, const ProductInput& x,
                   const PanelWeight& weight, const float* bias, float* y, std::int64_t y_row,
                   const ProductRange& range, bool more_panels = false) {
  const std::int64_t k = weight.columns();
  const std::int64_t column = range.panel_begin * kLanes;
  const std::int64_t columns = std::min(range.panel_end * kLanes, weight.rows()) - column;
  const std::int64_t rows = range.row_end - range.row_begin;
  if (rows <= 0 || columns <= 0) {
    return;
  }
  const ProductInput a = x.from(range.row_begin);
  if (a.type == DType::int8) {
    vector.int8_product({.a = a.at<std::int8_t>(0),
                         .a_scales = a.scales,
                         .b = weight.int8(range.panel_begin),
                         .b_scales = weight.scales(range.panel_begin),
                         .c = y,
                         .c_row = y_row,
                         .rows = rows,
                         .columns = columns,
                         .depth = weight.int8_depth(),
                         .bias = bias == nullptr ? nullptr : bias + column});
    return;
  }
  const bool pairs = weight.dtype() == DType::bfloat16;
  const auto words_at = [&](std::int64_t panel, std::int64_t depth) {
    return weight.pairs(panel) + (pairs ? depth / 2 : depth) * kLanes;
  };
  const void* const behind =
      more_panels && range.panel_end < weight.num_panels() ? words_at(range.panel_end, 0) : nullptr;
  const bool rounded = a.type == DType::bfloat16;
  const bool groups = rounded && sums == BFloat16Sums::groups;
  const bool at_once = rows <= (groups ? kGroupRowsAtOnce : kRowsAtOnce);
  const std::int64_t depth_block = at_once ? k : rounded ? kPairDepthBlock : kFloatDepthBlock;
  for (std::int64_t begin = 0; begin < k; begin += depth_block) {
    const std::int64_t depth = std::min(depth_block, k - begin);
    const bool last = begin + depth == k;
    const std::uint32_t* const b = words_at(range.panel_begin, begin);
    const float* const offsets = last && bias != nullptr ? bias + column : nullptr;
    if (rounded) {
      vector.pair_product({.a = a.at<BFloat16>(0) + begin,
                           .a_row = k,
                           .b = reinterpret_cast<const BFloat16*>(b),
                           .b_panel = 2 * weight.panel_words(),
                           .c = y,
                           .c_row = y_row,
                           .rows = rows,
                           .columns = columns,
                           .depth = depth,
                           .accumulate = begin > 0,
                           .bias = offsets});
    } else {
      vector.tile_product({.a = a.at<float>(0) + begin,
                           .a_row = k,
                           .a_depth = 1,
                           .b = pairs ? nullptr : reinterpret_cast<const float*>(b),
                           .b_pairs = pairs ? b : nullptr,
                           .b_panel = weight.panel_words(),
                           .b_depth = kLanes,
                           .c = y,
                           .c_row = y_row,
                           .rows = rows,
                           .columns = columns,
                           .depth = depth,
                           .accumulate = begin > 0,
                           .bias = offsets,
                           .streamed = true,
                           .b_next = last ? behind : words_at(range.panel_begin, begin + depth)});
    }
  }
}

}  // namespace

PanelWeight::PanelWeight(std::int64_t rows, std::int64_t columns, WeightStorage storage,
                         DType dtype, MemoryAccount& account)
    : PackedWeight(rows, columns, dtype),
      storage_(static_cast<std::size_t>(num_panels() *
                                        (panel_words() + (dtype == DType::int8 ? kLanes : 0))) *
                   sizeof(std::uint32_t),
               account),
      input_(storage == WeightStorage::bfloat16_arithmetic || dtype == DType::int8
                 ? dtype
                 : DType::float32) {}

ProductInput CpuKernelSet::product_input(const ConstTensorView& x, const PanelWeight& panels) {
  const std::int64_t m = x.dim(0);
  const std::int64_t k = x.dim(1);
  const float* const source = x.data<float>();
  const DType type = panels.input();
  const bool parallel = m * k > (1 << 16);
  if (type == DType::float32) {
    return {type, source, k * static_cast<std::int64_t>(sizeof(float))};
  }
  if (type == DType::bfloat16) {
    auto* const target = reinterpret_cast<BFloat16*>(rounded_input_.at_least((m * k + 1) / 2));
    parallel_for(parallel, m,
                 [&](std::int64_t row) { vector_.round(source + row * k, target + row * k, k); });
    return {type, target, k * static_cast<std::int64_t>(sizeof(BFloat16))};
  }
  const std::int64_t depth = panels.int8_depth();
  float* const target = rounded_input_.at_least(m * (depth / 2 + 1));
  float* const scales = target + m * depth / 2;
  parallel_for(parallel, m, [&](std::int64_t row) {
    scales[row] = vector_.quantise(source + row * k, k, depth, target + row * depth / 2);
  });
  return {type, target, 2 * depth, scales};
}

std::unique_ptr<PackedWeight> CpuKernelSet::pack_int8(const ConstTensorView& weight,
                                                      MemoryAccount& account) {
  const std::int64_t n = weight.dim(0);
  const std::int64_t k = weight.dim(1);
  const auto refuse = [&](const char* problem) {
    return "model.decode_weights = \"int8\": a matrix of " + std::to_string(n) + " x " +
           std::to_string(k) + problem;
  };
  if (k > kMaxInt8Depth) {
    throw ConfigError(refuse(" has rows too long for exact sums; use \"bfloat16\""));
  }
  const bool narrow = weight.dtype() == DType::bfloat16;
  if (narrow) {
    reserve_threads(kLanes * k);
  }
  auto packed = std::make_unique<PanelWeight>(n, k, WeightStorage::int8, DType::int8, account);
  std::atomic<bool> finite = true;
  parallel_for(n * k > (1 << 18), packed->num_panels(), [&](std::int64_t panel) {
    const std::int64_t begin = panel * kLanes;
    const std::int64_t count = std::min(kLanes, n - begin);
    float* const scratch = narrow ? thread_floats(kLanes * k) : nullptr;
    if (!vector_.quantise_columns(floats_of(vector_, weight, begin * k, count * k, scratch), count,
                                  k, packed->int8(panel), packed->scales(panel))) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  if (!finite.load()) {
    throw NumericalError(refuse(" holds NaN or infinity; mend the model's weights"));
  }
  return packed;
}

std::unique_ptr<PackedWeight> CpuKernelSet::pack_weight(ConstTensorView weight,
                                                        WeightStorage storage,
                                                        MemoryAccount& account,
                                                        ProductUse /*use*/) {
  expect(weight.shape().rank() == 2 && weight.elements() > 0,
         "pack_weight: weight must be a non-empty matrix");
  const std::int64_t n = weight.dim(0);
  const std::int64_t k = weight.dim(1);
  expect_floating(weight, "pack_weight weight");
  if (storage == WeightStorage::int8) {
    return pack_int8(weight, account);
  }
  const bool narrow = weight.dtype() == DType::bfloat16;
  const bool parallel = n * k > (1 << 18);
  const bool pairs =
      rounds(storage) || (storage == WeightStorage::automatic &&
                          (narrow || all_bfloat16(parallel, weight.data<float>(), n, k)));
  if (narrow && !pairs) {
    Buffer widened(storage_bytes(n * k, DType::float32), account);
    const TensorView floats = widened.floats(weight.shape());
    convert(weight, floats);
    return pack_weight(floats, storage, account);
  }
  auto packed = std::make_unique<PanelWeight>(n, k, storage,
                                              pairs ? DType::bfloat16 : DType::float32, account);
  parallel_for(parallel, packed->num_panels(), [&](std::int64_t panel) {
    const std::int64_t begin = panel * kLanes * k;
    const std::int64_t count = std::min(kLanes, n - panel * kLanes);
    if (narrow) {
      fill_pairs(weight.data<BFloat16>() + begin, count, k, packed->pairs(panel));
    } else if (pairs) {
      fill_pairs(weight.data<float>() + begin, count, k, packed->pairs(panel));
    } else {
      vector_.transpose_keys(weight.data<float>() + begin, k, count, k, k, 0,
                             packed->floats(panel));
    }
  });
  return packed;
}

void CpuKernelSet::invariant_linears(ConstTensorView x, std::span<const Projection> projections) {
  for (const auto& [weight, bias, y] : projections) {
    expect_shape(x, Shape{x.dim(0), weight.columns()}, "invariant_linear x");
    expect_shape(y, Shape{x.dim(0), weight.rows()}, "invariant_linear y");
    if (!bias.empty()) {
      expect_shape(bias, Shape{weight.rows()}, "invariant_linear bias");
    }
  }
  while (!projections.empty()) {
    const PanelWeight& first = panels_of(projections.front().weight);
    const auto of_other_input = std::ranges::find_if(projections, [&](const Projection& other) {
      return panels_of(other.weight).input() != first.input();
    });
    const auto count = static_cast<std::size_t>(of_other_input - projections.begin());
    project(product_input(x, first), projections.first(count), nullptr);
    projections = projections.subspan(count);
  }
}

void CpuKernelSet::add_invariant_linears(ConstTensorView x, std::span<const Projection> projections,
                                         const Buffer& sums) {
  std::int64_t rows = 0;
  for (const auto& [weight, bias, y] : projections) {
    expect_shape(y, Shape{y.dim(0), weight.rows()}, "add_invariant_linear y");
    expect_shape(x, Shape{x.dim(0), weight.columns()}, "add_invariant_linear x");
    rows += y.dim(0);
  }
  expect(rows == x.dim(0), "add_invariant_linear: x has not the rows of all results");
  project(product_input(x, panels_of(projections.front().weight)), projections,
          reinterpret_cast<float*>(sums.data()));
}

void CpuKernelSet::project(const ProductInput& input, std::span<const Projection> projections,
                           float* sums) {
  double work = 0;
  for (const auto& [weight, bias, y] : projections) {
    work += product_work(y.dim(0), weight.rows(), weight.columns());
  }
  const std::int64_t limit = decoding_threads(work);
  on_threads(limit, [&](std::int64_t threads, std::int64_t thread) {
    std::int64_t input_row = 0;
    float* sum = sums;
    for (const auto& [weight, bias, y] : projections) {
      const PanelWeight& panels = panels_of(weight);
      const std::int64_t m = y.dim(0);
      const std::int64_t n = weight.rows();
      const std::int64_t count = panels.num_panels();
      // A thread takes a run of panels, or, if few, of rows, although each then reads the whole
      // weight.
      const bool by_rows = count < 4 * limit && m >= 8 * limit;
      const std::int64_t unit = count >= 32 * limit ? 4 : 1;
      const ProductRange range = by_rows
                                     ? ProductRange{part_begin(m, threads, thread, 6),
                                                    part_begin(m, threads, thread + 1, 6), 0, count}
                                     : ProductRange{0, m, part_begin(count, threads, thread, unit),
                                                    part_begin(count, threads, thread + 1, unit)};
      const std::int64_t column = range.panel_begin * kLanes;
      const std::int64_t first = range.row_begin * n + column;
      float* const result = y.data<float>();
      product_range(vector_, sums_, input.from(input_row), panels,
                    bias.empty() ? nullptr : bias.data<float>(),
                    (sums == nullptr ? result : sum) + first, n, range);
      if (sums != nullptr) {
        const std::int64_t end = std::min(range.panel_end * kLanes, n);
        for (std::int64_t row = range.row_begin; row < range.row_end; ++row) {
          for (std::int64_t i = row * n + column; i < row * n + end; ++i) {
            result[i] += sum[i];
          }
        }
        input_row += m;
        sum += m * n;
      }
    }
  });
}

void CpuKernelSet::argmax_part(const ProductInput& hidden, const PanelWeight& panels,
                               std::int64_t rows, std::int64_t threads, std::int64_t thread) {
  const std::int64_t chunk = argmax_panels(panels);
  const std::int64_t row_stride = chunk * kLanes;
  const std::int64_t end = part_begin(panels.num_panels(), threads, thread + 1, 4);
  float* logits =
      thread_scratch_[static_cast<std::size_t>(thread)].at_least(kArgmaxRows * row_stride);
  float* values = best_values_.data() + thread * rows;
  std::int64_t* indices = best_indices_.data() + thread * rows;
  for (std::int64_t panel = part_begin(panels.num_panels(), threads, thread, 4); panel < end;
       panel += chunk) {
    const std::int64_t last = std::min(panel + chunk, end);
    const std::int64_t columns = std::min(last * kLanes, panels.rows()) - panel * kLanes;
    for (std::int64_t row = 0; row < rows; row += kArgmaxRows) {
      const std::int64_t count = std::min(kArgmaxRows, rows - row);
      product_range(vector_, sums_, hidden.from(row), panels, nullptr, logits, row_stride,
                    {0, count, panel, last}, row + kArgmaxRows >= rows && last < end);
      for (std::int64_t i = 0; i < count; ++i) {
        float value = 0;
        const std::int64_t index = vector_.first_maximum(logits + i * row_stride, columns, &value);
        std::int64_t& best = indices[row + i];
        if (index < 0) {
          best = kNaN;
        } else if (best == kNone || (best != kNaN && value > values[row + i])) {
          values[row + i] = value;
          best = panel * kLanes + index;
        }
      }
    }
  }
}

void CpuKernelSet::invariant_argmax(ConstTensorView hidden, const PackedWeight& head,
                                    TensorView tokens) {
  const PanelWeight& panels = panels_of(head);
  const std::int64_t m = hidden.dim(0);
  const std::int64_t k = head.columns();
  expect_shape(hidden, Shape{m, k}, "invariant_argmax hidden");
  expect_shape(tokens, Shape{m}, "invariant_argmax tokens");
  auto* const chosen = tokens.data<TokenId>();
  const ProductInput input = product_input(hidden, panels);
  const std::int64_t limit = decoding_threads(product_work(m, head.rows(), k));
  reserve_threads(kArgmaxRows * argmax_panels(panels) * kLanes);
  best_values_.assign(static_cast<std::size_t>(limit * m), 0.0F);
  best_indices_.assign(static_cast<std::size_t>(limit * m), kNone);
  on_threads(limit, [&](std::int64_t threads, std::int64_t thread) {
    argmax_part(input, panels, m, threads, thread);
  });

  for (std::int64_t row = 0; row < m; ++row) {
    // Threads hold ascending columns, so a later one wins only if larger.
    float value = 0;
    std::int64_t best = kNone;
    for (std::int64_t thread = 0; thread < limit; ++thread) {
      const std::int64_t index = best_indices_[static_cast<std::size_t>(thread * m + row)];
      const float candidate = best_values_[static_cast<std::size_t>(thread * m + row)];
      if (index == kNaN) {
        best = kNaN;
        break;
      }
      if (index != kNone && (best == kNone || candidate > value)) {
        value = candidate;
        best = index;
      }
    }
    chosen[row] = best == kNaN ? kNoToken : static_cast<TokenId>(best);
  }
}

namespace {
/// Minimum logits for a parallel region.
constexpr std::int64_t kSampledInRegion = 1 << 16;
}  // namespace

void CpuKernelSet::sample_tokens(TensorView logits, std::span<const SampledRow> rows,
                                 TensorView tokens) {
  const std::int64_t m = std::ssize(rows);
  check_sampled(logits, m, tokens);
  auto* const chosen = tokens.data<TokenId>();
  samplers_.resize(std::max(samplers_.size(), static_cast<std::size_t>(omp_get_max_threads())));
  parallel_for_dynamic(logits.elements() >= kSampledInRegion, m, [&](std::int64_t row) {
    TokenSampler& sampler = samplers_[static_cast<std::size_t>(omp_get_thread_num())];
    chosen[row] = sampler.choose(logits.rows(row, row + 1).span<float>(),
                                 rows[static_cast<std::size_t>(row)]);
  });
}

}  // namespace jforge
