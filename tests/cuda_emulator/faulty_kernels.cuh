#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jforge::test {

enum class Planted : std::uint8_t {
  nothing,
  missing_barrier,    ///< between the steps of a reduction
  uninitialised,      ///< a block's last partial sum is not written
  out_of_bounds,      ///< one element past the end
  divergent_barrier,  ///< half of the block takes another barrier
  unknown_instruction,
};

/// sums[block] = Σ of its 256 `values`.
void launch_block_sums(Planted planted, const float* values, float* sums, unsigned blocks,
                       cudaStream_t stream);
/// y[i] = 2 x[i] for i < count.
void launch_double(const float* x, float* y, unsigned count, cudaStream_t stream);
/// Reverses 256 values through the end of `bytes` of shared memory.
cudaError_t launch_reverse(const float* x, float* y, unsigned bytes, cudaStream_t stream);

/// Missing barrier: before reading others' writes, or before overwriting what they read.
enum class Exchange { ordered, early_read, early_write };
/// 256 threads: y[i] = 2 x[i], x[i] = y[255 − i]; if early_write, x[255 − i] = y[i].
void launch_exchange(Exchange exchange, float* x, float* y, cudaStream_t stream);

/// Blocks add 1 to their own value, or to the first, atomically or not.
enum class Shared { own, atomic, plain };
void launch_increments(Shared shared, float* values, unsigned blocks, cudaStream_t stream);

}  // namespace jforge::test
