/// libcublas as far as the program calls it: products of float32 matrices on the emulated device.

#include <cublas_v2.h>

#include <cstring>

#include "tests/cuda_emulator/device.h"

using jforge::emulator::Device;
using jforge::emulator::Refusal;
using jforge::emulator::Stream;

namespace {

struct Handle {
  Stream* stream = nullptr;
};
Handle& handle_of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

/// Column-major, as cuBLAS has them.
struct Matrix {
  std::uint64_t address;
  bool transposed;
  std::int64_t rows;     ///< Of op(matrix).
  std::int64_t columns;  ///< Of op(matrix).
  std::int64_t step;     ///< Between columns in memory.

  [[nodiscard]] const float* data(Device& device, const char* name) const {
    const std::int64_t last = (transposed ? rows : columns) - 1;
    const std::int64_t column = transposed ? columns : rows;
    return reinterpret_cast<const float*>(device.memory.at(
        address, sizeof(float) * static_cast<std::size_t>(last * step + column), name));
  }
  [[nodiscard]] std::int64_t offset(std::int64_t row, std::int64_t column) const {
    return transposed ? row * step + column : column * step + row;
  }
};

/// Sums in double, rounded once: more exact than any device's order of float32 sums.
void multiply(Device& device, const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
              float beta) {
  const float* const a_data = a.data(device, "cuBLAS reads A,");
  const float* const b_data = b.data(device, "cuBLAS reads B,");
  auto* const c_data = const_cast<float*>(c.data(device, "cuBLAS writes C,"));
  const auto rows = static_cast<std::size_t>(c.rows);
  const auto depth = static_cast<std::size_t>(a.columns);
  // a by columns, so that the innermost loop runs along one.
  std::vector<double> a_columns(rows * depth);
  for (std::size_t k = 0; k < depth; ++k) {
    for (std::size_t i = 0; i < rows; ++i) {
      a_columns[k * rows + i] =
          a_data[a.offset(static_cast<std::int64_t>(i), static_cast<std::int64_t>(k))];
    }
  }
  std::vector<double> sums(rows);
  for (std::int64_t j = 0; j < c.columns; ++j) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::size_t k = 0; k < depth; ++k) {
      const double factor = b_data[b.offset(static_cast<std::int64_t>(k), j)];
      const double* const column = &a_columns[k * rows];
      for (std::size_t i = 0; i < rows; ++i) {
        sums[i] += column[i] * factor;
      }
    }
    float* const out = c_data + j * c.step;
    for (std::size_t i = 0; i < rows; ++i) {
      // With beta 0 the old values are not read.
      out[i] = static_cast<float>(alpha * sums[i] +
                                  (beta == 0.0F ? 0.0 : static_cast<double>(beta) * out[i]));
    }
  }
}

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
  handle_of(handle).stream = reinterpret_cast<Stream*>(stream);
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
    const Matrix of_a{address(a), transpose_a != CUBLAS_OP_N, m, k, a_step};
    const Matrix of_b{address(b), transpose_b != CUBLAS_OP_N, k, n, b_step};
    const Matrix of_c{address(c), false, m, n, c_step};
    float factors[2];
    std::memcpy(&factors[0], alpha, sizeof(float));
    std::memcpy(&factors[1], beta, sizeof(float));
    Stream* const stream = handle_of(handle).stream;
    device.enqueue(stream == nullptr ? device.order.default_stream() : *stream,
                   [&device, of_a, of_b, of_c, scale = factors[0], keep = factors[1]] {
                     multiply(device, of_a, of_b, of_c, scale, keep);
                   });
  });
  return device.failure.code == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
