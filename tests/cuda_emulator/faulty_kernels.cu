#include "tests/cuda_emulator/faulty_kernels.cuh"

namespace jforge::test {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kLanes = 32;

template <Planted kPlanted>
__global__ void block_sums(const float* values, float* sums) {
  __shared__ float partial[kThreads];
  const unsigned own = threadIdx.x;
  const unsigned shift = kPlanted == Planted::out_of_bounds ? 1 : 0;
  if (kPlanted != Planted::uninitialised || own + 1 < blockDim.x) {
    partial[own] = values[blockIdx.x * blockDim.x + own + shift];
  }
  if (kPlanted == Planted::divergent_barrier && own < blockDim.x / 2) {
    __syncthreads();
    partial[own] += 0.0F;
  }
  __syncthreads();
  for (unsigned stride = kThreads / 2; stride >= kLanes; stride /= 2) {
    if (own < stride) {
      partial[own] += partial[own + stride];
    }
    if (kPlanted != Planted::missing_barrier) {
      __syncthreads();
    }
  }
  if (own < kLanes) {
    float sum = partial[own];
    for (unsigned step = kLanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(0xffffffffU, sum, step);
    }
    if (own == 0) {
      sums[blockIdx.x] = sum;
    }
  }
  if (kPlanted == Planted::unknown_instruction) {
    asm volatile("nanosleep.u32 20;");
  }
}

__global__ void double_values(const float* x, float* y, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    y[i] = 2.0F * x[i];
  }
}

__global__ void reverse(const float* x, float* y, unsigned bytes) {
  extern __shared__ float values[];
  float* const end = values + bytes / sizeof(float);
  end[-1 - static_cast<int>(threadIdx.x)] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = (end - blockDim.x)[threadIdx.x];
}

template <Exchange kExchange>
__global__ void exchange(float* x, float* y) {
  const unsigned own = threadIdx.x;
  const unsigned other = kThreads - 1 - own;
  y[own] = 2.0F * x[own];
  if (kExchange == Exchange::ordered) {
    __syncthreads();
  }
  if (kExchange == Exchange::early_write) {
    x[other] = y[own];
  } else {
    x[own] = y[other];
  }
}

template <Shared kShared>
__global__ void increments(float* values) {
  if (kShared == Shared::atomic) {
    atomicAdd(values, 1.0F);
  } else {
    values[kShared == Shared::own ? blockIdx.x : 0] += 1.0F;
  }
}

}  // namespace

void launch_block_sums(Planted planted, const float* values, float* sums, unsigned blocks,
                       cudaStream_t stream) {
  constexpr decltype(&block_sums<Planted::nothing>) kKernels[] = {
      block_sums<Planted::nothing>,           block_sums<Planted::missing_barrier>,
      block_sums<Planted::uninitialised>,     block_sums<Planted::out_of_bounds>,
      block_sums<Planted::divergent_barrier>, block_sums<Planted::unknown_instruction>};
  kKernels[static_cast<unsigned>(planted)]<<<blocks, kThreads, 0, stream>>>(values, sums);
}

void launch_double(const float* x, float* y, unsigned count, cudaStream_t stream) {
  double_values<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(x, y, count);
}

cudaError_t launch_reverse(const float* x, float* y, unsigned bytes, cudaStream_t stream) {
  const cudaError_t allowed =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(reverse),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (allowed == cudaSuccess) {
    reverse<<<1, kThreads, bytes, stream>>>(x, y, bytes);
  }
  return allowed;
}

void launch_exchange(Exchange exchanged, float* x, float* y, cudaStream_t stream) {
  constexpr decltype(&exchange<Exchange::ordered>) kKernels[] = {
      exchange<Exchange::ordered>, exchange<Exchange::early_read>, exchange<Exchange::early_write>};
  kKernels[static_cast<unsigned>(exchanged)]<<<1, kThreads, 0, stream>>>(x, y);
}

void launch_increments(Shared shared, float* values, unsigned blocks, cudaStream_t stream) {
  constexpr decltype(&increments<Shared::own>) kKernels[] = {
      increments<Shared::own>, increments<Shared::atomic>, increments<Shared::plain>};
  kKernels[static_cast<unsigned>(shared)]<<<blocks, 1, 0, stream>>>(values);
}

}  // namespace jforge::test
