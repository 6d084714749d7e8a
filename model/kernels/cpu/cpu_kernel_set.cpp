#include "model/kernels/cpu/cpu_kernel_set.h"

#include <omp.h>

#include <cstdlib>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"

namespace jforge {

float* Scratch::at_least(std::int64_t count) {
  if (count > size_) {
    data_.reset();
    size_ = 0;
    const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(float) + 63) / 64 * 64;
    data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (data_ == nullptr) {
      throw EnvironmentError(
          "not enough memory for " + std::to_string(bytes) +
          " bytes of kernel scratch: lower train.tokens_per_rank or generate.batch_prompts");
    }
    size_ = count;
  }
  return data_.get();
}

void Scratch::Free::operator()(float* p) const noexcept { std::free(p); }

void CpuKernelSet::reserve_threads(std::int64_t floats) {
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  if (thread_scratch_.size() < threads) {
    thread_scratch_.resize(threads);
  }
  for (Scratch& scratch : thread_scratch_) {
    scratch.at_least(floats);
  }
}

bool instruction_set_available(InstructionSet set) noexcept {
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (set == InstructionSet::avx2) {
    return avx2;
  }
  return avx2 && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0;
}

std::unique_ptr<KernelSet> make_cpu_kernel_set(InstructionSet set) {
  if (!instruction_set_available(set)) {
    throw EnvironmentError(
        set == InstructionSet::avx2
            ? "the processor lacks AVX2 or FMA, which the CPU kernels need: run on an x86-64-v3 "
              "machine"
            : "the processor lacks AVX-512 F, VL, DQ or BW: use the AVX2 kernels");
  }
  return std::make_unique<CpuKernelSet>(set == InstructionSet::avx512 ? kAvx512Kernels
                                                                      : kAvx2Kernels);
}

std::unique_ptr<KernelSet> make_cpu_kernel_set() {
  return make_cpu_kernel_set(instruction_set_available(InstructionSet::avx512)
                                 ? InstructionSet::avx512
                                 : InstructionSet::avx2);
}

}  // namespace jforge
