#include "tests/benchmarks/machine_peaks.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <vector>

#include "runtime/error.h"

namespace jforge {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double sgemm_peak(dnnl_dim_t size, int repetitions) {
  const auto elements = static_cast<std::size_t>(size * size);
  const std::vector<float> a(elements, 0.5F);
  const std::vector<float> b(elements, 0.25F);
  std::vector<float> c(elements);
  double best = 0;
  // The first run is oneDNN's warm-up.
  for (int run = 0; run <= repetitions; ++run) {
    const auto begin = Clock::now();
    const dnnl_status_t status = dnnl_sgemm('N', 'N', size, size, size, 1.0F, a.data(), size,
                                            b.data(), size, 0.0F, c.data(), size);
    const double seconds = seconds_since(begin);
    expect(status == dnnl_success, "oneDNN refused a matrix product");
    if (run > 0) {
      best = std::max(best, 2.0 * static_cast<double>(size * size * size) / seconds);
    }
  }
  return best;
}

double bfloat16_peak(dnnl_dim_t size, int repetitions) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto operand = [&](dnnl::memory::format_tag layout) {
    return dnnl::memory::desc({size, size}, dnnl::memory::data_type::bf16, layout);
  };
  double best = 0;
  try {
    const dnnl::matmul::primitive_desc plan(
        {operand(dnnl::memory::format_tag::ab), operand(dnnl::memory::format_tag::any),
         operand(dnnl::memory::format_tag::ab)},
        engine);
    const dnnl::matmul product(plan);
    dnnl::memory a(plan.src_desc(), engine);
    dnnl::memory b(plan.weights_desc(), engine);
    dnnl::memory c(plan.dst_desc(), engine);
    for (const dnnl::memory& memory : {a, b}) {
      std::memset(memory.get_data_handle(), 0, memory.get_desc().get_size());
    }
    dnnl::stream stream(engine);
    for (int run = 0; run <= repetitions; ++run) {
      const auto begin = Clock::now();
      product.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
      stream.wait();
      best = std::max(best, run == 0 ? 0 : 2.0 * std::pow(size, 3) / seconds_since(begin));
    }
  } catch (const dnnl::error&) {
    return 0;  // This processor has no instructions for it.
  }
  return best;
}

using Line = std::uint64_t __attribute__((vector_size(64)));
constexpr std::int64_t kLineWords = sizeof(Line) / sizeof(std::uint64_t);
/// Streams of a thread: with a single one, memory idles between requests.
constexpr std::int64_t kStreams = 8;

/// `lines` is a multiple of kStreams.
__attribute__((target_clones("avx512f", "avx2", "default"))) std::uint64_t sum_lines(
    const Line* data, std::int64_t lines) {
  const std::int64_t length = lines / kStreams;
  Line sums[kStreams] = {};
  for (std::int64_t i = 0; i < length; ++i) {
#pragma GCC unroll 8
    for (std::int64_t stream = 0; stream < kStreams; ++stream) {
      sums[stream] += data[stream * length + i];
    }
  }
  std::uint64_t sum = 0;
  for (const Line& line : sums) {
    for (std::int64_t word = 0; word < kLineWords; ++word) {
      sum += line[word];
    }
  }
  return sum;
}

double read_peak(int repetitions, int megabytes) {
  const ReadArray array(megabytes);
  double best = 0;
  for (int run = 0; run <= repetitions; ++run) {
    best = std::max(best, array.read());
  }
  return best;
}

}  // namespace

void ReadArray::Free::operator()(void* memory) const noexcept { std::free(memory); }

// Every thread reads a share of whole streams.
ReadArray::ReadArray(int megabytes)
    : share_((static_cast<std::int64_t>(megabytes) << 20) /
             (omp_get_max_threads() * kStreams * std::int64_t{sizeof(Line)}) * kStreams),
      count_(share_ * omp_get_max_threads() * kLineWords),
      // A vector would touch every page from one thread.
      data_(static_cast<std::uint64_t*>(std::aligned_alloc(
          sizeof(Line), static_cast<std::size_t>(count_) * sizeof(std::uint64_t)))) {
  expect(data_ != nullptr, "no memory for the array that is read");
  std::uint64_t* const data = data_.get();
  const std::int64_t count = count_;
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    data[i] = static_cast<std::uint64_t>(i);
  }
}

double ReadArray::read() const {
  const auto* const lines = reinterpret_cast<const Line*>(data_.get());
  const std::int64_t share = share_;
  std::uint64_t sum = 0;
  const auto begin = Clock::now();
#pragma omp parallel for schedule(static, 1) reduction(+ : sum)
  for (int thread = 0; thread < omp_get_max_threads(); ++thread) {
    sum += sum_lines(lines + thread * share, share);
  }
  const double seconds = seconds_since(begin);
  const auto last = static_cast<std::uint64_t>(count_);
  expect(sum == last * (last - 1) / 2, "a sum over the array came out wrong");
  return static_cast<double>(count_) * sizeof(std::uint64_t) / seconds;
}

MachinePeaks measure_peaks(int repetitions, int read_megabytes) {
  return {.sgemm_1024 = sgemm_peak(1024, repetitions),
          .sgemm_2048 = sgemm_peak(2048, repetitions),
          .bfloat16 = bfloat16_peak(2048, repetitions),
          .read_bandwidth = read_peak(repetitions, read_megabytes)};
}

MachinePeaks best_of(const MachinePeaks& a, const MachinePeaks& b) {
  return {.sgemm_1024 = std::max(a.sgemm_1024, b.sgemm_1024),
          .sgemm_2048 = std::max(a.sgemm_2048, b.sgemm_2048),
          .bfloat16 = std::max(a.bfloat16, b.bfloat16),
          .read_bandwidth = std::max(a.read_bandwidth, b.read_bandwidth)};
}

}  // namespace jforge
