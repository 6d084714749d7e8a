#pragma once

/// A product of dense matrices as a device's library is asked for it.

#include <cstddef>
#include <cstdint>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Bytes of a device that the library works in: what cuBLAS itself takes on the largest supported
/// devices.
inline constexpr std::size_t kProductWorkspaceBytes = std::size_t{32} << 20;

/// Bytes that must divide a bias' address: cuBLASLt cannot be told of another.
inline constexpr std::size_t kProductBiasAlignment = 16;

/// Row-major c [m, n] = op(a) [m, k] · op(b) [k, n] + bias [n] (+ c), added up in float32 and
/// rounded once, but that a library may round a bfloat16 sum before it adds it to c. None of m, n,
/// k is 0.
///
/// row_invariant: the bits of a row of c depend on that row of a and on b alone, not on m. Requires
/// prepare_rows() (cuda_products.h) for such a product first, and that all rows begin at multiples
/// of 16 bytes.
struct MatrixProduct {
  bool transpose_a = false;  ///< Stored [k, m].
  bool transpose_b = false;  ///< Stored [n, k].
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType operands = DType::float32;  ///< Or bfloat16: of a and b.
  const void* a = nullptr;
  const void* b = nullptr;
  DType result = DType::float32;  ///< Or the operands': of c and the bias.
  void* c = nullptr;
  const void* bias = nullptr;  ///< May be null.
  bool accumulate = false;     ///< Adds to c; without it c is not read.
  bool row_invariant = false;
};

}  // namespace jforge
