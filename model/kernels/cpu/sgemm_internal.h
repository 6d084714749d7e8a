#pragma once

/// oneDNN's matrix product on plain row-major memory, for training.

#include <cstdint>

namespace jforge {

/// c [m, n] (= or +=) op(a) [m, k] · op(b) [k, n]; dense, so a transposed operand is stored [k, m]
/// or [n, k]. Throws InternalError when the library refuses.
void sgemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
           const float* a, const float* b, bool accumulate, float* c);

}  // namespace jforge
