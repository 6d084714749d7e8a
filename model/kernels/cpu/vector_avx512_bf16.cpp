#include "model/kernels/cpu/vec_avx512_internal.h"
// The bodies below are written against the type of the include above.
#include "model/kernels/cpu/vector_loops_internal.h"
#include "model/kernels/cpu/vector_product_internal.h"

namespace jforge {
const VectorKernels kAvx512Bf16Kernels = make_vector_kernels();
}  // namespace jforge
