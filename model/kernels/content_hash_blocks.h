#pragma once

#include <cstdint>

#include "model/kernels/cuda/device_code.h"

namespace jforge {

/// content_hash sums placed_hash over the hash64s of a tensor's blocks. A shorter last block is
/// padded with zeros to whole stripes, at least kFewestContentHashStripes.
inline constexpr std::int64_t kContentHashBlock = 1 << 15;
inline constexpr std::int64_t kContentHashStripe = 64;
inline constexpr std::int64_t kFewestContentHashStripes = 4;
[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr std::int64_t content_hash_stripes(
    std::int64_t bytes) {
  const std::int64_t stripes = (bytes + kContentHashStripe - 1) / kContentHashStripe;
  return stripes < kFewestContentHashStripes ? kFewestContentHashStripes : stripes;
}
/// Mixes in the tensor's seed and size and the block's place, as SplitMix64 (Steele, Lea & Flood
/// 2014), so that exchanged blocks change the sum.
[[nodiscard]] JFORGE_DEVICE_AND_HOST constexpr std::uint64_t placed_hash(std::uint64_t hash,
                                                                         std::uint64_t seed,
                                                                         std::uint64_t bytes,
                                                                         std::uint64_t block) {
  std::uint64_t mixed = hash ^ (seed * 0x9E3779B97F4A7C15 + bytes * 0xD1B54A32D192ED03 + block);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

}  // namespace jforge
