#pragma once

/// The training products on plain row-major memory.

#include <cstdint>
#include <span>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"

namespace jforge {

/// Floats of scratch a thread needs for any product.
[[nodiscard]] std::int64_t product_scratch_floats() noexcept;

/// Whether a rounded product needs c [m, n] for sums in between: its K is cut into blocks.
[[nodiscard]] bool keeps_sums(const BlockedProduct<BFloat16>& product) noexcept;

/// Computes `product` on at most `scratch.size()` threads; each area holds
/// product_scratch_floats().
void blocked_product(const VectorKernels& vector, const BlockedProduct<float>& product,
                     std::span<Scratch> scratch);
void blocked_product(const VectorKernels& vector, const BlockedProduct<BFloat16>& product,
                     std::span<Scratch> scratch);

}  // namespace jforge
