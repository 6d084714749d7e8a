#pragma once

/// Matrix products by cuBLASLt. Seen only by CUDA builds.

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>

#include "runtime/tensor/buffer.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/matrix_product.h"

namespace jforge {

/// Throws unless `status` says success, as cuda_check() does.
void cublas_check(cublasStatus_t status, const char* what,
                  std::source_location where = std::source_location::current());

/// Products on one stream, with a workspace of their own. float32 operands are multiplied as
/// float32 (no TF32), sums are float32, and none is left to chance: equal calls give equal bits.
/// How a product is computed is asked once for its shape, types and alignment and then kept; a
/// call that came before allocates nothing and asks nothing. Batches of days have any number of
/// rows: of kMostPlans different products those go that were not used for longest.
///
/// Row-invariant products rest on this: cuBLASLt adds up each element over k in one accumulator and
/// in ascending order, unless it splits k, which such products forbid. Then all its algorithms give
/// a row the same bits. That is what an H200 showed (results/reference/gpu_h200.md), and what
/// check_rows() makes sure of.
class CudaProducts {
 public:
  static constexpr std::size_t kMostPlans = 4096;
  CudaProducts(const CudaStream& stream, MemoryAccount& account);
  /// Throws EnvironmentError when cuBLAS has no way to compute it on this device.
  void run(const MatrixProduct& product);
  /// Compares the bits of a row between the algorithms for up to `most_rows` rows. `product` is
  /// row-invariant; its b is multiplied, a, c, m and the bias' values are not used. An algorithm
  /// that differs is replaced by that of few rows. Throws EnvironmentError if that does not help.
  /// Waits for the device.
  void check_rows(const MatrixProduct& product, std::int64_t most_rows);
  /// Different products that are known.
  [[nodiscard]] std::size_t size() const noexcept { return plans_.size(); }

 private:
  /// What tells one way of computing from another.
  struct Kind {
    bool transpose_a, transpose_b, accumulate, bias, row_invariant;
    DType operands, result;
    std::uint32_t a_alignment, b_alignment, c_alignment;  ///< Bytes.
    std::int64_t m, n, k, parts;
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
    Layout a, b, c;  ///< By columns: of the transposed matrices.
    cublasLtMatmulAlgo_t algorithm{};
    std::uint64_t used = 0;  ///< The last of runs_.
  };
  [[nodiscard]] static Kind kind_of(const MatrixProduct& product);
  /// Without its algorithm.
  [[nodiscard]] Plan describe_plan(const Kind& kind) const;
  [[nodiscard]] cublasLtMatmulAlgo_t choose(const Kind& kind, const Plan& plan) const;
  [[nodiscard]] Plan make_plan(const Kind& kind);
  void forget_older_half();

  const CudaStream& stream_;
  Buffer workspace_;
  Owner<cublasLtHandle_t, cublasLtDestroy> handle_;
  std::map<Kind, Plan> plans_;
  /// Of row-invariant products, whose m is a row_class().
  std::map<Kind, cublasLtMatmulAlgo_t> row_algorithms_;
  std::uint64_t runs_ = 0;
};

}  // namespace jforge
