/// Measures bfloat16 products of Qwen2.5-7B on one Hopper device, with float32 sums.
///
/// product_experiment [--tiny] [--only a|b|cutlass]
///
/// a: whether one cuBLASLt algorithm without split-K gives a row the same bits whatever the number
///    of rows, and how fast it is compared with cuBLASLt's own choice.
/// cutlass: the same for CUTLASS kernels, if the program was compiled with its headers.
/// b: for products of training, the best of eight cuBLASLt heuristics against the first.
///
/// Prints one table. Exits with 77 if there is no device and with 1 if anything failed.

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if __has_include(<cutlass/cutlass.h>)
#define JFORGE_WITH_CUTLASS 1
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/version.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#endif

namespace {

using Bfloat16 = __nv_bfloat16;

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
/// More than any L2 cache holds, so that repeated products read their weights from memory.
constexpr std::size_t kRotatedBytes = std::size_t{320} << 20;
constexpr std::int64_t kGuardRows = 256;  ///< Behind each result: a kernel must not write them.
constexpr int kMaxPositions = 16;
constexpr double kMaxError = 1e-2;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- Errors, memory and output ----

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...) {
  std::array<char, 1024> buffer{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  va_end(arguments);
  return buffer.data();
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(text("CUDA: %s: %s", what, cudaGetErrorString(status)));
  }
}
void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(text("cuBLASLt: %s: %s", what, cublasLtGetStatusString(status)));
  }
}

void row(const std::string& what, const std::string& figure, const std::string& bound = "-",
         const std::string& ratio = "-") {
  std::printf("| %s | %s | %s | %s |\n", what.c_str(), figure.c_str(), bound.c_str(),
              ratio.c_str());
  std::fflush(stdout);
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, bytes), text("allocate %zu bytes", bytes).c_str());
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

template <class T>
DeviceBuffer upload(const std::vector<T>& values) {
  DeviceBuffer buffer(values.size() * sizeof(T));
  check(cudaMemcpy(buffer.as<void>(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice),
        "upload");
  // The copy from pageable memory may still be under way, and our stream does not wait for it.
  check(cudaDeviceSynchronize(), "upload");
  return buffer;
}

struct Destroy {
  void operator()(cudaEvent_t handle) const { cudaEventDestroy(handle); }
  void operator()(cudaGraph_t handle) const { cudaGraphDestroy(handle); }
  void operator()(cudaGraphExec_t handle) const { cudaGraphExecDestroy(handle); }
  void operator()(cublasLtMatmulDesc_t handle) const { cublasLtMatmulDescDestroy(handle); }
  void operator()(cublasLtMatrixLayout_t handle) const { cublasLtMatrixLayoutDestroy(handle); }
  void operator()(cublasLtMatmulPreference_t handle) const {
    cublasLtMatmulPreferenceDestroy(handle);
  }
};
template <class Handle>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

/// What all experiments share.
struct Bench {
  cudaStream_t stream = nullptr;
  cublasLtHandle_t lt = nullptr;
  DeviceBuffer workspace{kWorkspaceBytes};
  int multiprocessors = 0;
  double bytes_per_second = 0;  ///< Memory bandwidth by the data sheet; 0 if unknown.
  double flops = 989e12;        ///< Dense bfloat16 of H100 SXM and H200.
  bool tiny = false;
  bool failed = false;
  /// Product and result type -> hash of the row bits of cuBLASLt's best fixed algorithm.
  std::map<std::string, std::uint64_t> lt_bits;
};

// ---- Device code: operands, reference and inspection of results ----

__host__ __device__ inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

/// Fills with nearly normal values: each is a sum of four uniform ones.
__global__ void fill_normal(Bfloat16* out, std::int64_t count, std::uint64_t seed,
                            float deviation) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint64_t bits = mix(seed + static_cast<std::uint64_t>(i));
    float sum = 0.0F;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>((bits >> (16 * part)) & 0xffffU) * (1.0F / 65536.0F);
    }
    out[i] = __float2bfloat16((sum - 2.0F) * 1.7320508F * deviation);
  }
}

/// Element (i, j) is at data[i * row + j * column].
struct Operand {
  const Bfloat16* data;
  std::int64_t row, column;
};
struct Place {
  std::int32_t row, column;
};

/// Computes out[i] in float64: element places[i] of p · q. Requires: 128 threads, a block each.
__global__ void reference_elements(Operand p, Operand q, std::int64_t depth, const Place* places,
                                   double* out) {
  __shared__ double sums[128];
  const Place place = places[blockIdx.x];
  double sum = 0.0;
  for (std::int64_t k = threadIdx.x; k < depth; k += blockDim.x) {
    sum += static_cast<double>(__bfloat162float(p.data[place.row * p.row + k * p.column])) *
           static_cast<double>(__bfloat162float(q.data[k * q.row + place.column * q.column]));
  }
  sums[threadIdx.x] = sum;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    out[blockIdx.x] = sums[0];
  }
}

/// What a result shows. `wrong_poison`: elements never written, or written outside the result.
struct Findings {
  double squared_error, squared_norm;
  unsigned long long wrong_poison;
  unsigned long long hash[kMaxPositions];
  unsigned int differing[kMaxPositions];
};

__device__ inline float widen(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ inline float widen(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

template <class Word>
__global__ void compare_with_reference(const Word* result, std::int64_t columns,
                                       const Place* places, const double* expected,
                                       std::int64_t count, Findings* findings) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && places[i].row >= 0) {
    const double value = widen(result[places[i].row * columns + places[i].column]);
    const double error = value - expected[i];
    atomicAdd(&findings->squared_error, error * error);
    atomicAdd(&findings->squared_norm, expected[i] * expected[i]);
  }
}

template <class Word>
__global__ void check_poison(const Word* result, std::int64_t inside, std::int64_t all,
                             Findings* findings) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    if ((result[i] == static_cast<Word>(~Word{0})) == (i < inside)) {
      atomicAdd(&findings->wrong_poison, 1ULL);
    }
  }
}

/// Hashes row positions[blockIdx.x] and counts the elements that differ from `expected`.
template <class Word>
__global__ void inspect_rows(const Word* result, std::int64_t columns,
                             const std::int32_t* positions, const Word* expected,
                             Findings* findings) {
  const Word* const line = result + positions[blockIdx.x] * columns;
  unsigned long long hash = 0;
  unsigned int differing = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    hash += mix((static_cast<std::uint64_t>(i) << 32) ^ line[i]);
    differing += line[i] != expected[i] ? 1 : 0;
  }
  atomicAdd(&findings->hash[blockIdx.x], hash);
  atomicAdd(&findings->differing[blockIdx.x], differing);
}

void fill(Bench& bench, Bfloat16* out, std::int64_t count, std::uint64_t seed, float deviation) {
  fill_normal<<<1024, 256, 0, bench.stream>>>(out, count, mix(seed), deviation);
  check(cudaGetLastError(), "fill operands");
}

// ---- Time ----

/// Enqueues one product that reads the weights' copy number `copy`.
using Launch = std::function<void(int copy)>;

using Event = Owner<cudaEvent_t>;
Event make_event() {
  cudaEvent_t made = nullptr;
  check(cudaEventCreate(&made), "create an event");
  return Event(made);
}

/// A graph of products. In a graph, as in decoding, the host's time for a launch does not count.
class Timer {
 public:
  Timer(Bench& bench, const Launch& launch, int copies, int launches)
      : stream_(bench.stream), launches_(launches) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "begin a capture");
    try {
      for (int i = 0; i < launches; ++i) {
        launch(i % copies);
      }
    } catch (...) {
      end_capture();
      cudaGetLastError();
      throw;
    }
    check(end_capture(), "capture products");
    cudaGraphExec_t made = nullptr;
    check(cudaGraphInstantiate(&made, graph_.get(), 0), "instantiate a graph");
    program_.reset(made);
  }

  /// Returns the median microseconds of one product.
  double median(int warm_up, int samples) {
    for (int i = 0; i < warm_up; ++i) {
      check(cudaGraphLaunch(program_.get(), stream_), "launch a graph");
    }
    std::vector<double> times;
    for (int i = 0; i < samples; ++i) {
      check(cudaEventRecord(begin_.get(), stream_), "record an event");
      check(cudaGraphLaunch(program_.get(), stream_), "launch a graph");
      check(cudaEventRecord(end_.get(), stream_), "record an event");
      check(cudaEventSynchronize(end_.get()), "wait for products");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "read a time");
      times.push_back(1e3 * milliseconds / launches_);
    }
    std::sort(times.begin(), times.end());
    return (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
  }

 private:
  cudaError_t end_capture() {
    cudaGraph_t made = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_, &made);
    graph_.reset(made);
    return status;
  }
  cudaStream_t stream_;
  int launches_;
  Event begin_ = make_event(), end_ = make_event();
  Owner<cudaGraph_t> graph_;
  Owner<cudaGraphExec_t> program_;
};

// ---- cuBLASLt ----

/// Has a name of its own because nvcc 13.0 crashes on a std::vector of cuBLASLt's unnamed struct.
struct Algorithm {
  cublasLtMatmulAlgo_t value;
};
constexpr int kMaxHeuristics = 32;

/// y[rows, columns] = p · q over `depth`, all row-major. p is stored [rows, depth] or, transposed,
/// [depth, rows]; q is stored [depth, columns] or, transposed, [columns, depth].
struct Shape {
  bool transposed_p, transposed_q;
  std::int64_t rows, columns, depth;
  cudaDataType_t result;
};

/// cuBLASLt's matrices are column-major, so it computes yᵀ = qᵀ · pᵀ.
class LtProduct {
 public:
  LtProduct(Bench& bench, const Shape& shape) : bench_(bench) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product");
    description_.reset(made);
    const std::int32_t first = shape.transposed_q ? CUBLAS_OP_T : CUBLAS_OP_N;
    const std::int32_t second = shape.transposed_p ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
          "describe a product");
    check(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
          "describe a product");
    q_ = shape.transposed_q ? layout(CUDA_R_16BF, shape.depth, shape.columns)
                            : layout(CUDA_R_16BF, shape.columns, shape.depth);
    p_ = shape.transposed_p ? layout(CUDA_R_16BF, shape.rows, shape.depth)
                            : layout(CUDA_R_16BF, shape.depth, shape.rows);
    y_ = layout(shape.result, shape.columns, shape.rows);
  }

  /// Returns up to `count` algorithms, best first; none if cuBLASLt knows none.
  /// Requires: count <= kMaxHeuristics.
  [[nodiscard]] std::vector<Algorithm> heuristics(int count, std::uint64_t workspace,
                                                  std::uint32_t reductions) const {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "create a preference");
    const Owner<cublasLtMatmulPreference_t> preference(made);
    check(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace, sizeof workspace),
          "set the workspace");
    check(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                               &reductions, sizeof reductions),
          "set the reductions");
    std::array<cublasLtMatmulHeuristicResult_t, kMaxHeuristics> found{};
    int returned = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(bench_.lt, description_.get(), q_.get(), p_.get(), y_.get(),
                                       y_.get(), made, count, found.data(), &returned);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
      check(status, "ask for algorithms");
    }
    std::vector<Algorithm> algorithms;
    for (int i = 0; i < returned; ++i) {
      if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
        algorithms.push_back({found[static_cast<std::size_t>(i)].algo});
      }
    }
    return algorithms;
  }

  /// Returns whether this product can run with `algorithm` and so much workspace.
  [[nodiscard]] bool accepts(const Algorithm& algorithm, std::size_t workspace) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(bench_.lt, description_.get(), q_.get(), p_.get(), y_.get(),
                                   y_.get(), &algorithm.value, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= workspace;
  }

  struct Call {
    const void *p, *q;
    void* y;
    std::size_t workspace = 0;
    bool accumulate = false;
  };
  [[nodiscard]] cublasStatus_t run(const Algorithm& algorithm, const Call& call) const {
    const float one = 1.0F;
    const float beta = call.accumulate ? 1.0F : 0.0F;
    return cublasLtMatmul(bench_.lt, description_.get(), &one, call.q, q_.get(), call.p, p_.get(),
                          &beta, call.y, y_.get(), call.y, y_.get(), &algorithm.value,
                          call.workspace == 0 ? nullptr : bench_.workspace.as<void>(),
                          call.workspace, bench_.stream);
  }

 private:
  using Layout = Owner<cublasLtMatrixLayout_t>;
  static Layout layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), rows),
          "describe a matrix");
    return Layout(made);
  }
  Bench& bench_;
  Owner<cublasLtMatmulDesc_t> description_;
  Layout q_, p_, y_;
};

template <class T>
T setting(const Algorithm& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  std::size_t written = 0;
  check(cublasLtMatmulAlgoConfigGetAttribute(&algorithm.value, attribute, &value, sizeof value,
                                             &written),
        "read an algorithm's setting");
  return value;
}

std::string name_of(const Algorithm& one) {
  return text("id %d tile %u stages %u cluster %u inner %u swizzle %u custom %u split-K %d",
              setting<std::int32_t>(one, CUBLASLT_ALGO_CONFIG_ID),
              setting<std::uint32_t>(one, CUBLASLT_ALGO_CONFIG_TILE_ID),
              setting<std::uint32_t>(one, CUBLASLT_ALGO_CONFIG_STAGES_ID),
              setting<std::uint16_t>(one, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
              setting<std::uint16_t>(one, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
              setting<std::uint32_t>(one, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
              setting<std::uint32_t>(one, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
              setting<std::int32_t>(one, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

bool splits_depth(const Algorithm& one) {
  return setting<std::int32_t>(one, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1 ||
         setting<std::uint32_t>(one, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) !=
             CUBLASLT_REDUCTION_SCHEME_NONE;
}

// ---- Decoding: the same row among different numbers of rows ----

struct Weights {
  const char* name;
  std::int64_t columns, depth;  ///< N, K.
};
std::vector<Weights> decoding_weights(bool tiny) {
  if (tiny) {
    return {{"qkv", 384, 256}, {"down", 256, 512}};
  }
  return {{"qkv", 4608, 3584}, {"o", 3584, 3584}, {"gate_up", 37888, 3584}, {"down", 3584, 18944}};
}

constexpr std::size_t kNumRows = 5;
using RowCounts = std::array<std::int64_t, kNumRows>;
RowCounts row_counts(bool tiny) {
  return tiny ? RowCounts{1, 4, 8, 16, 32} : RowCounts{1, 8, 64, 512, 1024};
}
/// An algorithm that is invariant so far must also be with these.
std::vector<std::int64_t> odd_row_counts(bool tiny) {
  return tiny ? std::vector<std::int64_t>{3, 7} : std::vector<std::int64_t>{3, 37, 200, 1000};
}

struct Outcome {
  bool refused = true;
  bool alike = false;  ///< The row has the same bits at all its positions.
  bool correct = false;
  std::uint64_t hash = 0;
  double differing = 0;  ///< Share of the row's elements that differ from those of one row.
  double error = kNan;
  double microseconds = kNan;
  [[nodiscard]] bool usable() const { return !refused && alike && correct; }
};

/// Operands and results of one product y[M, N] = x[M, K] · w[N, K]ᵀ for all M. Row 0 of x stands
/// again at the last index of every M; the other rows are random.
class Decoding {
 public:
  Decoding(Bench& bench, const Weights& weights, cudaDataType_t result)
      : bench_(bench),
        weights_(weights),
        result_(result),
        counts_(row_counts(bench.tiny)),
        copies_(copies_of(weights, bench.tiny)),
        w_(static_cast<std::size_t>(copies_ * weights.columns * weights.depth) * sizeof(Bfloat16)),
        x_(static_cast<std::size_t>(max_rows() * weights.depth) * sizeof(Bfloat16)),
        y_(static_cast<std::size_t>((max_rows() + kGuardRows) * weights.columns) * result_bytes()),
        expected_row_(static_cast<std::size_t>(weights.columns) * result_bytes()),
        findings_(sizeof(Findings)) {
    fill(bench, w_.as<Bfloat16>(), copies_ * weights.columns * weights.depth, 1, 0.02F);
    fill(bench, x_.as<Bfloat16>(), max_rows() * weights.depth, 2, 1.0F);
    positions_ = {0};
    for (const std::int64_t count : counts_) {
      positions_.push_back(static_cast<std::int32_t>(count - 1));
    }
    for (const std::int64_t count : odd_row_counts(bench.tiny)) {
      positions_.push_back(static_cast<std::int32_t>(count - 1));
    }
    std::sort(positions_.begin(), positions_.end());
    positions_.erase(std::unique(positions_.begin(), positions_.end()), positions_.end());
    for (const std::int32_t position : positions_) {
      if (position != 0) {
        check(cudaMemcpyAsync(x_.as<Bfloat16>() + position * weights.depth, x_.as<void>(),
                              static_cast<std::size_t>(weights.depth) * sizeof(Bfloat16),
                              cudaMemcpyDeviceToDevice, bench.stream),
              "repeat a row");
      }
    }
    device_positions_ = std::make_unique<DeviceBuffer>(upload(positions_));
    make_reference();
  }

  [[nodiscard]] std::string name() const {
    return text("%s %lld x %lld %s", weights_.name, static_cast<long long>(weights_.columns),
                static_cast<long long>(weights_.depth),
                result_ == CUDA_R_32F ? "float32" : "bfloat16");
  }
  [[nodiscard]] const RowCounts& counts() const { return counts_; }
  [[nodiscard, maybe_unused]] const Weights& weights() const { return weights_; }
  [[nodiscard]] int copies() const { return static_cast<int>(copies_); }
  [[nodiscard]] const Bfloat16* x() const { return x_.as<Bfloat16>(); }
  [[nodiscard]] const Bfloat16* w(int copy) const {
    return w_.as<Bfloat16>() + copy * weights_.columns * weights_.depth;
  }
  [[nodiscard]] void* y() const { return y_.as<void>(); }
  [[nodiscard]] Shape shape(std::int64_t rows) const {
    return {false, true, rows, weights_.columns, weights_.depth, result_};
  }

  /// Runs `launch` once for so many rows and looks at the result. Call it for one row first: other
  /// numbers of rows are compared with that.
  Outcome inspect(const Launch& launch, std::int64_t rows) {
    return result_ == CUDA_R_32F ? inspect_words<std::uint32_t>(launch, rows)
                                 : inspect_words<std::uint16_t>(launch, rows);
  }

  /// Returns a timer of products that read each copy of the weights in turn.
  [[nodiscard]] std::unique_ptr<Timer> timer(const Launch& launch, std::int64_t rows) const {
    constexpr int kLaunchesOfFewRows = 20;
    const int rounds = rows <= 64 ? (kLaunchesOfFewRows + copies() - 1) / copies() : 1;
    return std::make_unique<Timer>(bench_, launch, copies(), rounds * copies());
  }

  /// Describes so many microseconds: "8.31 us = 3975 GB/s", and its share of the bound.
  [[nodiscard]] std::string rate(double microseconds, std::int64_t rows) const {
    if (std::isnan(microseconds)) {
      return "none";
    }
    return rows <= 64 ? text("%.2f us = %.0f GB/s", microseconds, bytes() / microseconds / 1e3)
                      : text("%.1f us = %.0f TFLOP/s", microseconds,
                             operations(rows) / microseconds / 1e6);
  }
  [[nodiscard]] std::string bound(std::int64_t rows) const {
    if (rows > 64) {
      return text("%.0f TFLOP/s", bench_.flops / 1e12);
    }
    return bench_.bytes_per_second > 0 ? text("%.0f GB/s", bench_.bytes_per_second / 1e9)
                                       : "unknown";
  }
  [[nodiscard]] std::string share(double microseconds, std::int64_t rows) const {
    if (!std::isfinite(microseconds)) {
      return "none";
    }
    const double seconds = microseconds * 1e-6;
    if (rows > 64) {
      return text("%.1f %%", 100 * operations(rows) / seconds / bench_.flops);
    }
    return bench_.bytes_per_second > 0
               ? text("%.1f %%", 100 * bytes() / seconds / bench_.bytes_per_second)
               : "unknown";
  }

 private:
  static std::int64_t copies_of(const Weights& weights, bool tiny) {
    const auto bytes = weights.columns * weights.depth * std::int64_t{sizeof(Bfloat16)};
    const std::int64_t rotated = tiny ? bytes * 2 : static_cast<std::int64_t>(kRotatedBytes);
    return std::max<std::int64_t>(2, (rotated + bytes - 1) / bytes);
  }
  [[nodiscard]] std::int64_t max_rows() const { return counts_.back(); }
  [[nodiscard]] std::size_t result_bytes() const {
    return result_ == CUDA_R_32F ? sizeof(float) : sizeof(Bfloat16);
  }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(weights_.columns * weights_.depth) * sizeof(Bfloat16);
  }
  [[nodiscard]] double operations(std::int64_t rows) const {
    return 2.0 * static_cast<double>(weights_.columns * weights_.depth * rows);
  }

  /// The repeated row, and a random row close to the end of each M.
  void make_reference() {
    std::vector<std::int32_t> rows{0};
    for (const std::int64_t count : counts_) {
      if (count > 2) {
        rows.push_back(static_cast<std::int32_t>(count - 2));
      }
    }
    std::vector<Place> places;
    for (const std::int32_t line : rows) {
      for (std::int32_t column = 0; column < weights_.columns; ++column) {
        places.push_back({line, column});
      }
    }
    places_ = std::make_unique<DeviceBuffer>(upload(places));
    reference_ = std::make_unique<DeviceBuffer>(places.size() * sizeof(double));
    reference_rows_ = rows;
    reference_elements<<<static_cast<unsigned>(places.size()), 128, 0, bench_.stream>>>(
        {x(), weights_.depth, 1}, {w(0), 1, weights_.depth}, weights_.depth, places_->as<Place>(),
        reference_->as<double>());
    check(cudaGetLastError(), "compute a reference");
    check(cudaStreamSynchronize(bench_.stream), "compute a reference");
  }

  template <class Word>
  Outcome inspect_words(const Launch& launch, std::int64_t rows) {
    const std::int64_t columns = weights_.columns;
    const auto* const result = y_.as<Word>();
    const auto result_size = static_cast<std::size_t>((rows + kGuardRows) * columns) * sizeof(Word);
    check(cudaMemsetAsync(y_.as<void>(), 0xff, result_size, bench_.stream), "poison a result");
    check(cudaMemsetAsync(findings_.as<void>(), 0, sizeof(Findings), bench_.stream), "clear");
    launch(0);
    if (rows == 1) {
      check(cudaMemcpyAsync(expected_row_.as<void>(), result,
                            static_cast<std::size_t>(columns) * sizeof(Word),
                            cudaMemcpyDeviceToDevice, bench_.stream),
            "keep a row");
    }
    auto* const findings = findings_.as<Findings>();
    check_poison<<<512, 256, 0, bench_.stream>>>(result, rows * columns,
                                                 (rows + kGuardRows) * columns, findings);
    // reference_rows_ ascend, so that those of this M come first.
    const auto checked = std::count_if(reference_rows_.begin(), reference_rows_.end(),
                                       [&](std::int32_t line) { return line < rows; });
    const std::int64_t compared = checked * columns;
    compare_with_reference<<<static_cast<unsigned>((compared + 255) / 256), 256, 0,
                             bench_.stream>>>(result, columns, places_->as<Place>(),
                                              reference_->as<double>(), compared, findings);
    const auto num_positions = std::count_if(positions_.begin(), positions_.end(),
                                             [&](std::int32_t line) { return line < rows; });
    inspect_rows<<<static_cast<unsigned>(num_positions), 256, 0, bench_.stream>>>(
        result, columns, device_positions_->as<std::int32_t>(), expected_row_.as<Word>(), findings);
    check(cudaGetLastError(), "inspect a result");
    Findings found{};
    check(cudaMemcpyAsync(&found, findings, sizeof found, cudaMemcpyDeviceToHost, bench_.stream),
          "read findings");
    check(cudaStreamSynchronize(bench_.stream), "inspect a result");
    return outcome_of(found, static_cast<int>(num_positions));
  }

  [[nodiscard]] Outcome outcome_of(const Findings& found, int num_positions) const {
    Outcome outcome;
    outcome.refused = false;
    outcome.hash = found.hash[0];
    outcome.alike = true;
    for (int i = 0; i < num_positions; ++i) {
      outcome.alike = outcome.alike && found.hash[i] == found.hash[0];
      outcome.differing =
          std::max(outcome.differing, found.differing[i] / static_cast<double>(weights_.columns));
    }
    outcome.error = std::sqrt(found.squared_error / found.squared_norm);
    outcome.correct = outcome.error < kMaxError && found.wrong_poison == 0;
    return outcome;
  }

  Bench& bench_;
  Weights weights_;
  cudaDataType_t result_;
  RowCounts counts_;
  std::int64_t copies_;
  DeviceBuffer w_, x_, y_, expected_row_, findings_;
  std::vector<std::int32_t> positions_, reference_rows_;
  std::unique_ptr<DeviceBuffer> device_positions_, places_, reference_;
};

/// One way to compute a product, and what came of it at each number of rows.
struct Candidate {
  std::string name;
  std::function<Launch(std::int64_t rows)> at;  ///< Its result is empty if it refuses these rows.
  std::array<Outcome, kNumRows> outcomes{};
  [[nodiscard]] bool invariant() const {
    return std::all_of(outcomes.begin(), outcomes.end(), [&](const Outcome& one) {
      return one.usable() && one.hash == outcomes[0].hash;
    });
  }
  /// Of 1, 64 and 512 rows: a draft step, a batch and a prompt.
  [[nodiscard]] double score() const {
    return outcomes[0].microseconds + outcomes[2].microseconds + outcomes[3].microseconds;
  }
};

/// A candidate that cannot be launched or timed counts as refused, unless the device has failed.
void inspect_and_time(Bench& bench, Decoding& decoding, Candidate& candidate) {
  for (std::size_t i = 0; i < kNumRows; ++i) {
    const std::int64_t rows = decoding.counts()[i];
    Outcome& outcome = candidate.outcomes[i];
    try {
      const Launch launch = candidate.at(rows);
      if (launch) {
        outcome = decoding.inspect(launch, rows);
        outcome.microseconds = decoding.timer(launch, rows)->median(1, 2);
      }
    } catch (const std::exception& error) {
      check(cudaStreamSynchronize(bench.stream), error.what());
      bench.failed = true;
      outcome = Outcome{};
      row(text("%s, M %lld, %s", decoding.name().c_str(), static_cast<long long>(rows),
               candidate.name.c_str()),
          std::string("FAILED: ") + error.what());
    }
  }
}

/// Returns whether `candidate`, invariant so far, also is at the odd numbers of rows.
bool invariant_at_odd_rows(Bench& bench, Decoding& decoding, Candidate& candidate) {
  for (const std::int64_t rows : odd_row_counts(bench.tiny)) {
    const Launch launch = candidate.at(rows);
    if (!launch) {
      return false;
    }
    const Outcome outcome = decoding.inspect(launch, rows);
    if (!outcome.usable() || outcome.hash != candidate.outcomes[0].hash) {
      return false;
    }
  }
  return true;
}

double time_again(Decoding& decoding, const Candidate& candidate, std::size_t i) {
  const std::int64_t rows = decoding.counts()[i];
  return decoding.timer(candidate.at(rows), rows)->median(2, 11);
}

std::string list_of_rows(const Decoding& decoding, const std::function<bool(std::size_t)>& chosen) {
  std::string list;
  for (std::size_t i = 0; i < kNumRows; ++i) {
    if (chosen(i)) {
      list +=
          text("%s%lld", list.empty() ? "" : ", ", static_cast<long long>(decoding.counts()[i]));
    }
  }
  return list.empty() ? "none" : list;
}

/// A candidate that runs `algorithm` with at most so much workspace.
Candidate lt_candidate(Bench& bench, Decoding& decoding, const Algorithm& algorithm,
                       std::size_t workspace) {
  const auto at = [&bench, &decoding, algorithm, workspace](std::int64_t rows) -> Launch {
    const auto product = std::make_shared<LtProduct>(bench, decoding.shape(rows));
    const auto run = [&decoding, product, algorithm, workspace](int copy) {
      return product->run(algorithm, {decoding.x(), decoding.w(copy), decoding.y(), workspace});
    };
    // A check that passes does not promise that the product runs.
    if (!product->accepts(algorithm, workspace) || run(0) != CUBLAS_STATUS_SUCCESS) {
      cudaGetLastError();
      return {};
    }
    return [run](int copy) { check(run(copy), "multiply"); };
  };
  return {name_of(algorithm), at};
}

/// Returns the different algorithms without split-K that cuBLASLt proposes for 64, 1 and 1024 rows.
std::vector<Candidate> fixed_candidates(Bench& bench, Decoding& decoding) {
  std::vector<Algorithm> all;
  for (const std::size_t i : {std::size_t{2}, std::size_t{0}, kNumRows - 1}) {
    const LtProduct product(bench, decoding.shape(decoding.counts()[i]));
    for (const auto& one : product.heuristics(kMaxHeuristics, 0, CUBLASLT_REDUCTION_SCHEME_NONE)) {
      const bool known = std::any_of(all.begin(), all.end(), [&](const auto& other) {
        return std::memcmp(&one, &other, sizeof one) == 0;
      });
      if (!known && !splits_depth(one)) {
        all.push_back(one);
      }
    }
  }
  std::vector<Candidate> candidates;
  for (const auto& one : all) {
    candidates.push_back(lt_candidate(bench, decoding, one, 0));
  }
  return candidates;
}

/// cuBLASLt's first heuristic at each number of rows, with workspace and any reduction.
Candidate free_choice(Bench& bench, Decoding& decoding) {
  const auto at = [&bench, &decoding](std::int64_t rows) -> Launch {
    const auto found = LtProduct(bench, decoding.shape(rows))
                           .heuristics(1, kWorkspaceBytes, CUBLASLT_REDUCTION_SCHEME_MASK);
    return found.empty() ? Launch{}
                         : lt_candidate(bench, decoding, found[0], kWorkspaceBytes).at(rows);
  };
  return {"free choice", at};
}

/// Algorithms that give the row the same bits may be mixed: the fastest of them at each M.
struct Mix {
  std::array<const Candidate*, kNumRows> best{};
  double score = std::numeric_limits<double>::infinity();
};
Mix best_mix(const std::vector<Candidate>& candidates) {
  std::map<std::uint64_t, Mix> mixes;
  for (const Candidate& one : candidates) {
    for (std::size_t i = 0; i < kNumRows; ++i) {
      if (one.outcomes[i].usable()) {
        const Candidate*& best = mixes[one.outcomes[i].hash].best[i];
        if (best == nullptr || one.outcomes[i].microseconds < best->outcomes[i].microseconds) {
          best = &one;
        }
      }
    }
  }
  Mix chosen;
  for (auto& [hash, mix] : mixes) {
    if (std::find(mix.best.begin(), mix.best.end(), nullptr) == mix.best.end()) {
      mix.score = mix.best[0]->outcomes[0].microseconds + mix.best[2]->outcomes[2].microseconds +
                  mix.best[3]->outcomes[3].microseconds;
      if (mix.score < chosen.score) {
        chosen = mix;
      }
    }
  }
  return chosen;
}

void report_invariance(const Decoding& decoding, const std::vector<Candidate>& candidates) {
  int invariant = 0, mixed = 0, wrong = 0;
  std::array<int, kNumRows> refused{};
  std::map<std::uint64_t, int> groups;
  double worst_error = 0, worst_difference = 0;
  for (const Candidate& one : candidates) {
    const auto is = [&](auto what) {
      return std::any_of(one.outcomes.begin(), one.outcomes.end(), what);
    };
    const bool any_refused = is([](const Outcome& each) { return each.refused; });
    const bool any_wrong = is([](const Outcome& each) { return !each.refused && !each.correct; });
    for (std::size_t i = 0; i < kNumRows; ++i) {
      refused[i] += one.outcomes[i].refused ? 1 : 0;
      if (!one.outcomes[i].refused) {
        worst_error = std::max(worst_error, one.outcomes[i].error);
      }
      if (!one.outcomes[0].refused && !one.outcomes[i].refused) {
        worst_difference = std::max(worst_difference, one.outcomes[i].differing);
      }
    }
    invariant += one.invariant() ? 1 : 0;
    wrong += any_wrong ? 1 : 0;
    mixed += !one.invariant() && !any_refused && !any_wrong ? 1 : 0;
    if (one.invariant()) {
      ++groups[one.outcomes[0].hash];
    }
  }
  std::string refusals;
  for (std::size_t i = 0; i < kNumRows; ++i) {
    refusals += text("%s%d at M %lld", i == 0 ? "" : ", ", refused[i],
                     static_cast<long long>(decoding.counts()[i]));
  }
  row(decoding.name() + ", algorithms that give a row equal bits at every M",
      text("%d; other bits %d; wrong %d; refused %s", invariant, mixed, wrong, refusals.c_str()),
      text("%zu candidates", candidates.size()),
      text("%.2f", invariant / std::max(1.0, static_cast<double>(candidates.size()))));
  int largest = 0;
  for (const auto& [hash, size] : groups) {
    largest = std::max(largest, size);
  }
  row(decoding.name() + ", invariant algorithms that also agree with each other",
      text("%d in the largest of %zu groups; largest error %.2g; most elements of a row that "
           "differ %.1f %%",
           largest, groups.size(), worst_error, 100 * worst_difference),
      text("error %.2g", kMaxError));
}

void compare_fixed_algorithms(Bench& bench, const Weights& weights, cudaDataType_t result) {
  Decoding decoding(bench, weights, result);
  std::vector<Candidate> candidates = fixed_candidates(bench, decoding);
  constexpr double kMaxSeconds = 3.5;
  const auto begin = std::chrono::steady_clock::now();
  std::size_t done = 0;
  while (done < candidates.size() &&
         std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
             kMaxSeconds) {
    inspect_and_time(bench, decoding, candidates[done++]);
  }
  if (done < candidates.size()) {
    row(decoding.name() + ", algorithms left out for time", text("%zu", candidates.size() - done));
    candidates.resize(done);
  }
  report_invariance(decoding, candidates);

  Candidate free = free_choice(bench, decoding);
  inspect_and_time(bench, decoding, free);
  const auto other_bits = [&](std::size_t i) {
    return !free.outcomes[i].refused &&
           (!free.outcomes[i].alike || free.outcomes[i].hash != free.outcomes[0].hash);
  };
  row(decoding.name() + ", free choice, M with other bits than M 1",
      list_of_rows(decoding, other_bits) +
          (std::all_of(free.outcomes.begin(), free.outcomes.end(),
                       [](const Outcome& one) { return one.correct; })
               ? ""
               : "; refused or wrong somewhere"));

  const Candidate* fixed = nullptr;
  for (const Candidate& one : candidates) {
    if (one.invariant() && (fixed == nullptr || one.score() < fixed->score())) {
      fixed = &one;
    }
  }
  const Mix mix = best_mix(candidates);
  if (fixed != nullptr) {
    Candidate copy = *fixed;
    row(decoding.name() + ", fastest fixed algorithm",
        fixed->name + (invariant_at_odd_rows(bench, decoding, copy) ? "; invariant at odd M too"
                                                                    : "; NOT invariant at odd M"));
    bench.lt_bits[decoding.name()] = fixed->outcomes[0].hash;
  }
  for (std::size_t i = 0; i < kNumRows; ++i) {
    const std::int64_t rows = decoding.counts()[i];
    const double fixed_time = fixed == nullptr ? kNan : time_again(decoding, *fixed, i);
    const double mixed_time = mix.best[i] == nullptr ? kNan : time_again(decoding, *mix.best[i], i);
    const double free_time = free.outcomes[i].refused ? kNan : time_again(decoding, free, i);
    row(text("%s, M %lld", decoding.name().c_str(), static_cast<long long>(rows)),
        text("fixed %s; fastest of equal bits %s (%s); free choice %.2f us",
             decoding.rate(fixed_time, rows).c_str(), decoding.rate(mixed_time, rows).c_str(),
             mix.best[i] == nullptr ? "none" : mix.best[i]->name.c_str(), free_time),
        decoding.bound(rows),
        text("fixed %s, %.2f of free; equal bits %.2f of free",
             decoding.share(fixed_time, rows).c_str(), free_time / fixed_time,
             free_time / mixed_time));
  }
}

// ---- CUTLASS ----

#ifdef JFORGE_WITH_CUTLASS
/// Weights are the MMA's first operand, so that few rows of x fill its narrow side.
template <class TileShape, class ClusterShape, class MainSchedule, class EndSchedule>
struct CutlassKernel {
  using Element = cutlass::bfloat16_t;
  using Weights = cutlass::layout::RowMajor;
  using Activations = cutlass::layout::ColumnMajor;
  using Result = cutlass::layout::ColumnMajor;
  using End = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Result, 4, float, Result,
      4, EndSchedule>::CollectiveOp;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Weights, 8, Element,
      Activations, 8, float, TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename End::SharedStorage))>,
      MainSchedule>::CollectiveOp;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Main, End>>;
};

void check(cutlass::Status status, const char* what) {
  if (status != cutlass::Status::kSuccess) {
    throw std::runtime_error(text("CUTLASS: %s: %s; CUDA: %s", what, cutlassGetStatusString(status),
                                  cudaGetErrorString(cudaGetLastError())));
  }
}

/// Returns a launch of `Gemm` for so many rows, with its parameters for each copy of the weights.
template <class Gemm>
Launch cutlass_launch(Bench& bench, const Decoding& decoding, std::int64_t rows) {
  const auto [name, columns, depth] = decoding.weights();
  const auto gemms =
      std::make_shared<std::vector<Gemm>>(static_cast<std::size_t>(decoding.copies()));
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = 0;
  hardware.sm_count = bench.multiprocessors;
  for (int copy = 0; copy < decoding.copies(); ++copy) {
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(columns), static_cast<int>(rows), static_cast<int>(depth), 1},
        {reinterpret_cast<const cutlass::bfloat16_t*>(decoding.w(copy)),
         {depth, cute::_1{}, std::int64_t{0}},
         reinterpret_cast<const cutlass::bfloat16_t*>(decoding.x()),
         {depth, cute::_1{}, std::int64_t{0}}},
        {{},
         nullptr,
         {cute::_1{}, columns, std::int64_t{0}},
         static_cast<float*>(decoding.y()),
         {cute::_1{}, columns, std::int64_t{0}}},
        hardware};
    arguments.epilogue.thread.alpha = 1.0F;
    arguments.epilogue.thread.beta = 0.0F;
    if (Gemm::get_workspace_size(arguments) > kWorkspaceBytes) {
      throw std::runtime_error("CUTLASS: more workspace than 64 MiB");
    }
    if (Gemm::can_implement(arguments) != cutlass::Status::kSuccess) {
      return {};
    }
    check((*gemms)[static_cast<std::size_t>(copy)].initialize(arguments, bench.workspace.as<void>(),
                                                              bench.stream),
          "initialize a kernel");
  }
  return [gemms, stream = bench.stream](int copy) {
    check((*gemms)[static_cast<std::size_t>(copy)].run(stream), "launch a kernel");
  };
}

template <class Kernel>
Candidate cutlass_candidate(Bench& bench, const Decoding& decoding, const char* name) {
  return {name, [&bench, &decoding](std::int64_t rows) {
            return cutlass_launch<typename Kernel::Gemm>(bench, decoding, rows);
          }};
}

/// Tiles are weights x activations x depth.
std::vector<Candidate> cutlass_candidates(Bench& bench, const Decoding& decoding) {
  using namespace cute;
  using One = cute::Shape<_1, _1, _1>;
  using Plain = cutlass::gemm::KernelTmaWarpSpecialized;
  using PingPong = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Cooperative = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using End = cutlass::epilogue::TmaWarpSpecialized;
  using CooperativeEnd = cutlass::epilogue::TmaWarpSpecializedCooperative;
  return {
      cutlass_candidate<CutlassKernel<cute::Shape<_64, _16, _128>, One, Plain, End>>(
          bench, decoding, "64x16x128"),
      cutlass_candidate<CutlassKernel<cute::Shape<_64, _64, _128>, One, PingPong, End>>(
          bench, decoding, "64x64x128 ping-pong"),
      cutlass_candidate<CutlassKernel<cute::Shape<_128, _128, _64>, One, PingPong, End>>(
          bench, decoding, "128x128x64 ping-pong"),
      cutlass_candidate<CutlassKernel<cute::Shape<_128, _256, _64>, cute::Shape<_2, _1, _1>,
                                      Cooperative, CooperativeEnd>>(
          bench, decoding, "128x256x64 cooperative, cluster 2"),
  };
}

void compare_cutlass(Bench& bench, const Weights& weights) {
  Decoding decoding(bench, weights, CUDA_R_32F);
  std::vector<Candidate> candidates = cutlass_candidates(bench, decoding);
  const auto lt_bits = bench.lt_bits.find(decoding.name());
  for (Candidate& one : candidates) {
    inspect_and_time(bench, decoding, one);
    const auto same_as = [&](std::uint64_t hash) {
      return one.outcomes[0].hash == hash ? "same" : "other";
    };
    const auto broken = [&](std::size_t i) { return !one.outcomes[i].usable(); };
    const auto other_bits = [&](std::size_t i) {
      return one.outcomes[i].hash != one.outcomes[0].hash;
    };
    row(text("CUTLASS %s, %s", decoding.name().c_str(), one.name.c_str()),
        text("%s; M with other bits than M 1: %s; M refused, wrong or uneven: %s; odd M: %s; error "
             "%.2g; bits of the first kernel: %s; bits of cuBLASLt's fixed algorithm: %s",
             one.invariant() ? "invariant" : "NOT invariant",
             list_of_rows(decoding, other_bits).c_str(), list_of_rows(decoding, broken).c_str(),
             invariant_at_odd_rows(bench, decoding, one) ? "invariant" : "NOT invariant",
             one.outcomes.back().error, same_as(candidates[0].outcomes[0].hash),
             lt_bits == bench.lt_bits.end() ? "not known" : same_as(lt_bits->second)),
        text("error %.2g", kMaxError));
  }
  for (std::size_t i = 0; i < kNumRows; ++i) {
    const std::int64_t rows = decoding.counts()[i];
    double best = std::numeric_limits<double>::infinity();
    std::string figure;
    for (const Candidate& one : candidates) {
      const double time = one.outcomes[i].refused ? kNan : time_again(decoding, one, i);
      figure += text("%s%s: %s", figure.empty() ? "" : "; ", one.name.c_str(),
                     decoding.rate(time, rows).c_str());
      best = std::fmin(best, time);
    }
    row(text("CUTLASS %s, M %lld", decoding.name().c_str(), static_cast<long long>(rows)), figure,
        decoding.bound(rows), "best " + decoding.share(best, rows));
  }
}
#endif

// ---- Training ----

struct Training {
  const char* name;
  Shape shape;
  bool accumulate;
};

/// The three products of a layer y[m, n] = x[m, k] · w[n, k]ᵀ. Weight gradients are added up in
/// float32, as the trainer does.
std::array<Training, 3> training_products(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {{{"forward", {false, true, m, n, k, CUDA_R_16BF}, false},
           {"input gradient", {false, false, m, k, n, CUDA_R_16BF}, false},
           {"weight gradient", {true, false, n, k, m, CUDA_R_32F}, true}}};
}

/// Operands and result of one product of training.
class TrainingOperands {
 public:
  TrainingOperands(Bench& bench, const Shape& shape)
      : bench_(bench),
        shape_(shape),
        p_(static_cast<std::size_t>(shape.rows * shape.depth) * sizeof(Bfloat16)),
        q_(static_cast<std::size_t>(shape.columns * shape.depth) * sizeof(Bfloat16)),
        y_(static_cast<std::size_t>(shape.rows * shape.columns) *
           (shape.result == CUDA_R_32F ? sizeof(float) : sizeof(Bfloat16))),
        findings_(sizeof(Findings)) {
    fill(bench, p_.as<Bfloat16>(), shape.rows * shape.depth, 3, 1.0F);
    fill(bench, q_.as<Bfloat16>(), shape.columns * shape.depth, 4, 0.02F);
    std::vector<Place> places;
    for (std::uint64_t i = 0; i < kChecked; ++i) {
      places.push_back(
          {static_cast<std::int32_t>(mix(2 * i) % static_cast<std::uint64_t>(shape.rows)),
           static_cast<std::int32_t>(mix(2 * i + 1) % static_cast<std::uint64_t>(shape.columns))});
    }
    places_ = std::make_unique<DeviceBuffer>(upload(places));
    const Operand p = shape.transposed_p ? Operand{p_.as<Bfloat16>(), 1, shape.rows}
                                         : Operand{p_.as<Bfloat16>(), shape.depth, 1};
    const Operand q = shape.transposed_q ? Operand{q_.as<Bfloat16>(), 1, shape.depth}
                                         : Operand{q_.as<Bfloat16>(), shape.columns, 1};
    reference_elements<<<kChecked, 128, 0, bench.stream>>>(p, q, shape.depth, places_->as<Place>(),
                                                           reference_.as<double>());
    check(cudaGetLastError(), "compute a reference");
  }

  [[nodiscard]] LtProduct::Call call(bool accumulate) const {
    return {p_.as<void>(), q_.as<void>(), y_.as<void>(), kWorkspaceBytes, accumulate};
  }

  /// Returns the error of `launch`, which must not accumulate; NaN if an element was not written.
  double error(const Launch& launch) {
    check(cudaMemsetAsync(y_.as<void>(), 0xff, y_.bytes(), bench_.stream), "poison a result");
    check(cudaMemsetAsync(findings_.as<void>(), 0, sizeof(Findings), bench_.stream), "clear");
    launch(0);
    if (shape_.result == CUDA_R_32F) {
      look<std::uint32_t>();
    } else {
      look<std::uint16_t>();
    }
    Findings found{};
    check(cudaMemcpyAsync(&found, findings_.as<void>(), sizeof found, cudaMemcpyDeviceToHost,
                          bench_.stream),
          "read findings");
    check(cudaStreamSynchronize(bench_.stream), "multiply");
    return found.wrong_poison > 0 ? kNan : std::sqrt(found.squared_error / found.squared_norm);
  }

 private:
  static constexpr unsigned kChecked = 1024;
  template <class Word>
  void look() {
    compare_with_reference<<<kChecked / 256, 256, 0, bench_.stream>>>(
        y_.as<Word>(), shape_.columns, places_->as<Place>(), reference_.as<double>(), kChecked,
        findings_.as<Findings>());
    const std::int64_t elements = shape_.rows * shape_.columns;
    check_poison<<<512, 256, 0, bench_.stream>>>(y_.as<Word>(), elements, elements,
                                                 findings_.as<Findings>());
    check(cudaGetLastError(), "inspect a result");
  }
  Bench& bench_;
  Shape shape_;
  DeviceBuffer p_, q_, y_, findings_;
  DeviceBuffer reference_{kChecked * sizeof(double)};
  std::unique_ptr<DeviceBuffer> places_;
};

void compare_heuristics(Bench& bench, const Training& training) {
  const Shape& shape = training.shape;
  TrainingOperands operands(bench, shape);
  const LtProduct product(bench, shape);
  const auto found = product.heuristics(8, kWorkspaceBytes, CUBLASLT_REDUCTION_SCHEME_MASK);
  if (found.empty()) {
    throw std::runtime_error("cuBLASLt proposes no algorithm");
  }
  const auto launch = [&](std::size_t i, bool accumulate) -> Launch {
    return [&product, &found, &operands, i, accumulate](int) {
      check(product.run(found[i], operands.call(accumulate)), "multiply");
    };
  };
  constexpr int kLaunches = 2;
  std::vector<std::unique_ptr<Timer>> timers;
  std::size_t best = 0;
  double best_time = std::numeric_limits<double>::infinity(), worst_error = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = operands.error(launch(i, false));
    worst_error = error > worst_error || std::isnan(error) ? error : worst_error;
    launch(i, training.accumulate)(0);
    timers.push_back(std::make_unique<Timer>(bench, launch(i, training.accumulate), 1, kLaunches));
    const double time = timers.back()->median(1, 3);
    if (error < kMaxError && time < best_time) {
      best = i;
      best_time = time;
    }
  }
  // Measured again in turn, so that a warmer device or a lucky sample favors neither.
  std::vector<double> firsts, bests;
  for (int i = 0; i < 5; ++i) {
    firsts.push_back(timers[0]->median(1, 3));
    bests.push_back(best == 0 ? firsts.back() : timers[best]->median(1, 3));
  }
  std::sort(firsts.begin(), firsts.end());
  std::sort(bests.begin(), bests.end());
  const double operations = 2.0 * static_cast<double>(shape.rows) *
                            static_cast<double>(shape.columns) * static_cast<double>(shape.depth);
  const std::string name =
      text("training %s %lld x %lld over %lld", training.name, static_cast<long long>(shape.rows),
           static_cast<long long>(shape.columns), static_cast<long long>(shape.depth));
  const auto report = [&](const std::string& what, double time, const std::string& note) {
    const double rate = operations / time * 1e6;
    row(name + ", " + what, text("%.1f TFLOP/s (%.1f us)%s", rate / 1e12, time, note.c_str()),
        text("%.0f TFLOP/s", bench.flops / 1e12), text("%.1f %%", 100 * rate / bench.flops));
  };
  report("first heuristic", firsts[2], "; " + name_of(found[0]));
  report(text("best of %zu heuristics", found.size()), bests[2],
         text("; number %zu, %.3f times as fast as the first; largest error %.2g; ", best + 1,
              firsts[2] / bests[2], worst_error) +
             name_of(found[best]));
  if (!(worst_error < kMaxError)) {
    throw std::runtime_error(text("a wrong product: error %.2g", worst_error));
  }
}

// ---- The program ----

/// Runs `part`. A failure becomes a row, so that the other parts still run.
void attempt(Bench& bench, const std::string& name, const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    bench.failed = true;
    row(name, std::string("FAILED: ") + error.what());
  }
}

void run_decoding(Bench& bench) {
  for (const Weights& weights : decoding_weights(bench.tiny)) {
    for (const cudaDataType_t result : {CUDA_R_32F, CUDA_R_16BF}) {
      attempt(bench, text("%s, fixed algorithms", weights.name),
              [&] { compare_fixed_algorithms(bench, weights, result); });
    }
  }
}

void run_cutlass(Bench& bench) {
#ifdef JFORGE_WITH_CUTLASS
  for (const Weights& weights : decoding_weights(bench.tiny)) {
    attempt(bench, text("CUTLASS %s", weights.name), [&] { compare_cutlass(bench, weights); });
  }
#else
  static_cast<void>(bench);
  row("CUTLASS", "left out: compiled without its headers (cutlass/cutlass.h)");
#endif
}

void run_training(Bench& bench) {
  using Sizes = std::array<std::int64_t, 3>;
  const std::vector<Sizes> sizes =
      bench.tiny ? std::vector<Sizes>{{64, 128, 256}}
                 : std::vector<Sizes>{{8192, 18944, 3584}, {8192, 3584, 18944}, {8192, 4608, 3584},
                                      {8192, 3584, 3584},  {8192, 4864, 896},   {8192, 8192, 8192}};
  for (const auto& [m, n, k] : sizes) {
    for (const Training& training : training_products(m, n, k)) {
      attempt(bench, text("training %s", training.name),
              [&] { compare_heuristics(bench, training); });
    }
  }
}

void describe_device(Bench& bench) {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "read the device's properties");
  bench.multiprocessors = device.multiProcessorCount;
  const std::string name = device.name;
  if (name.find("H200") != std::string::npos) {
    bench.bytes_per_second = 4.8e12;
  } else if (name.find("H100") != std::string::npos) {
    bench.bytes_per_second = name.find("PCIe") != std::string::npos ? 2.0e12 : 3.35e12;
  }
  std::printf("- device: %s, %d multiprocessors, L2 %d MB, cuBLASLt %zu, ", name.c_str(),
              device.multiProcessorCount, device.l2CacheSize >> 20, cublasLtGetVersion());
#ifdef JFORGE_WITH_CUTLASS
  std::printf("CUTLASS %d.%d.%d\n", CUTLASS_MAJOR, CUTLASS_MINOR, CUTLASS_PATCH);
#else
  std::printf("without CUTLASS\n");
#endif
  std::printf(
      "- inputs bfloat16, sums float32; the result's type is in the row's name (decoding "
      "uses float32)\n\n| measurement | figure | bound | ratio |\n| --- | --- | --- | --- |\n");
  std::fflush(stdout);
}

int run(bool tiny, const std::string& only) {
  const auto begin = std::chrono::steady_clock::now();
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device can be used\n");
    return 77;
  }
  check(cudaSetDevice(0), "choose a device");
  Bench bench;
  bench.tiny = tiny;
  describe_device(bench);
  check(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking), "create a stream");
  check(cublasLtCreate(&bench.lt), "create a handle");
  if (only.empty() || only == "a") {
    run_decoding(bench);
  }
  if (only.empty() || only == "cutlass") {
    run_cutlass(bench);
  }
  if (only.empty() || only == "b") {
    run_training(bench);
  }
  check(cublasLtDestroy(bench.lt), "destroy a handle");
  check(cudaStreamDestroy(bench.stream), "destroy a stream");
  std::printf("\n%.1f s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return bench.failed ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  bool tiny = false;
  std::string only;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--tiny") {
      tiny = true;
    } else if (argument == "--only" && i + 1 < count) {
      only = arguments[++i];
    } else {
      only = "?";
    }
  }
  if (!only.empty() && only != "a" && only != "b" && only != "cutlass") {
    std::fprintf(stderr, "usage: product_experiment [--tiny] [--only a|b|cutlass]\n");
    return 2;
  }
  try {
    return run(tiny, only);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "product_experiment: %s\n", error.what());
    return 1;
  }
}
