#pragma once

/// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
/// 1, 2, 3", SC 2011). A stream is named by what it is for, never by who draws from it, so results
/// do not depend on rank count, order of work or restarts.

#include <array>
#include <cstdint>

namespace jforge {

/// The Philox4x32-10 block function: 128-bit counter and 64-bit key to 128 random bits.
[[nodiscard]] std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                         std::array<std::uint32_t, 2> key) noexcept;

/// What a stream is for. The values are part of a run's identity: append, never renumber.
enum class RandomPurpose : std::uint32_t {
  jacobi_draft = 1,
  noise_schedule = 2,
  sample_order = 3,
  prompt_sample = 4,
  weight_init = 5,
  bootstrap = 6,
  test = 7,
  token_sampling = 8,
};

/// Sequential draws from the stream (seed, purpose, round, item, block). Cheap to construct;
/// copyable; not shared between threads. `item` is a prompt id, tensor number or epoch. `block` and
/// `round` are below 2^32 (truncated). The key is the 64-bit seed mixed with purpose, round, item
/// and block by two Philox applications; the counter numbers the draws.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, RandomPurpose purpose, std::uint64_t round = 0,
               std::uint64_t item = 0, std::uint64_t block = 0) noexcept;

  /// 32 uniformly distributed bits.
  [[nodiscard]] std::uint32_t next_u32() noexcept;
  /// 64 uniformly distributed bits.
  [[nodiscard]] std::uint64_t next_u64() noexcept;
  /// Draws 4·block … 4·block + 3 as next_u32() of a fresh stream gives them, wherever this one
  /// stands: for noise that is looked up and not drawn in order.
  [[nodiscard]] std::array<std::uint32_t, 4> block_at(std::uint64_t block) const noexcept;
  /// Uniform integer in [0, bound), without modulo bias. bound ≥ 1.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) noexcept;
  /// Uniform double in [0, 1), 53 bits.
  [[nodiscard]] double uniform() noexcept;
  /// Standard normal by Box-Muller (one value a call; the pair's second value is discarded for
  /// simplicity).
  [[nodiscard]] double normal() noexcept;

 private:
  std::array<std::uint32_t, 2> key_{};
  std::array<std::uint32_t, 4> counter_{};
  std::array<std::uint32_t, 4> buffer_{};
  int used_ = 4;
};

}  // namespace jforge
