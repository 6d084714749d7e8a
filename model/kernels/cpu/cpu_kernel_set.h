#pragma once

/// Selects the instruction set for tests and benchmarks; kernel_set.h's function takes the widest.

#include <cstdint>
#include <memory>

#include "model/kernels/kernel_set.h"

namespace jforge {

enum class InstructionSet : std::uint8_t {
  avx2,
  avx512,       ///< AVX-512 F, VL, DQ and BW.
  avx512_bf16,  ///< And AVX-512 BF16 and VNNI.
  amx_bf16,     ///< And AMX's tiles for bfloat16 and int8.
};

[[nodiscard]] bool instruction_set_available(InstructionSet set) noexcept;

/// Throws EnvironmentError if the processor lacks `set`.
[[nodiscard]] std::unique_ptr<KernelSet> make_cpu_kernel_set(InstructionSet set, BFloat16Sums sums);

}  // namespace jforge
