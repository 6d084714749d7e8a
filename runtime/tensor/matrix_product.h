#pragma once

/// A dense matrix product for a device's library.

#include <cstddef>
#include <cstdint>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Workspace of the library on the device; cuBLAS's own size on the largest supported devices.
inline constexpr std::size_t kProductWorkspaceBytes = std::size_t{32} << 20;

/// Bytes; cuBLASLt cannot be told of another alignment of a bias.
inline constexpr std::size_t kProductBiasAlignment = 16;

/// Row-major c [m, n] = op(a) [m, k] · op(b) [k, n] + bias [n] (+ c), summed in float32 and rounded
/// once, except that a library may round a bfloat16 sum before it adds c. Requires: m, n, k > 0.
///
/// row_invariant: a row of c has bits that depend only on that row of a and on b, not on m.
/// Requires prepare_rows() (cuda_products.h) before, and rows that begin at multiples of 16 bytes.
struct MatrixProduct {
  bool transpose_a = false;  ///< Stored [k, m].
  bool transpose_b = false;  ///< Stored [n, k].
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType operands = DType::float32;  ///< Or bfloat16; a and b.
  const void* a = nullptr;
  const void* b = nullptr;
  DType result = DType::float32;  ///< Or as operands; c and bias.
  void* c = nullptr;
  const void* bias = nullptr;  ///< May be null.
  bool accumulate = false;     ///< Adds to c, which is otherwise not read.
  bool row_invariant = false;
};

}  // namespace jforge
