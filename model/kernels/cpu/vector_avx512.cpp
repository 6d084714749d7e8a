#include "model/kernels/cpu/vec_avx512_internal.h"
// The headers below use the vector type of the header above.
#include "model/kernels/cpu/vector_loops_internal.h"
#include "model/kernels/cpu/vector_product_internal.h"

namespace jforge {
const VectorKernels kAvx512Kernels = make_vector_kernels();
}  // namespace jforge
