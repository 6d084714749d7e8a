#pragma once

/// Chunks of a device's vocabulary loss, for kernels and memory plans.

#include <algorithm>
#include <cstdint>

#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Rows of logits held at once: 1 GiB, at most 2,048. Each chunk reads and writes the head's
/// float32 gradient [V, C] for 2 · rows · V · C FLOP, rows / 4 per byte: with a vocabulary of
/// 151,936 this is 441, above an H100's 295.
[[nodiscard]] constexpr std::int64_t device_loss_rows(std::int64_t vocabulary) {
  constexpr std::int64_t kLogits = std::int64_t{1} << 28;
  return std::clamp<std::int64_t>(kLogits / vocabulary, 64, 2048);
}

/// Bytes for a micro-batch of at most `rows` rows: gathered hidden states and gradients, logits,
/// rounded logit gradients with bfloat16.
[[nodiscard]] constexpr std::int64_t device_loss_bytes(std::int64_t rows, std::int64_t hidden,
                                                       std::int64_t vocabulary, DType compute) {
  const std::int64_t held = std::min(rows, device_loss_rows(vocabulary));
  const auto element = static_cast<std::int64_t>(dtype_bytes(compute));
  constexpr std::int64_t kFloat = sizeof(float);
  return held * (hidden * (element + kFloat) +
                 vocabulary * (kFloat + (compute == DType::float32 ? 0 : element)));
}

}  // namespace jforge
