/// libcublas as far as the program calls it: products of float32 matrices on the emulated device.

#include <cublas_v2.h>

#include <cstring>

#include "tests/cuda_emulator/device.h"
#include "tests/cuda_emulator/matrix_product.h"

using jforge::emulator::Device;
using jforge::emulator::ElementType;
using jforge::emulator::Matrix;
using jforge::emulator::MatrixProduct;
using jforge::emulator::Refusal;

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
};
Handle& handle_of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete &handle_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle_of(handle).stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t /*handle*/, void* /*workspace*/,
                                     std::size_t /*bytes*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t /*handle*/, cublasMath_t /*mode*/) {
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS
             ? "success"
             : "not supported by the emulated cuBLAS, or the emulated device failed";
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transpose_a,
                               cublasOperation_t transpose_b, std::int64_t m, std::int64_t n,
                               std::int64_t k, const void* alpha, const void* a,
                               cudaDataType a_type, std::int64_t a_step, const void* b,
                               cudaDataType b_type, std::int64_t b_step, const void* beta, void* c,
                               cudaDataType c_type, std::int64_t c_step,
                               cublasComputeType_t compute, cublasGemmAlgo_t /*algorithm*/) {
  Device& device = Device::get();
  const std::lock_guard lock(device.mutex);
  device.attempt([&] {
    if (a_type != CUDA_R_32F || b_type != CUDA_R_32F || c_type != CUDA_R_32F ||
        compute != CUBLAS_COMPUTE_32F_PEDANTIC) {
      throw Refusal("cublasGemmEx_64 with other than pedantic float32");
    }
    const auto address = [](const void* matrix) { return reinterpret_cast<std::uint64_t>(matrix); };
    constexpr auto kType = ElementType::float32;
    MatrixProduct product;
    product.a = {address(a), kType, transpose_a != CUBLAS_OP_N, m, k, a_step};
    product.b = {address(b), kType, transpose_b != CUBLAS_OP_N, k, n, b_step};
    product.c = product.d = {address(c), kType, false, m, n, c_step};
    std::memcpy(&product.alpha, alpha, sizeof(float));
    std::memcpy(&product.beta, beta, sizeof(float));
    device.enqueue(device.stream_of(handle_of(handle).stream), "a product",
                   [&device, product] { product.run(device.memory); });
  });
  return device.failure.code == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
