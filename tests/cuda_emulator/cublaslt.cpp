/// The calls of libcublasLt that the program uses, and its rules.

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/cuda_emulator/device.h"
#include "tests/cuda_emulator/matrix_product.h"

using jforge::emulator::Device;
using jforge::emulator::DeviceMemory;
using jforge::emulator::ElementType;
using jforge::emulator::Matrix;
using jforge::emulator::MatrixProduct;
using jforge::emulator::Refusal;

namespace {

struct Description {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  std::int32_t transpose_a = CUBLAS_OP_N;
  std::int32_t transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::uint64_t bias = 0;
  std::int32_t bias_type = -1;  ///< of D
};
struct Layout {
  cudaDataType type = CUDA_R_32F;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::int64_t step = 0;
};
constexpr std::uint32_t kDefaultAlignment = 256;
struct Preference {
  std::uint64_t most_workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::array<std::uint32_t, 4> alignments{kDefaultAlignment, kDefaultAlignment, kDefaultAlignment,
                                          kDefaultAlignment};  ///< of A, B, C, D
};

/// Content of a cublasLtMatmulAlgo_t. Without a workspace it serves any number of columns of B.
struct Algorithm {
  std::uint64_t problem;
  std::uint64_t workspace;
  bool other_sums;  ///< gives other bits (JFORGE_EMULATED_ROW_BITS)
  std::array<std::uint16_t, 4> alignments;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

std::atomic<std::uint64_t> heuristic_calls{0};

template <class T, class Handle>
T& as(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}

ElementType element_type(cudaDataType type) {
  if (type != CUDA_R_32F && type != CUDA_R_16BF) {
    throw Refusal("cuBLASLt with element type " + std::to_string(static_cast<int>(type)));
  }
  return type == CUDA_R_32F ? ElementType::float32 : ElementType::bfloat16;
}

/// The library may choose a kernel by the bias' address.
void check_bias(std::uint64_t address) {
  constexpr std::uint64_t kAlignment = 16;
  if (address == 0) {
    throw Refusal("cublasLtMatmul: epilogue BIAS without a bias");
  }
  if (address % kAlignment != 0) {
    throw Refusal("cublasLtMatmul: a bias at " + jforge::emulator::hexadecimal(address) +
                  ", whose address 16 does not divide");
  }
}

MatrixProduct product_of(const Description& description, const Layout& a, const Layout& b,
                         const Layout& c, const Layout& d) {
  const auto matrix = [](const Layout& layout, std::int32_t transpose) {
    if (transpose != CUBLAS_OP_N && transpose != CUBLAS_OP_T) {
      throw Refusal("cublasLtMatmul with conjugated matrices");
    }
    const bool transposed = transpose == CUBLAS_OP_T;
    const auto rows = static_cast<std::int64_t>(layout.rows);
    const auto columns = static_cast<std::int64_t>(layout.columns);
    if (layout.step < rows) {
      throw Refusal("cublasLtMatmul with columns of " + std::to_string(rows) +
                    " elements that are " + std::to_string(layout.step) + " apart");
    }
    return Matrix{0,
                  element_type(layout.type),
                  transposed,
                  transposed ? columns : rows,
                  transposed ? rows : columns,
                  layout.step};
  };
  MatrixProduct product;
  product.a = matrix(a, description.transpose_a);
  product.b = matrix(b, description.transpose_b);
  product.c = matrix(c, CUBLAS_OP_N);
  product.d = matrix(d, CUBLAS_OP_N);
  if (product.a.columns != product.b.rows || product.a.rows != product.d.rows ||
      product.b.columns != product.d.columns || product.c.rows != product.d.rows ||
      product.c.columns != product.d.columns) {
    const auto shape = [](const Matrix& m) {
      return " [" + std::to_string(m.rows) + ", " + std::to_string(m.columns) + "]";
    };
    throw Refusal("cublasLtMatmul of shapes A" + shape(product.a) + ", B" + shape(product.b) +
                  ", C" + shape(product.c) + ", D" + shape(product.d));
  }
  const bool exact = description.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                     description.compute == CUBLAS_COMPUTE_32F;
  if (!exact || product.a.type != product.b.type || product.c.type != product.d.type ||
      (product.a.type == ElementType::float32 && product.d.type != ElementType::float32)) {
    throw Refusal("cublasLtMatmul with compute type " +
                  std::to_string(static_cast<int>(description.compute)) + " of element types " +
                  std::to_string(static_cast<int>(a.type)) + ", " +
                  std::to_string(static_cast<int>(b.type)) + " and " +
                  std::to_string(static_cast<int>(d.type)));
  }
  switch (description.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      break;
    case CUBLASLT_EPILOGUE_BIAS:
      check_bias(description.bias);
      product.bias = Matrix{description.bias,
                            description.bias_type < 0
                                ? product.d.type
                                : element_type(static_cast<cudaDataType>(description.bias_type)),
                            false,
                            product.d.rows,
                            1,
                            product.d.rows};
      if (product.bias->type != product.d.type) {
        throw Refusal("cublasLtMatmul with a bias of another type than D");
      }
      break;
    default:
      throw Refusal("cublasLtMatmul with epilogue " + std::to_string(description.epilogue));
  }
  return product;
}

/// "algorithm": bits of the algorithm for 16 or more rows differ; "rows": those of every algorithm.
std::string row_bits() {
  const char* const chosen = std::getenv("JFORGE_EMULATED_ROW_BITS");
  return chosen == nullptr ? "" : chosen;
}

/// Hashes what an algorithm depends on, without B's columns if `any_columns`.
std::uint64_t fingerprint(const Description& description, const MatrixProduct& product,
                          bool any_columns) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const auto take = [&](auto value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3ULL;
    hash ^= hash >> 29;
  };
  take(description.compute);
  take(description.epilogue);
  for (const Matrix* const m : {&product.a, &product.b, &product.c, &product.d}) {
    take(m->type);
    take(m->transposed);
    take(m->rows);
    take(any_columns && m != &product.a ? 0 : m->columns);
    take(m->step);
  }
  return hash;
}

/// A deep sum is split if a workspace is allowed. Its parts may be rounded before the bias is
/// added.
Algorithm choose(const Description& description, const MatrixProduct& product,
                 const Preference& preference) {
  constexpr std::int64_t kLargeDepth = 64;
  const std::uint64_t space = 2 * sizeof(float) * static_cast<std::uint64_t>(product.d.rows) *
                              static_cast<std::uint64_t>(product.d.columns);
  const bool cut = product.a.columns >= kLargeDepth && space <= preference.most_workspace &&
                   (preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
  if (cut && product.bias && product.d.type == ElementType::bfloat16) {
    throw Refusal("cublasLtMatmul: sums in parts, rounded to bfloat16 before their bias is added");
  }
  constexpr std::int64_t kManyRows = 16;
  Algorithm algorithm{fingerprint(description, product, !cut),
                      cut ? space : 0,
                      row_bits() == "algorithm" && product.d.columns >= kManyRows,
                      {}};
  std::copy(preference.alignments.begin(), preference.alignments.end(),
            algorithm.alignments.begin());
  return algorithm;
}

template <class T>
cublasStatus_t set(T& field, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof field) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&field, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// A Refusal becomes the device's failure. A failed device launches nothing.
template <class Callable>
cublasStatus_t with_device(Callable work) {
  Device& device = Device::get();
  const std::lock_guard lock(device.mutex);
  device.attempt([&] { work(device); });
  return device.failure.code == 0                       ? CUBLAS_STATUS_SUCCESS
         : device.failure.code == cudaErrorNotSupported ? CUBLAS_STATUS_NOT_SUPPORTED
                                                        : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t refuse(const char* call, int attribute) {
  return with_device([&](Device& /*device*/) {
    throw Refusal(std::string(call) + ": attribute " + std::to_string(attribute));
  });
}

/// Products that share a workspace must be ordered.
void spoil(DeviceMemory& memory, std::uint64_t workspace, std::size_t bytes) {
  if (bytes != 0) {
    std::memset(
        memory.use(DeviceMemory::Use::write, workspace, bytes, "product writes its workspace,"),
        0xff, bytes);
  }
}

}  // namespace

extern "C" {

/// for tests only
[[gnu::visibility("default")]] std::uint64_t jforge_emulated_heuristic_calls() {
  return heuristic_calls.load();
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                 : "CUBLAS_STATUS_NOT_SUPPORTED";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success"
         : status == CUBLAS_STATUS_INVALID_VALUE
             ? "an invalid value"
             : "not supported by the emulated cuBLASLt, or the emulated device failed";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return with_device([&](Device& /*device*/) {
    if (scale != CUDA_R_32F) {
      throw Refusal("cublasLtMatmulDescCreate: alpha and beta of other than float32");
    }
    auto* const description = new Description;
    description->compute = compute;
    *made = reinterpret_cast<cublasLtMatmulDesc_t>(description);
  });
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete &as<Description>(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto& description = as<Description>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(description.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(description.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(description.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(description.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(description.bias_type, value, bytes);
    default:
      return refuse("cublasLtMatmulDescSetAttribute", attribute);
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t step) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, step});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &as<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t /*layout*/,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* /*value*/, std::size_t /*bytes*/) {
  return refuse("cublasLtMatrixLayoutSetAttribute", attribute);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &as<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto& preference = as<Preference>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.most_workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference.alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                 value, bytes);
    default:
      return refuse("cublasLtMatmulPreferenceSetAttribute", attribute);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t handle, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  ++heuristic_calls;
  *returned = 0;
  if (asked < 1) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return with_device([&](Device& /*device*/) {
    const auto& description = as<Description>(handle);
    const MatrixProduct product =
        product_of(description, as<Layout>(a), as<Layout>(b), as<Layout>(c), as<Layout>(d));
    const Algorithm algorithm = choose(description, product, as<Preference>(preference));
    results[0] = {};
    std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
    results[0].workspaceSize = algorithm.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1.0F;
    *returned = 1;
  });
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t handle,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* chosen,
                                       cublasLtMatmulHeuristicResult_t* result) {
  return with_device([&](Device& /*device*/) {
    const auto& description = as<Description>(handle);
    Algorithm algorithm{};
    std::memcpy(&algorithm, chosen, sizeof algorithm);
    const MatrixProduct product =
        product_of(description, as<Layout>(a), as<Layout>(b), as<Layout>(c), as<Layout>(d));
    if (algorithm.problem != fingerprint(description, product, algorithm.workspace == 0)) {
      throw Refusal("cublasLtMatmulAlgoCheck of an algorithm that was asked for another problem");
    }
    *result = {};
    result->algo = *chosen;
    result->workspaceSize = algorithm.workspace;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t handle,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* chosen,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  return with_device([&](Device& device) {
    const auto& description = as<Description>(handle);
    MatrixProduct product = product_of(description, as<Layout>(a_layout), as<Layout>(b_layout),
                                       as<Layout>(c_layout), as<Layout>(d_layout));
    Algorithm algorithm{};
    if (chosen != nullptr) {
      std::memcpy(&algorithm, chosen, sizeof algorithm);
      if (algorithm.problem != fingerprint(description, product, algorithm.workspace == 0)) {
        throw Refusal("cublasLtMatmul with an algorithm that was asked for another problem");
      }
    } else {
      Preference preference;
      preference.most_workspace = workspace_bytes;
      preference.alignments.fill(1);
      algorithm = choose(description, product, preference);
    }
    const std::array<const void*, 4> addresses{a, b, c, d};
    const std::array<Matrix*, 4> matrices{&product.a, &product.b, &product.c, &product.d};
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      matrices[i]->address = reinterpret_cast<std::uint64_t>(addresses[i]);
      if (matrices[i]->address % algorithm.alignments[i] != 0) {
        throw Refusal(std::string("cublasLtMatmul: matrix ") + "ABCD"[i] + " at " +
                      jforge::emulator::hexadecimal(matrices[i]->address) +
                      ", whose algorithm was asked for an alignment of " +
                      std::to_string(algorithm.alignments[i]) + " bytes, and this");
      }
    }
    constexpr std::uint64_t kWorkspaceAlignment = 16;
    const auto space = reinterpret_cast<std::uint64_t>(workspace);
    if (workspace_bytes < algorithm.workspace || space % kWorkspaceAlignment != 0) {
      throw Refusal("cublasLtMatmul: a workspace of " + std::to_string(workspace_bytes) +
                    " bytes at " + jforge::emulator::hexadecimal(space) +
                    " for an algorithm that needs " + std::to_string(algorithm.workspace));
    }
    std::memcpy(&product.alpha, alpha, sizeof product.alpha);
    std::memcpy(&product.beta, beta, sizeof product.beta);
    if (algorithm.other_sums || row_bits() == "rows") {
      product.alpha *= 1.0F + 0x1p-20F * static_cast<float>(product.d.columns);
    }
    device.enqueue(device.stream_of(stream), "a product",
                   [&device, product, space, bytes = algorithm.workspace] {
                     spoil(device.memory, space, bytes);
                     product.run(device.memory);
                   });
  });
}

}  // extern "C"
