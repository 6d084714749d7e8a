#pragma once

/// Choice of the instruction set under the CPU kernels. make_cpu_kernel_set() of kernel_set.h takes
/// the widest one the machine has; tests and benchmarks force one here.

#include <cstdint>
#include <memory>

#include "model/kernels/kernel_set.h"

namespace jforge {

enum class InstructionSet : std::uint8_t {
  avx2,         ///< AVX2 and FMA: the least that is supported.
  avx512,       ///< AVX-512 F, VL, DQ and BW.
  avx512_bf16,  ///< And AVX-512 BF16: products of bfloat16 in one instruction for two steps.
};

/// Whether this processor (and operating system) runs `set`.
[[nodiscard]] bool instruction_set_available(InstructionSet set) noexcept;

/// The CPU implementation on a given instruction set. Throws EnvironmentError when the processor
/// lacks it.
[[nodiscard]] std::unique_ptr<KernelSet> make_cpu_kernel_set(InstructionSet set);

}  // namespace jforge
