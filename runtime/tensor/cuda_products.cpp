#include "runtime/tensor/cuda_products.h"

#include <algorithm>
#include <bit>
#include <cstring>
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

/// Column-major matrices [rows, columns], one for each part.
struct Matrices {
  DType type;
  std::int64_t rows, columns;
  std::int64_t step;  ///< Elements from one column to the next.
  std::int64_t parts = 1;
  std::int64_t part_step = 0;  ///< Elements from one part to the next.
};
cublasLtMatrixLayout_t layout(const Matrices& matrices) {
  cublasLtMatrixLayout_t made = nullptr;
  cublas_check(cublasLtMatrixLayoutCreate(
                   &made, cuda_type(matrices.type), static_cast<std::uint64_t>(matrices.rows),
                   static_cast<std::uint64_t>(matrices.columns), matrices.step),
               "describe a matrix");
  if (matrices.parts > 1) {
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      cublas_check(cublasLtMatrixLayoutSetAttribute(made, attribute, &value, sizeof value),
                   "describe a matrix");
    };
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(matrices.parts));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrices.part_step);
  }
  return made;
}

/// Numbers of rows that one algorithm serves: up to the next power of two from 8 on, beyond 128 the
/// next multiple of 64. Returns the largest of them.
std::int64_t row_class(std::int64_t rows) {
  constexpr std::int64_t kFewest = 8;
  constexpr std::int64_t kStep = 64;
  return rows <= 2 * kStep
             ? std::max(kFewest, static_cast<std::int64_t>(
                                     std::bit_ceil(static_cast<std::uint64_t>(rows))))
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
            .k = product.k,
            .parts = product.parts};
  if (product.row_invariant) {
    // Of any row, so that an algorithm does not depend on which one a matrix begins with.
    const auto of_rows = [](std::int64_t elements, DType type) {
      return alignment(reinterpret_cast<const void*>(storage_bytes(elements, type)));
    };
    const std::uint32_t operands = of_rows(product.k / product.parts, product.operands);
    const std::uint32_t results = of_rows(product.n, product.result);
    expect(kind.a_alignment >= operands && kind.b_alignment >= operands &&
               kind.c_alignment >= results,
           "a row-invariant product's matrices lie askew");
    kind.a_alignment = kind.b_alignment = operands;
    kind.c_alignment = results;
  }
  return kind;
}

CudaProducts::Plan CudaProducts::describe_plan(const Kind& kind) const {
  expect(kind.parts == 1 || (!kind.transpose_a && kind.transpose_b && kind.k % kind.parts == 0),
         "a product cannot be cut into such parts");
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
  const std::int64_t run = kind.k / kind.parts;
  const auto operand = [&](bool transposed, std::int64_t rows, std::int64_t columns) {
    return transposed ? Matrices{kind.operands, columns, rows, columns}
                      : Matrices{kind.operands, rows, columns, rows};
  };
  Matrices a = operand(kind.transpose_b, kind.n, kind.k);
  Matrices b = operand(kind.transpose_a, kind.k, kind.m);
  if (kind.parts > 1) {
    a.rows = b.rows = run;
    a.parts = b.parts = kind.parts;
    a.part_step = b.part_step = run;
  }
  plan.a.reset(layout(a));
  plan.b.reset(layout(b));
  plan.c.reset(layout({kind.result, kind.n, kind.m, kind.n, kind.parts, kind.n * kind.m}));
  return plan;
}

cublasLtMatmulAlgo_t CudaProducts::choose(const Kind& kind, const Plan& plan) const {
  cublasLtMatmulPreference_t made = nullptr;
  cublas_check(cublasLtMatmulPreferenceCreate(&made), "ask for an algorithm");
  const Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    cublas_check(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "ask for an algorithm");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kProductWorkspaceBytes);
  // Partial sums are added in float32 and in one order, or there are none: the bias of a bfloat16
  // result may be added to what their addition has rounded already.
  const bool whole_sums =
      kind.row_invariant || (kind.bias && kind.result == DType::bfloat16);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(whole_sums ? CUBLASLT_REDUCTION_SCHEME_NONE
                                               : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
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
  return found.algo;
}

CudaProducts::Plan CudaProducts::make_plan(const Kind& kind) {
  Plan plan = describe_plan(kind);
  if (!kind.row_invariant) {
    plan.algorithm = choose(kind, plan);
    return plan;
  }
  Kind largest = kind;
  largest.m = row_class(kind.m);
  auto found = row_algorithms_.find(largest);
  if (found == row_algorithms_.end()) {
    found = row_algorithms_.emplace(largest, choose(largest, describe_plan(largest))).first;
  }
  plan.algorithm = found->second;
  return plan;
}

void CudaProducts::check_rows(const MatrixProduct& product, std::int64_t most_rows) {
  // Larger products have no algorithms of their own kind, and take memory.
  constexpr std::int64_t kMaxCheckedRows = 1024;
  constexpr std::int64_t kMaxCheckedBytes = std::int64_t{160} << 20;
  const std::int64_t row_bytes =
      static_cast<std::int64_t>(storage_bytes(product.parts * product.n, product.result));
  most_rows = std::min({most_rows, kMaxCheckedRows, kMaxCheckedBytes / row_bytes});
  MatrixProduct checked = product;
  checked.row_invariant = true;
  // Made here, so that sizes and addresses say all that kind_of() asks.
  MemoryAccount account("products, checked");
  const Buffer rows(storage_bytes(most_rows * product.k, product.operands), account, Device::cuda,
                    MemoryUse::activations);
  const Buffer results(static_cast<std::size_t>(most_rows * row_bytes), account, Device::cuda,
                       MemoryUse::activations);
  std::vector<std::byte> row(storage_bytes(product.k, product.operands));
  // Numbers between 1 and 2, of either sign, and no two alike for long.
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < row.size(); i += 2) {
    state = state * 1664525U + 1013904223U;
    const auto bits =
        static_cast<std::uint16_t>(0x3f80U | (state >> 9 & 0x7fU) | (state >> 16 & 0x8000U));
    std::memcpy(&row[i], &bits, sizeof bits);
  }
  cuda_check(
      cudaMemcpyAsync(rows.data(), row.data(), row.size(), cudaMemcpyHostToDevice, stream_.get()),
      "check products");
  for (std::size_t done = row.size(); done < rows.bytes(); done *= 2) {
    cuda_check(
        cudaMemcpyAsync(rows.data() + done, rows.data(), std::min(done, rows.bytes() - done),
                        cudaMemcpyDeviceToDevice, stream_.get()),
        "check products");
  }
  const auto row_size = static_cast<std::size_t>(row_bytes / product.parts);
  // The results of some of so many equal rows.
  const auto bits = [&](std::int64_t m) {
    checked.m = m;
    checked.a = rows.data();
    checked.c = results.data();
    cuda_check(cudaMemsetAsync(results.data(), 0xff, static_cast<std::size_t>(m * row_bytes),
                               stream_.get()),
               "check products");
    run(checked);
    std::vector<std::vector<std::byte>> found;
    for (const std::int64_t at : {std::int64_t{0}, m / 2, m - 1}) {
      auto& bytes = found.emplace_back(static_cast<std::size_t>(row_bytes));
      for (std::int64_t part = 0; part < product.parts; ++part) {
        const auto place = static_cast<std::size_t>(part * m + at) * row_size;
        cuda_check(cudaMemcpyAsync(bytes.data() + static_cast<std::size_t>(part) * row_size,
                                   results.data() + place, row_size, cudaMemcpyDeviceToHost,
                                   stream_.get()),
                   "check products");
      }
    }
    cuda_check(cudaStreamSynchronize(stream_.get()), "check products");
    return found;
  };
  const auto algorithm_of = [&](std::int64_t rows_of_class) -> cublasLtMatmulAlgo_t& {
    Kind kind = kind_of(checked);
    kind.m = rows_of_class;
    return row_algorithms_.at(kind);
  };
  const std::vector<std::byte> expected = bits(1).front();
  const auto agrees = [&](std::int64_t m) {
    return std::ranges::all_of(bits(m), [&](const auto& each) { return each == expected; });
  };
  std::vector<cublasLtMatmulAlgo_t> seen;
  for (std::int64_t m = row_class(1); m <= most_rows; m = row_class(m + 1)) {
    // Plans of these rows know their algorithm; it is asked for here if there are none yet.
    checked.m = m;
    checked.a = rows.data();
    checked.c = results.data();
    const Kind kind = kind_of(checked);
    (void)make_plan(kind);
    const auto alike = [&](const cublasLtMatmulAlgo_t& one) {
      return std::memcmp(&one, &algorithm_of(m), sizeof one) == 0;
    };
    if (std::ranges::any_of(seen, alike) || agrees(m)) {
      seen.push_back(algorithm_of(m));
      continue;
    }
    algorithm_of(m) = algorithm_of(row_class(1));
    std::erase_if(plans_, [&](const auto& each) { return each.first == kind; });
    if (!agrees(m)) {
      throw EnvironmentError(
          "cuBLAS gives a row of a product [" + std::to_string(product.n) + ", " +
          std::to_string(product.k) +
          "] other bits beside other rows, so that decoding methods would not agree: use "
          "model.decode_weights = \"bfloat16\" or another CUDA version");
    }
  }
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
