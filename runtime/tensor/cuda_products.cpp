#include "runtime/tensor/cuda_products.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

namespace {

cudaDataType_t cuda_type(DType type) { return type == DType::float32 ? CUDA_R_32F : CUDA_R_16BF; }

/// Returns the largest power of two that divides an address, at most 16: an algorithm, and thus the
/// order of sums, must not depend on more of the address.
std::uint32_t alignment(const void* address) {
  constexpr std::uintptr_t kMost = 16;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::uint32_t>(std::min(kMost, (at & ~(at - 1)) | (at == 0 ? kMost : 0)));
}

template <class Description, class Value>
void describe(const Description& description, cublasLtMatmulDescAttributes_t attribute,
              const Value& value) {
  cublas_check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(Value)),
               "describe a product");
}

/// Column-major matrix `op(matrix)` [rows, columns].
cublasLtMatrixLayout_t layout(DType type, bool transposed, std::int64_t rows,
                              std::int64_t columns) {
  if (transposed) {
    std::swap(rows, columns);
  }
  cublasLtMatrixLayout_t made = nullptr;
  cublas_check(cublasLtMatrixLayoutCreate(&made, cuda_type(type), static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(columns), rows),
               "describe a matrix");
  return made;
}

/// Returns the largest row count of the class that shares an algorithm: powers of two from 8 to
/// 128, then multiples of 64.
std::int64_t row_class(std::int64_t rows) {
  constexpr std::int64_t kFewest = 8;
  constexpr std::int64_t kStep = 64;
  return rows <= 2 * kStep
             ? std::max(kFewest,
                        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows))))
             : (rows + kStep - 1) / kStep * kStep;
}

}  // namespace

void cublas_check(cublasStatus_t status, const char* what, std::source_location where) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]] {
    return;
  }
  expect_live_device(what, where);
  const std::string text =
      std::string("cuBLAS: ") + what + ": " + cublasLtGetStatusString(status) + at_place(where);
  if (status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED ||
      status == CUBLAS_STATUS_ARCH_MISMATCH) {
    throw EnvironmentError(text +
                           ": check that the device has memory left and that cuBLAS fits it" +
                           cuda_memory::free_memory_note());
  }
  throw InternalError(text);
}

CudaProducts::CudaProducts(const CudaStream& stream, MemoryAccount& account)
    : stream_(stream),
      workspace_(kProductWorkspaceBytes, account, Device::cuda, MemoryUse::activations) {
  cublasLtHandle_t handle = nullptr;
  cublas_check(cublasLtCreate(&handle), "create a handle");
  handle_.reset(handle);
}

CudaProducts::Kind CudaProducts::kind_of(const MatrixProduct& product) {
  Kind kind{.transpose_a = product.transpose_a,
            .transpose_b = product.transpose_b,
            .accumulate = product.accumulate,
            .bias = product.bias != nullptr,
            .row_invariant = product.row_invariant,
            .operands = product.operands,
            .result = product.result,
            .a_alignment = alignment(product.a),
            .b_alignment = alignment(product.b),
            .c_alignment = alignment(product.c),
            .m = product.m,
            .n = product.n,
            .k = product.k};
  if (product.row_invariant) {
    // The same for all rows.
    constexpr std::uint32_t kWord = 16;
    expect(kind.a_alignment == kWord && kind.b_alignment == kWord && kind.c_alignment == kWord &&
               storage_bytes(product.k, product.operands) % kWord == 0 &&
               storage_bytes(product.n, product.result) % kWord == 0,
           "a row-invariant product's rows begin at multiples of 16 bytes");
  }
  return kind;
}

CudaProducts::Plan CudaProducts::describe_plan(const Kind& kind) const {
  Plan plan;
  cublasLtMatmulDesc_t description = nullptr;
  cublas_check(
      cublasLtMatmulDescCreate(
          &description,
          kind.operands == DType::float32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
          CUDA_R_32F),
      "describe a product");
  plan.description.reset(description);
  // Column-major, the matrices are transposed: cᵀ [n, m] = op(b)ᵀ [n, k] · op(a)ᵀ [k, m].
  describe(plan.description, CUBLASLT_MATMUL_DESC_TRANSA,
           kind.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  describe(plan.description, CUBLASLT_MATMUL_DESC_TRANSB,
           kind.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (kind.bias) {
    describe(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    describe(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(kind.result));
    // Without a pointer there may be no algorithm; multiply() sets the real bias.
    describe(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
             static_cast<const void*>(workspace_.data()));
  }
  plan.a.reset(layout(kind.operands, kind.transpose_b, kind.n, kind.k));
  plan.b.reset(layout(kind.operands, kind.transpose_a, kind.k, kind.m));
  plan.c.reset(layout(kind.result, false, kind.n, kind.m));
  return plan;
}

std::vector<cublasLtMatmulAlgo_t> CudaProducts::algorithms(const Kind& kind, const Plan& plan,
                                                           int count) const {
  cublasLtMatmulPreference_t made = nullptr;
  cublas_check(cublasLtMatmulPreferenceCreate(&made), "ask for an algorithm");
  const Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    cublas_check(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "ask for an algorithm");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kProductWorkspaceBytes);
  // Partial sums are added in float32, in one order. Row-invariant products have none, nor do
  // bfloat16 results with a bias, which might be added after their sum is rounded.
  const bool whole_sums = kind.row_invariant || (kind.bias && kind.result == DType::bfloat16);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(whole_sums ? CUBLASLT_REDUCTION_SCHEME_NONE
                                               : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kind.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kind.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kind.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kind.c_alignment);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(count));
  int found_count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), plan.description.get(), plan.a.get(), plan.b.get(), plan.c.get(), plan.c.get(),
      preference.get(), count, found.data(), &found_count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      (status == CUBLAS_STATUS_SUCCESS && found_count == 0)) {
    throw EnvironmentError("cuBLAS has no algorithm on this device for a product [" +
                           std::to_string(kind.m) + ", " + std::to_string(kind.k) + "] x [" +
                           std::to_string(kind.k) + ", " + std::to_string(kind.n) + "] of " +
                           dtype_name(kind.operands) + " to " + dtype_name(kind.result) +
                           ": use model.device = \"cpu\" or another CUDA version");
  }
  cublas_check(status, "ask for an algorithm");
  std::vector<cublasLtMatmulAlgo_t> result;
  for (const auto& one : std::span(found).first(static_cast<std::size_t>(found_count))) {
    result.push_back(one.algo);
  }
  return result;
}

CudaProducts::Plan CudaProducts::make_plan(const Kind& kind) const {
  Plan plan = describe_plan(kind);
  if (!kind.row_invariant) {
    plan.algorithm = algorithms(kind, plan, 1).front();
    return plan;
  }
  Kind of_class = kind;
  for (of_class.m = row_class(kind.m); of_class.m > 0; --of_class.m) {
    const auto found = row_algorithms_.find(of_class);
    if (found != row_algorithms_.end()) {
      plan.algorithm = found->second;
      return plan;
    }
  }
  throw InternalError("a row-invariant product was not prepared");
}

bool CudaProducts::serves(const cublasLtMatmulAlgo_t& algorithm, const Plan& plan) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle_.get(), plan.description.get(), plan.a.get(), plan.b.get(),
                                 plan.c.get(), plan.c.get(), &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kProductWorkspaceBytes;
}

/// Tries the algorithms of a row-invariant product on equal rows.
class RowAlgorithms {
 public:
  RowAlgorithms(CudaProducts& products, const MatrixProduct& product, std::int64_t max_rows)
      : products_(products),
        product_(product),
        row_bytes_(storage_bytes(product.n, product.result)),
        max_rows_(
            std::min({max_rows, kMaxRows,
                      std::max(kMaxBytes / static_cast<std::int64_t>(row_bytes_), row_class(1))})),
        rows_(storage_bytes(max_rows_ * product.k, product.operands), account_, Device::cuda),
        results_(static_cast<std::size_t>(max_rows_) * row_bytes_, account_, Device::cuda) {
    product_.row_invariant = true;
    product_.a = rows_.data();
    product_.c = results_.data();
    fill_rows();
    for (std::int64_t largest = row_class(1), smallest = 1; largest <= max_rows_;
         smallest = largest + 1, largest = row_class(smallest)) {
      add_class(smallest, largest);
    }
  }

  /// Gives each class of rows the fastest of the algorithms that give the most common bits.
  void choose(std::map<CudaProducts::Kind, cublasLtMatmulAlgo_t>& chosen) {
    for (Candidate& candidate : candidates_) {
      candidate.bits = bits(candidate.algorithm, candidate.smallest);
      if (candidate.bits != bits(candidate.algorithm, candidate.largest)) {
        candidate.bits.clear();
      }
    }
    const Bits common = most_common();
    for (const RowsOfClass& rows : classes_) {
      std::vector<std::size_t> agreeing;
      std::ranges::copy_if(rows.candidates, std::back_inserter(agreeing), [&](std::size_t i) {
        return !common.empty() && candidates_[i].bits == common;
      });
      if (agreeing.empty()) {
        agreeing = agreeing_of_others(rows, common);
      }
      if (agreeing.empty()) {
        throw EnvironmentError(
            "cuBLAS gives a row of a product by a matrix [" + std::to_string(product_.n) + ", " +
            std::to_string(product_.k) + "] other bits beside " + std::to_string(rows.largest) +
            " rows, so that decoding methods would not agree: use model.decode_weights = "
            "\"bfloat16\" or another CUDA version");
      }
      chosen[kind(rows.largest)] = candidates_[fastest(agreeing, rows.largest)].algorithm;
    }
  }

 private:
  using Bits = std::vector<std::byte>;
  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    std::int64_t smallest;  ///< Row counts that it was proposed for: smallest …
    std::int64_t largest;   ///< … and the largest.
    Bits bits = {};         ///< Of a row; empty if they differ between these.
  };
  struct RowsOfClass {
    std::int64_t smallest;
    std::int64_t largest;
    std::vector<std::size_t> candidates;  ///< The library's favourite first.
  };
  static constexpr std::int64_t kMaxRows = 1024;
  static constexpr std::int64_t kMaxBytes = std::int64_t{160} << 20;
  static constexpr int kMaxCandidates = 8;

  /// Copies of one row of numbers between 1 and 2, of either sign.
  void fill_rows() {
    std::vector<std::uint16_t> row(static_cast<std::size_t>(product_.k));
    std::uint32_t state = 1;
    for (std::uint16_t& bits : row) {
      state = state * 1664525U + 1013904223U;
      bits = static_cast<std::uint16_t>(0x3f80U | (state >> 9 & 0x7fU) | (state >> 16 & 0x8000U));
    }
    const std::size_t bytes = row.size() * sizeof row[0];
    copy(rows_.data(), row.data(), bytes, cudaMemcpyHostToDevice);
    for (std::size_t done = bytes; done < rows_.bytes(); done *= 2) {
      copy(rows_.data() + done, rows_.data(), std::min(done, rows_.bytes() - done),
           cudaMemcpyDeviceToDevice);
    }
  }
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind direction) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, direction, products_.stream_.get()),
               "try products");
    cuda_check(cudaStreamSynchronize(products_.stream_.get()), "try products");
  }
  [[nodiscard]] CudaProducts::Kind kind(std::int64_t m) {
    product_.m = m;
    return CudaProducts::kind_of(product_);
  }

  void add_class(std::int64_t smallest, std::int64_t largest) {
    RowsOfClass rows{smallest, largest, {}};
    const CudaProducts::Plan plan = products_.describe_plan(kind(largest));
    for (const cublasLtMatmulAlgo_t& algorithm :
         products_.algorithms(kind(largest), plan, kMaxCandidates)) {
      if (!serves(algorithm, rows)) {
        continue;
      }
      const auto known = std::ranges::find_if(candidates_, [&](const Candidate& one) {
        return std::memcmp(&one.algorithm, &algorithm, sizeof algorithm) == 0;
      });
      rows.candidates.push_back(static_cast<std::size_t>(known - candidates_.begin()));
      if (known == candidates_.end()) {
        candidates_.push_back({algorithm, smallest, largest});
      } else {
        known->largest = largest;
      }
    }
    classes_.push_back(std::move(rows));
  }
  [[nodiscard]] bool serves(const cublasLtMatmulAlgo_t& algorithm, const RowsOfClass& rows) {
    for (std::int64_t m = rows.smallest; m <= rows.largest; ++m) {
      if (!products_.serves(algorithm, products_.describe_plan(kind(m)))) {
        return false;
      }
    }
    return true;
  }

  /// Returns the result of one of m equal rows; empty if theirs differ.
  [[nodiscard]] Bits bits(const cublasLtMatmulAlgo_t& algorithm, std::int64_t m) {
    CudaProducts::Plan plan = products_.describe_plan(kind(m));
    plan.algorithm = algorithm;
    cuda_check(cudaMemsetAsync(results_.data(), 0xff, static_cast<std::size_t>(m) * row_bytes_,
                               products_.stream_.get()),
               "try products");
    products_.multiply(product_, plan);
    Bits first(row_bytes_);
    copy(first.data(), results_.data(), row_bytes_, cudaMemcpyDeviceToHost);
    Bits other(row_bytes_);
    for (const std::int64_t row : {m / 2, m - 1}) {
      copy(other.data(), results_.data() + static_cast<std::size_t>(row) * row_bytes_, row_bytes_,
           cudaMemcpyDeviceToHost);
      if (other != first) {
        return {};
      }
    }
    return first;
  }
  [[nodiscard]] Bits most_common() const {
    std::map<Bits, int> counts;
    for (const RowsOfClass& rows : classes_) {
      for (const std::size_t i : rows.candidates) {
        if (!candidates_[i].bits.empty()) {
          ++counts[candidates_[i].bits];
        }
      }
    }
    const auto most = std::ranges::max_element(
        counts, {}, [](const auto& bits_and_count) { return bits_and_count.second; });
    return most == counts.end() ? Bits{} : most->first;
  }
  /// Returns algorithms proposed for other row counts that also serve these.
  [[nodiscard]] std::vector<std::size_t> agreeing_of_others(const RowsOfClass& rows,
                                                            const Bits& common) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const cublasLtMatmulAlgo_t& algorithm = candidates_[i].algorithm;
      if (!common.empty() && candidates_[i].bits == common && serves(algorithm, rows) &&
          bits(algorithm, rows.smallest) == common && bits(algorithm, rows.largest) == common) {
        found.push_back(i);
      }
    }
    return found;
  }
  /// Returns the first, unless another is faster beyond noise.
  [[nodiscard]] std::size_t fastest(const std::vector<std::size_t>& some, std::int64_t m) {
    constexpr double kChance = 0.97;
    std::size_t best = some.front();
    double best_seconds = std::numeric_limits<double>::max();
    for (const std::size_t i : some) {
      if (some.size() == 1) {
        break;
      }
      const double seconds = seconds_of(candidates_[i].algorithm, m);
      if (seconds < kChance * best_seconds) {
        best = i;
        best_seconds = seconds;
      }
    }
    return best;
  }
  [[nodiscard]] double seconds_of(const cublasLtMatmulAlgo_t& algorithm, std::int64_t m) {
    using Clock = std::chrono::steady_clock;
    constexpr int kTimes = 2;
    const int products = m <= 128 ? 12 : 4;  // Hides the host's launches.
    CudaProducts::Plan plan = products_.describe_plan(kind(m));
    plan.algorithm = algorithm;
    double seconds = std::numeric_limits<double>::max();
    for (int time = 0; time < kTimes; ++time) {
      cuda_check(cudaStreamSynchronize(products_.stream_.get()), "try products");
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < products; ++i) {
        products_.multiply(product_, plan);
      }
      cuda_check(cudaStreamSynchronize(products_.stream_.get()), "try products");
      seconds = std::min(seconds, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return seconds;
  }

  CudaProducts& products_;
  MatrixProduct product_;
  std::size_t row_bytes_;
  std::int64_t max_rows_;
  MemoryAccount account_{"products, tried"};
  Buffer rows_;
  Buffer results_;
  std::vector<Candidate> candidates_;
  std::vector<RowsOfClass> classes_;
};

void CudaProducts::prepare_rows(const MatrixProduct& product, std::int64_t max_rows) {
  RowAlgorithms(*this, product, max_rows).choose(row_algorithms_);
}

void CudaProducts::forget_older_half() {
  std::vector<std::uint64_t> used;
  used.reserve(plans_.size());
  for (const auto& [kind, plan] : plans_) {
    used.push_back(plan.used);
  }
  const auto middle = used.begin() + std::ssize(used) / 2;
  std::ranges::nth_element(used, middle);
  std::erase_if(plans_, [&](const auto& each) { return each.second.used < *middle; });
}

void CudaProducts::run(const MatrixProduct& product) {
  const Kind kind = kind_of(product);
  auto found = plans_.find(kind);
  if (found == plans_.end()) {
    if (plans_.size() == kMostPlans) {
      forget_older_half();
    }
    found = plans_.emplace(kind, make_plan(kind)).first;
  }
  found->second.used = ++runs_;
  multiply(product, found->second);
}

void CudaProducts::multiply(const MatrixProduct& product, const Plan& plan) {
  if (product.bias != nullptr) {
    describe(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  }
  const float one = 1.0F;
  const float beta = product.accumulate ? 1.0F : 0.0F;
  cublas_check(cublasLtMatmul(handle_.get(), plan.description.get(), &one, product.b, plan.a.get(),
                              product.a, plan.b.get(), &beta, product.c, plan.c.get(), product.c,
                              plan.c.get(), &plan.algorithm, workspace_.data(), workspace_.bytes(),
                              stream_.get()),
               "multiply matrices");
}

}  // namespace jforge
