#pragma once

/// One training sample: a prompt, its clean (fixed-point) blocks and one noisy block for each
/// (METHOD.md §2).

#include <cstdint>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Which earlier blocks a noisy row sees (METHOD.md §3).
enum class MaskKind : std::uint8_t {
  noise,   ///< (b) noise-conditioned: all earlier noisy blocks. The method's default.
  window,  ///< (c) clean blocks before the noise window, noisy blocks inside it.
  clean,   ///< (a) all earlier clean blocks (the CLLM* baseline).
  mixed,   ///< noise in samples of even prompt ids, clean in the others.
};

/// Token ids of one sample. N = clean.size() / block_size; noisy and clean have N·n ids each, or
/// noisy is empty for a sample without consistency targets (plain supervised fine-tuning).
struct PackedSample {
  PromptId prompt_id = 0;
  std::int32_t block_size = 0;  ///< n
  std::int32_t window = 0;      ///< w, blocks per noise window
  std::vector<TokenId> prompt;  ///< P ids
  std::vector<TokenId> noisy;   ///< [N, n]
  std::vector<TokenId> clean;   ///< [N, n]

  [[nodiscard]] std::int64_t num_blocks() const {
    return block_size == 0 ? 0 : static_cast<std::int64_t>(clean.size()) / block_size;
  }
  /// Length of the packed sequence: P + 2·n·N, or P + n·N without noisy blocks.
  [[nodiscard]] std::int64_t packed_length() const {
    return static_cast<std::int64_t>(prompt.size() + noisy.size() + clean.size());
  }
};

}  // namespace jforge
