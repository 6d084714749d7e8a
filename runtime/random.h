#pragma once

/// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
/// 1, 2, 3", SC 2011). Streams are named by purpose, not by rank, so results do not depend on rank
/// count, order of work or restarts.

#include <array>
#include <cstdint>

namespace jforge {

/// Maps a 128-bit counter and a 64-bit key to 128 random bits.
[[nodiscard]] std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                         std::array<std::uint32_t, 2> key) noexcept;

/// The values are part of a run's identity: append, never renumber.
enum class RandomPurpose : std::uint32_t {
  jacobi_draft = 1,
  noise_schedule = 2,
  sample_order = 3,
  prompt_sample = 4,
  weight_init = 5,
  bootstrap = 6,
  test = 7,
  token_sampling = 8,
  own_proposals = 9,
};

/// Stream (seed, purpose, round, item, block). Cheap to construct, copyable, not thread-safe.
/// `item` is a prompt id, tensor number or epoch; `block` and `round` are truncated to 32 bits. Two
/// Philox applications mix all five into the key; the counter numbers the draws.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, RandomPurpose purpose, std::uint64_t round = 0,
               std::uint64_t item = 0, std::uint64_t block = 0) noexcept;

  [[nodiscard]] std::uint32_t next_u32() noexcept;
  [[nodiscard]] std::uint64_t next_u64() noexcept;
  /// Returns draws 4·block … 4·block + 3 of a fresh stream, for noise that is looked up.
  [[nodiscard]] std::array<std::uint32_t, 4> block_at(std::uint64_t block) const noexcept;
  /// Uniform in [0, bound), without modulo bias. Requires: bound ≥ 1.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) noexcept;
  /// Uniform in [0, 1), 53 bits.
  [[nodiscard]] double uniform() noexcept;
  /// Standard normal by Box-Muller; discards the pair's second value for simplicity.
  [[nodiscard]] double normal() noexcept;

 private:
  std::array<std::uint32_t, 2> key_{};
  std::array<std::uint32_t, 4> counter_{};
  std::array<std::uint32_t, 4> buffer_{};
  int used_ = 4;
};

}  // namespace jforge
