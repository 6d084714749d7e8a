#pragma once

#include <cstdint>
#include <memory>

#include "model/decoding/sequence_decoder.h"

namespace jforge {

/// Which draft follows an acceptance.
enum class DraftWindow : std::uint8_t {
  shrinking,  ///< The block's draft shrinks until n tokens are committed (trajectories; records
              ///< states).
  running,    ///< The draft is refilled to n after every forward (plain generation).
};

struct JacobiOptions {
  std::int32_t block_size = 16;  ///< n ≥ 1
  DraftWindow window = DraftWindow::shrinking;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;  ///< Part of the drafts' random stream.
  /// Trajectory mode (METHOD.md §1): eos is ignored until its block is complete; blocks
  /// = ceil(T / n); the result's tokens are the concatenated fixed points cut after the first eos
  /// and at T. Without it decoding stops at the first eos, and the last draft is cut to what a
  /// forward can still add to T.
  bool complete_blocks = false;
  /// Record every state of every block; needs complete_blocks, else the last block has no fixed
  /// point.
  bool record_states = false;

  /// Throws ConfigError: block_size < 1, record_states without complete_blocks, or complete_blocks
  /// with the running window, which has no blocks.
  void validate() const;
};

/// Jacobi fixed-point iteration (METHOD.md §1, §6.1, §6.2). Drafts are drawn with
/// replacement from all ids so far (prompt + committed), from the stream (seed, jacobi_draft,
/// round, request id, block); the running window, which has no blocks, draws all its fillers from
/// the stream of block 0. After a forward over the draft out_0 … out_{L−1} with predictions g, a =
/// 1 + the number of leading j with out_{j+1} = g_j tokens are committed. Shrinking: the next draft
/// is g_{a−1} … g_{L−2}, or, when a = L, a new block that begins with g_{L−1}. Running: g_{a−1} …
/// g_{L−1}, refilled to n after every forward. Every forward commits at least one token, so a block
/// takes at most n, whatever the arithmetic, and the last one n − 1.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_jacobi_decoder(DecodeRequest request,
                                                                   const JacobiOptions& options);

}  // namespace jforge
