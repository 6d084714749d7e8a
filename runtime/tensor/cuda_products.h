#pragma once

/// Matrix products by cuBLASLt. Only in CUDA builds.

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include "runtime/tensor/buffer.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/matrix_product.h"

namespace jforge {

/// As cuda_check().
void cublas_check(cublasStatus_t status, const char* what,
                  std::source_location where = std::source_location::current());

/// Products on one stream with an own workspace. float32 operands are multiplied in float32 (no
/// TF32), sums are float32, and equal calls give equal bits. The algorithm for a shape, types and
/// alignment is chosen once and cached, so that repeated calls do not allocate. Of kMostPlans
/// cached products the least recently used half is dropped.
///
/// Row-invariant products assume that cuBLASLt algorithms that do not split k add up an element in
/// one order for any tile shape, so that a row gets the same bits. An H200 showed it
/// (results/reference/gpu_h200.md); prepare_rows() verifies it and takes the fastest of those that
/// agree.
class CudaProducts {
 public:
  static constexpr std::size_t kMostPlans = 4096;
  CudaProducts(const CudaStream& stream, MemoryAccount& account);
  /// Throws EnvironmentError if cuBLAS has no algorithm for it on this device.
  void run(const MatrixProduct& product);
  /// Chooses the algorithms of a row-invariant product for up to `max_rows` rows; more rows use the
  /// last. Tries them on equal rows by product.b; ignores a, c and m. Throws EnvironmentError if
  /// none serve all row counts with equal bits. Waits for the device and takes up to some 200 MB of
  /// it meanwhile.
  void prepare_rows(const MatrixProduct& product, std::int64_t max_rows);
  /// Cached products.
  [[nodiscard]] std::size_t size() const noexcept { return plans_.size(); }

 private:
  /// Cache key.
  struct Kind {
    bool transpose_a, transpose_b, accumulate, bias, row_invariant;
    DType operands, result;
    std::uint32_t a_alignment, b_alignment, c_alignment;  ///< Bytes.
    std::int64_t m, n, k;
    auto operator<=>(const Kind&) const = default;
  };
  template <auto destroy>
  struct Destroy {
    template <class T>
    void operator()(T* handle) const noexcept {
      static_cast<void>(destroy(handle));
    }
  };
  template <class Handle, auto destroy>
  using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;
  using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  struct Plan {
    Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description;
    Layout a, b, c;  ///< Column-major: transposed.
    cublasLtMatmulAlgo_t algorithm{};
    std::uint64_t used = 0;  ///< runs_ at the last use.
  };
  [[nodiscard]] static Kind kind_of(const MatrixProduct& product);
  /// Without its algorithm.
  [[nodiscard]] Plan describe_plan(const Kind& kind) const;
  /// At most `count`, the library's fastest first.
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> algorithms(const Kind& kind, const Plan& plan,
                                                             int count) const;
  [[nodiscard]] Plan make_plan(const Kind& kind) const;
  [[nodiscard]] bool serves(const cublasLtMatmulAlgo_t& algorithm, const Plan& plan) const;
  void multiply(const MatrixProduct& product, const Plan& plan);
  friend class RowAlgorithms;
  void forget_older_half();

  const CudaStream& stream_;
  Buffer workspace_;
  Owner<cublasLtHandle_t, cublasLtDestroy> handle_;
  std::map<Kind, Plan> plans_;
  /// Row-invariant products; `m` of a key is the largest row count of its class.
  std::map<Kind, cublasLtMatmulAlgo_t> row_algorithms_;
  std::uint64_t runs_ = 0;
};

}  // namespace jforge
