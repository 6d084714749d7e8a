#pragma once

/// Output for tests/gpu/equal_in_every_order.py.

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "runtime/content_hash.h"

namespace jforge::test {

inline void print_digest(std::uint64_t digest) {
  // A single write, because output of several ranks may mix.
  const std::string line = "digest " + hash_hex(digest) + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

[[nodiscard]] inline std::uint64_t digest_of(std::span<const float> values, std::uint64_t seed) {
  return hash64(std::as_bytes(values), seed);
}

}  // namespace jforge::test
