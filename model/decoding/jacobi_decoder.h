#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

enum class DraftWindow : std::uint8_t {
  shrinking,  ///< Shrinks until n tokens are committed.
  running,    ///< Refilled to n after every forward.
};

struct JacobiOptions {
  std::int32_t block_size = 16;  ///< n ≥ 1
  DraftWindow window = DraftWindow::shrinking;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;  ///< Selects the drafts' random stream.
  /// Trajectory mode (METHOD.md §1): eos counts once its block is complete; at most ceil(T / n)
  /// blocks; the tokens are the fixed points cut after the first eos and at T.
  bool complete_blocks = false;
  /// Records every state. Requires complete_blocks: else the last block may lack its fixed point.
  bool record_states = false;

  /// Throws ConfigError if block_size < 1, record_states lacks complete_blocks, or complete_blocks
  /// is combined with the running window.
  void validate() const;
};

/// Jacobi fixed-point iteration (METHOD.md §1, §6.1, §6.2). Drafts use the stream (seed,
/// jacobi_draft, round, request id, block); the running window uses block 0 throughout. Each
/// forward commits a token, so a block takes at most n forwards, the last one n − 1.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_jacobi_decoder(DecodeRequest request,
                                                                   const JacobiOptions& options);

}  // namespace jforge
