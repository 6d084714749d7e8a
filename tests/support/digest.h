#pragma once

/// What tests/gpu/equal_in_every_order.py compares between orders of a device's work.

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "runtime/content_hash.h"

namespace jforge::test {

inline void print_digest(std::uint64_t digest) {
  // In one write: what several ranks print may run together.
  const std::string line = "digest " + hash_hex(digest) + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

[[nodiscard]] inline std::uint64_t digest_of(std::span<const float> values, std::uint64_t seed) {
  return hash64(std::as_bytes(values), seed);
}

}  // namespace jforge::test
