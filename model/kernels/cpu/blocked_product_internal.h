#pragma once

#include <cstdint>
#include <span>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"

namespace jforge {

/// Scratch floats per thread.
[[nodiscard]] std::int64_t product_scratch_floats() noexcept;

/// Whether a rounded product needs c [m, n] for partial sums.
[[nodiscard]] bool keeps_sums(const BlockedProduct<BFloat16>& product) noexcept;

/// Uses at most `scratch.size()` threads; each area must hold product_scratch_floats().
void blocked_product(const VectorKernels& vector, const BlockedProduct<float>& product,
                     std::span<Scratch> scratch);
void blocked_product(const VectorKernels& vector, const BlockedProduct<BFloat16>& product,
                     std::span<Scratch> scratch);

}  // namespace jforge
