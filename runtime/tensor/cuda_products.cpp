#include "runtime/tensor/cuda_products.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

namespace {

cudaDataType_t cuda_type(DType type) { return type == DType::float32 ? CUDA_R_32F : CUDA_R_16BF; }

/// The largest power of two that divides an address, up to what loads of 16 bytes ask for: an
/// algorithm, and with it the order of sums, is not to depend on more of where a matrix lies.
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

CudaProducts::Plan CudaProducts::make_plan(const Kind& kind) const {
  Plan plan;
  cublasLtMatmulDesc_t description = nullptr;
  cublas_check(
      cublasLtMatmulDescCreate(
          &description,
          kind.operands == DType::float32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
          CUDA_R_32F),
      "describe a product");
  plan.description.reset(description);
  // By columns the matrices are their transposes: cᵀ [n, m] = op(b)ᵀ [n, k] · op(a)ᵀ [k, m].
  describe(plan.description, CUBLASLT_MATMUL_DESC_TRANSA,
           kind.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  describe(plan.description, CUBLASLT_MATMUL_DESC_TRANSB,
           kind.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (kind.bias) {
    describe(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    describe(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(kind.result));
    // Without one there may be no algorithm; run() has the bias itself.
    describe(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
             static_cast<const void*>(workspace_.data()));
  }
  plan.a.reset(layout(kind.operands, kind.transpose_b, kind.n, kind.k));
  plan.b.reset(layout(kind.operands, kind.transpose_a, kind.k, kind.m));
  plan.c.reset(layout(kind.result, false, kind.n, kind.m));

  cublasLtMatmulPreference_t made = nullptr;
  cublas_check(cublasLtMatmulPreferenceCreate(&made), "ask for an algorithm");
  const Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    cublas_check(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "ask for an algorithm");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kProductWorkspaceBytes);
  // Partial sums are added in float32 and in one order, or there are none: a bfloat16 result's bias
  // or earlier value may be added to what their addition has rounded already.
  const auto reductions = (kind.bias || kind.accumulate) && kind.result == DType::bfloat16
                              ? CUBLASLT_REDUCTION_SCHEME_NONE
                              : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(reductions));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kind.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kind.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kind.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kind.c_alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), plan.description.get(), plan.a.get(), plan.b.get(), plan.c.get(), plan.c.get(),
      preference.get(), 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) {
    throw EnvironmentError("cuBLAS has no algorithm on this device for a product [" +
                           std::to_string(kind.m) + ", " + std::to_string(kind.k) + "] x [" +
                           std::to_string(kind.k) + ", " + std::to_string(kind.n) + "] of " +
                           dtype_name(kind.operands) + " to " + dtype_name(kind.result) +
                           ": use model.device = \"cpu\" or another CUDA version");
  }
  cublas_check(status, "ask for an algorithm");
  plan.algorithm = found.algo;
  return plan;
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
  const Kind kind{.transpose_a = product.transpose_a,
                  .transpose_b = product.transpose_b,
                  .accumulate = product.accumulate,
                  .bias = product.bias != nullptr,
                  .operands = product.operands,
                  .result = product.result,
                  .a_alignment = alignment(product.a),
                  .b_alignment = alignment(product.b),
                  .c_alignment = alignment(product.c),
                  .m = product.m,
                  .n = product.n,
                  .k = product.k};
  auto found = plans_.find(kind);
  if (found == plans_.end()) {
    if (plans_.size() == kMostPlans) {
      forget_older_half();
    }
    found = plans_.emplace(kind, make_plan(kind)).first;
  }
  found->second.used = ++runs_;
  const Plan& plan = found->second;
  if (kind.bias) {
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
