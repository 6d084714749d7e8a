/// Speed of the CPU kernels, as numbers and as ratios within one run: decoding products against
/// oneDNN and memory bandwidth, attention and vocabulary loss against their multiply-adds. Needs an
/// idle machine; OMP_NUM_THREADS sets the threads.
///
/// kernel_benchmark --device cuda [--compute float32|bfloat16] [--tiny]: training kernels of a
/// device, as shares of its data sheet (device_kernels.h).

#include <benchmark/benchmark.h>
#include <dnnl.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <ctime>
#include <iostream>
#include <numeric>
#include <random>
#include <vector>

#include "model/kernels/cpu/cpu_kernel_set.h"
#include "runtime/error.h"
#include "tests/benchmarks/device_kernels.h"
#include "tests/support/kernel_calls.h"

namespace jforge {
namespace {

using Floats = std::vector<float>;

Floats random_floats(std::int64_t count) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = normal(generator);
  }
  return values;
}

using BFloat16s = std::vector<BFloat16>;

BFloat16s rounded(const Floats& values) {
  BFloat16s result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), to_bfloat16);
  return result;
}

/// Returns `work`'s processor time per thread: with one thread, other load does not count.
template <class Work>
double processor_seconds(const Work& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / omp_get_max_threads();
}

void report_flops(benchmark::State& state, double flops_per_iteration) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops_per_iteration * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void report_bytes(benchmark::State& state, double bytes_per_iteration) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes_per_iteration * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

/// Reads 256 MiB once: the bound of a product over one row.
void read_bandwidth(benchmark::State& state) {
  const std::int64_t count = 64 << 20;
  const Floats values(static_cast<std::size_t>(count), 1.0F);
  const auto kernels = make_cpu_kernel_set();
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        test::sum_of_squares(*kernels, ConstTensorView(values.data(), Shape{count})));
  }
  report_bytes(state, static_cast<double>(count) * 4);
}
BENCHMARK(read_bandwidth)->UseRealTime();

/// Arguments: instruction set, M, N, K.
void invariant_linear(benchmark::State& state) {
  const auto set = static_cast<InstructionSet>(state.range(0));
  if (!instruction_set_available(set)) {
    state.SkipWithError("instruction set not available");
    return;
  }
  const std::int64_t m = state.range(1);
  const std::int64_t n = state.range(2);
  const std::int64_t k = state.range(3);
  const auto kernels = make_cpu_kernel_set(set, BFloat16Sums::pairs);
  MemoryAccount account("benchmark");
  const Floats x = random_floats(m * k);
  const Floats w = random_floats(n * k);
  Floats y(static_cast<std::size_t>(m * n));
  const auto packed =
      kernels->pack_weight(ConstTensorView(w.data(), Shape{n, k}), WeightStorage::float32, account);
  for (auto _ : state) {
    kernels->invariant_linear(ConstTensorView(x.data(), Shape{m, k}), *packed, {},
                              TensorView(y.data(), Shape{m, n}));
    benchmark::ClobberMemory();
  }
  report_flops(state, 2.0 * static_cast<double>(m * n * k));
  report_bytes(state, 4.0 * static_cast<double>(n * k));
}

/// Arguments: M, N, K.
void onednn_sgemm(benchmark::State& state) {
  const std::int64_t m = state.range(0);
  const std::int64_t n = state.range(1);
  const std::int64_t k = state.range(2);
  const Floats x = random_floats(m * k);
  const Floats w = random_floats(n * k);
  Floats y(static_cast<std::size_t>(m * n));
  for (auto _ : state) {
    dnnl_sgemm('N', 'T', m, n, k, 1.0F, x.data(), k, w.data(), k, 0.0F, y.data(), n);
    benchmark::ClobberMemory();
  }
  report_flops(state, 2.0 * static_cast<double>(m * n * k));
}

/// Measures a training product in float32, by oneDNN and in bfloat16, turn by turn, so that other
/// load slows all. Arguments: 0 forward, 1 input gradient, 2 weight gradient (float32); rows,
/// outputs, inputs.
void training_product(benchmark::State& state) {
  const std::int64_t which = state.range(0);
  const std::int64_t m = state.range(1);
  const std::int64_t n = state.range(2);
  const std::int64_t k = state.range(3);
  const auto kernels = make_cpu_kernel_set();
  Floats x = random_floats(m * k);
  Floats w = random_floats(n * k);
  Floats y = random_floats(m * n);
  const TensorView input(x.data(), Shape{m, k});
  const TensorView weight(w.data(), Shape{n, k});
  const TensorView output(y.data(), Shape{m, n});
  const auto ours = [&] {
    switch (which) {
      case 0:
        return kernels->linear(input, weight, {}, output);
      case 1:
        return kernels->linear_backward_input(output, weight, input, false);
      default:
        return kernels->linear_backward_weight(output, input, weight, {}, true);
    }
  };
  BFloat16s short_x = rounded(x);
  BFloat16s short_w = rounded(w);
  BFloat16s short_y = rounded(y);
  const TensorView short_input(short_x.data(), Shape{m, k});
  const TensorView short_weight(short_w.data(), Shape{n, k});
  const TensorView short_output(short_y.data(), Shape{m, n});
  const auto in_bfloat16 = [&] {
    switch (which) {
      case 0:
        return kernels->linear(short_input, short_weight, {}, short_output);
      case 1:
        return kernels->linear_backward_input(short_output, short_weight, short_input, false);
      default:
        return kernels->linear_backward_weight(short_output, short_input, weight, {}, true);
    }
  };
  const auto theirs = [&] {
    switch (which) {
      case 0:
        return dnnl_sgemm('N', 'T', m, n, k, 1.0F, x.data(), k, w.data(), k, 0.0F, y.data(), n);
      case 1:
        return dnnl_sgemm('N', 'N', m, k, n, 1.0F, y.data(), n, w.data(), k, 0.0F, x.data(), k);
      default:
        return dnnl_sgemm('T', 'N', n, k, m, 1.0F, y.data(), n, x.data(), k, 1.0F, w.data(), k);
    }
  };
  double fastest = processor_seconds(ours);
  double fastest_theirs = processor_seconds(theirs);
  double fastest_bfloat16 = processor_seconds(in_bfloat16);
  for (auto _ : state) {
    fastest = std::min(fastest, processor_seconds(ours));
    fastest_bfloat16 = std::min(fastest_bfloat16, processor_seconds(in_bfloat16));
    fastest_theirs = std::min(fastest_theirs, processor_seconds(theirs));
  }
  const double flops = 2e-9 * static_cast<double>(m * n * k);
  state.counters["GFLOP/s"] = flops / fastest;
  state.counters["bf16 GFLOP/s"] = flops / fastest_bfloat16;
  state.counters["bf16 against fp32"] = fastest / fastest_bfloat16;
  state.counters["oneDNN GFLOP/s"] = flops / fastest_theirs;
  state.counters["speed against oneDNN"] = fastest_theirs / fastest;
}

/// The Qwen2.5-0.5B layer over 2048 rows and part of its head.
void training_shapes(benchmark::internal::Benchmark* benchmark) {
  for (const std::int64_t which : {0, 1, 2}) {
    benchmark->Args({which, 2048, 896, 896});
    benchmark->Args({which, 2048, 4864, 896});
    benchmark->Args({which, 2048, 896, 4864});
    benchmark->Args({which, 110, 32000, 896});
  }
  benchmark->Iterations(8);
}

void product_shapes(benchmark::internal::Benchmark* benchmark) {
  for (const std::int64_t m : {1, 4, 16, 64, 256, 1024}) {
    benchmark->Args({m, 4096, 1024});
  }
  benchmark->Args({16, 384, 128});
  benchmark->UseRealTime();
}

void invariant_shapes(benchmark::internal::Benchmark* benchmark) {
  for (const std::int64_t set : {0, 1}) {
    for (const std::int64_t m : {1, 4, 16, 64, 256, 1024}) {
      benchmark->Args({set, m, 4096, 1024});
    }
    benchmark->Args({set, 1, 65536, 1024});
    benchmark->Args({set, 16, 384, 128});
  }
  benchmark->UseRealTime();
}
BENCHMARK(invariant_linear)->Apply(invariant_shapes);
BENCHMARK(onednn_sgemm)->Apply(product_shapes);
BENCHMARK(training_product)->Apply(training_shapes);

/// Argument: M; a 0.5B model's vocabulary and width.
void invariant_argmax(benchmark::State& state) {
  const std::int64_t m = state.range(0);
  const std::int64_t v = 32768;
  const std::int64_t c = 896;
  const auto kernels = make_cpu_kernel_set();
  MemoryAccount account("benchmark");
  const Floats x = random_floats(m * c);
  const Floats w = random_floats(v * c);
  const auto packed =
      kernels->pack_weight(ConstTensorView(w.data(), Shape{v, c}), WeightStorage::float32, account);
  std::vector<TokenId> tokens(static_cast<std::size_t>(m));
  for (auto _ : state) {
    kernels->invariant_argmax(ConstTensorView(x.data(), Shape{m, c}), *packed,
                              TensorView(tokens.data(), Shape{m}));
  }
  report_flops(state, 2.0 * static_cast<double>(m * v * c));
  report_bytes(state, 4.0 * static_cast<double>(v * c));
}
BENCHMARK(invariant_argmax)->Arg(1)->Arg(16)->Arg(128)->UseRealTime();

struct HeadCounts {
  std::int64_t query, key, dim;
};
constexpr HeadCounts kHeads[] = {{4, 4, 32}, {14, 2, 64}};

/// Arguments: index of the heads, rows per slot, slots, keys per slot.
void cached_attention(benchmark::State& state) {
  const HeadCounts heads = kHeads[state.range(0)];
  const std::int64_t rows_per_slot = state.range(1);
  const std::int64_t slots = state.range(2);
  const std::int64_t keys = state.range(3);
  const auto kernels = make_cpu_kernel_set();
  const test::FullSlots pages(slots, (keys + kCachePageRows - 1) / kCachePageRows);
  const Shape shape = pages.shape(heads.key, heads.dim);
  Floats k = random_floats(shape.elements());
  Floats v = k;
  std::vector<CacheRow> rows;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    for (std::int64_t row = keys - rows_per_slot; row < keys; ++row) {
      rows.push_back({static_cast<std::int32_t>(slot), static_cast<std::int32_t>(row)});
    }
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  const Floats q = random_floats(count * heads.query * heads.dim);
  Floats output(q.size());
  const Shape query_shape{count, heads.query, heads.dim};
  const test::PagedCache cache{TensorView(k.data(), shape), TensorView(v.data(), shape),
                               pages.table()};
  const test::TestDecodePlan plan(
      *kernels, heads.query, cache,
      {.tokens = {}, .places = rows, .kept = {}, .copies = {}, .table = pages.table()});
  for (auto _ : state) {
    kernels->cached_attention(*plan, DecodeRows::all, ConstTensorView(q.data(), query_shape),
                              cache.layer(), TensorView(output.data(), query_shape));
  }
  report_flops(state, 4.0 * static_cast<double>(count * keys * heads.query * heads.dim));
  report_bytes(state, 8.0 * static_cast<double>(slots * keys * heads.key * heads.dim));
}
BENCHMARK(cached_attention)
    ->ArgNames({"heads", "rows", "slots", "keys"})
    ->Args({0, 1, 32, 160})
    ->Args({0, 16, 32, 160})
    ->Args({1, 1, 1, 1024})
    ->Args({1, 1, 16, 512})
    ->Args({1, 16, 16, 512})
    ->Args({1, 512, 1, 512})
    ->UseRealTime();

/// Samples of 60 prompt, 64 clean and 64 noisy rows.
PackedLayout training_layout(std::int64_t samples, double* visible) {
  PackedLayout layout;
  *visible = 0;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const std::int64_t base = layout.num_rows;
    layout.segments.push_back({base, base + 124, base, base, base});
    layout.segments.push_back({base + 124, base + 188, base, base + 60, base + 124});
    layout.num_rows += 188;
    *visible += 124.0 * 125 / 2 + 64.0 * 60 + 64.0 * 65 / 2;
  }
  return layout;
}

/// Arguments: index of the heads, 0 forward or 1 backward.
void packed_attention(benchmark::State& state) {
  const HeadCounts heads = kHeads[state.range(0)];
  double visible = 0;
  const PackedLayout layout = training_layout(16, &visible);
  const auto kernels = make_cpu_kernel_set();
  const Shape query_shape{layout.num_rows, heads.query, heads.dim};
  const Shape key_shape{layout.num_rows, heads.key, heads.dim};
  const Shape sum_shape{layout.num_rows, heads.query};
  const Floats q = random_floats(query_shape.elements());
  const Floats k = random_floats(key_shape.elements());
  Floats output(q.size());
  Floats sums(static_cast<std::size_t>(sum_shape.elements()));
  Floats dq(q.size());
  Floats dk(k.size());
  Floats dv(k.size());
  const ConstTensorView queries(q.data(), query_shape);
  const ConstTensorView keys(k.data(), key_shape);
  test::packed_attention(*kernels, queries, keys, keys, layout,
                         TensorView(output.data(), query_shape),
                         TensorView(sums.data(), sum_shape));
  for (auto _ : state) {
    if (state.range(1) == 0) {
      test::packed_attention(*kernels, queries, keys, keys, layout,
                             TensorView(output.data(), query_shape),
                             TensorView(sums.data(), sum_shape));
    } else {
      test::packed_attention_backward(
          *kernels, queries, queries, keys, keys, ConstTensorView(output.data(), query_shape),
          ConstTensorView(sums.data(), sum_shape), layout, TensorView(dq.data(), query_shape),
          TensorView(dk.data(), key_shape), TensorView(dv.data(), key_shape));
    }
  }
  const double products = state.range(1) == 0 ? 2 : 5;
  report_flops(state, 2.0 * products * visible * static_cast<double>(heads.query * heads.dim));
}
BENCHMARK(packed_attention)
    ->ArgNames({"heads", "backward"})
    ->Args({0, 0})
    ->Args({0, 1})
    ->Args({1, 0})
    ->Args({1, 1})
    ->UseRealTime();

/// Arguments: pairs of rows, C, V.
void vocabulary_loss(benchmark::State& state) {
  const std::int64_t pairs = state.range(0);
  const std::int64_t c = state.range(1);
  const std::int64_t v = state.range(2);
  const auto kernels = make_cpu_kernel_set();
  const Floats hidden = random_floats(2 * pairs * c);
  const Floats head = random_floats(v * c);
  Floats hidden_gradient(hidden.size());
  Floats head_gradient(head.size());
  std::vector<LossItem> items;
  for (std::int32_t i = 0; i < pairs; ++i) {
    items.push_back({.clean_row = i,
                     .target = i % static_cast<std::int32_t>(v),
                     .ar_weight = 0.1F,
                     .student_row = static_cast<std::int32_t>(pairs) + i,
                     .consistency_weight = 0.1F});
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        test::vocabulary_loss(*kernels, ConstTensorView(hidden.data(), Shape{2 * pairs, c}),
                              ConstTensorView(head.data(), Shape{v, c}), items, 1, 1,
                              TensorView(hidden_gradient.data(), Shape{2 * pairs, c}),
                              TensorView(head_gradient.data(), Shape{v, c})));
  }
  report_flops(state, 3.0 * 2.0 * static_cast<double>(2 * pairs * c * v));
}
BENCHMARK(vocabulary_loss)->Args({512, 128, 1024})->Args({128, 896, 32768})->UseRealTime();

void rms_norm(benchmark::State& state) {
  const std::int64_t rows = 2048;
  const std::int64_t c = 896;
  const auto kernels = make_cpu_kernel_set();
  const Floats x = random_floats(rows * c);
  const Floats weight(static_cast<std::size_t>(c), 1.0F);
  Floats y(x.size());
  for (auto _ : state) {
    kernels->rms_norm(ConstTensorView(x.data(), Shape{rows, c}),
                      ConstTensorView(weight.data(), Shape{c}), 1e-6F,
                      TensorView(y.data(), Shape{rows, c}), {});
  }
  report_bytes(state, 8.0 * static_cast<double>(rows * c));
}
BENCHMARK(rms_norm)->UseRealTime();

int run_on_device(int argc, char** argv) {
  CLI::App app("Training kernels of a device against its data sheet", "kernel_benchmark");
  DeviceKernelOptions options;
  std::string device = "cuda";
  std::string compute = "bfloat16";
  app.add_option("--device", device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--compute", compute)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_flag("--tiny", options.tiny, "shapes that show that it works");
  CLI11_PARSE(app, argc, argv);
  options.device = device == "cpu" ? DeviceChoice::cpu : DeviceChoice::cuda;
  options.dtype = compute == "float32" ? DType::float32 : DType::bfloat16;
  try {
    run_device_kernels(options);
    return 0;
  } catch (const Error& error) {
    std::cerr << "kernel_benchmark: " << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace jforge

int main(int argc, char** argv) {
  const bool on_device = std::any_of(
      argv, argv + argc, [](const char* word) { return std::strcmp(word, "--device") == 0; });
  if (on_device) {
    return jforge::run_on_device(argc, argv);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
