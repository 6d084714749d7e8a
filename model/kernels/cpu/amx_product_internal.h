#pragma once

#include "model/kernels/cpu/vector_kernels_internal.h"

namespace jforge {

/// VectorKernels::group_product. Requires: AMX, and permission to use it (amx_available()).
void amx_group_product(const PairProduct& product);
/// VectorKernels::quantise and int8_product, which go together.
float amx_quantise(const float* x, std::int64_t count, std::int64_t depth, void* row);
void amx_int8_product(const Int8Product& product);

}  // namespace jforge
