#pragma once

/// How the vocabulary loss of a device cuts its rows, for its kernels and for plans.

#include <algorithm>
#include <cstdint>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Rows of logits held at once: 1 GiB of them, 2,048 rows at most. For each chunk the gradient of
/// the head, float32 [V, C], is read and written beside 2 · rows · V · C FLOP, rows / 4 for a byte:
/// 441 with a vocabulary of 151,936, over the 295 of an H100. 220 rows, as on the CPU, have 55.
[[nodiscard]] constexpr std::int64_t device_loss_rows(std::int64_t vocabulary) {
  constexpr std::int64_t kLogits = std::int64_t{1} << 28;
  return std::clamp<std::int64_t>(kLogits / vocabulary, 64, 2048);
}

/// Bytes that it takes for a micro-batch of `rows` rows at most, a separate teacher's among them:
/// gathered hidden states and their gradients, logits, and with bfloat16 the rounded gradients of
/// these.
[[nodiscard]] constexpr std::int64_t device_loss_bytes(std::int64_t rows, std::int64_t hidden,
                                                       std::int64_t vocabulary, DType compute) {
  const std::int64_t held = std::min(rows, device_loss_rows(vocabulary));
  const auto element = static_cast<std::int64_t>(dtype_bytes(compute));
  constexpr std::int64_t kFloat = sizeof(float);
  return held * (hidden * (element + kFloat) +
                 vocabulary * (kFloat + (compute == DType::float32 ? 0 : element)));
}

}  // namespace jforge
