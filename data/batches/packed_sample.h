#pragma once

/// One training sample (METHOD.md §2).

#include <cstdint>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Earlier blocks that a noisy row sees (METHOD.md §3).
enum class MaskKind : std::uint8_t {
  noise,   ///< (b) All earlier noisy blocks; the method's default.
  window,  ///< (c) Clean blocks before the noise window, noisy blocks inside it.
  clean,   ///< (a) All earlier clean blocks (the CLLM* baseline).
  mixed,   ///< `noise` for even prompt ids, `clean` for odd ones.
};

/// `noisy` is empty in samples without consistency targets (plain supervised fine-tuning). N =
/// clean.size() / n.
struct PackedSample {
  PromptId prompt_id = 0;
  std::int32_t block_size = 0;  ///< n
  std::int32_t window = 0;      ///< w, blocks per noise window
  std::vector<TokenId> prompt;  ///< P ids
  std::vector<TokenId> noisy;   ///< [N, n]
  std::vector<TokenId> clean;   ///< [N, n]

  /// Returns P + 2·n·N, or P + n·N without noisy blocks.
  [[nodiscard]] std::int64_t packed_length() const {
    return static_cast<std::int64_t>(prompt.size() + noisy.size() + clean.size());
  }
};

}  // namespace jforge
