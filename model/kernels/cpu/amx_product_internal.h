#pragma once

#include "model/kernels/cpu/vector_kernels_internal.h"

namespace jforge {

/// VectorKernels::group_product. Requires: AMX, and permission to use it (amx_available()).
void amx_group_product(const PairProduct& product);

}  // namespace jforge
