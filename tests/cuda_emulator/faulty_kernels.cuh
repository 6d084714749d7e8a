#pragma once

/// Kernels for the tests of the emulated device: correct ones, and each planted fault.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jforge::test {

enum class Planted : std::uint8_t {
  nothing,
  missing_barrier,    ///< Between the steps of a reduction.
  uninitialised,      ///< A block's last partial sum is never written.
  out_of_bounds,      ///< One element past the end.
  divergent_barrier,  ///< Half of the block takes a barrier of its own.
  unknown_instruction,
};

/// sums[block] = Σ of its 256 of `values`, through shared memory and shuffles.
void launch_block_sums(Planted planted, const float* values, float* sums, unsigned blocks,
                       cudaStream_t stream);
/// y[i] = 2 x[i] of `count`.
void launch_double(const float* x, float* y, unsigned count, cudaStream_t stream);
/// Takes `bytes` of dynamic shared memory and reverses 256 values through its end.
cudaError_t launch_reverse(const float* x, float* y, unsigned bytes, cudaStream_t stream);

/// Whether a barrier stands before what other threads have written is read, and before what they
/// have read is written.
enum class Exchange { ordered, early_read, early_write };
/// y[i] = 2 x[i] of 256 values in one block, then x[i] = y[255 − i], or x[255 − i] = y[i] where the
/// write is early.
void launch_exchange(Exchange exchange, float* x, float* y, cudaStream_t stream);

/// Whose value each block adds 1 to: its own, or all blocks the first, atomically or not.
enum class Shared { own, atomic, plain };
void launch_increments(Shared shared, float* values, unsigned blocks, cudaStream_t stream);

}  // namespace jforge::test
