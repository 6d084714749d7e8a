#pragma once

/// How a lane goes over numbers that it takes one after the other without waiting for each.

#include <cstdint>

#include "model/kernels/cuda/block_group.h"

namespace jforge {

/// Of a lane's reads, how many are on their way at once, unless said otherwise.
inline constexpr int kReadsAhead = 4;

/// take(i, read(i)) for i = begin, begin + stride, … below `end`, in this order. What the next few
/// need is read before the first of them is taken: a trip to memory for all of them, not for each.
/// So take(i) may write what read(i) reads, but not what a later read does.
template <int kAhead = kReadsAhead, class Read, class Take>
JFORGE_DEVICE void read_ahead(std::int64_t begin, std::int64_t end, std::int64_t stride,
                              const Read& read, const Take& take) {
  std::int64_t i = begin;
  for (; i + (kAhead - 1) * stride < end; i += kAhead * stride) {
    decltype(read(i)) values[kAhead];
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      values[ahead] = read(i + ahead * stride);
    }
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      take(i + ahead * stride, values[ahead]);
    }
  }
  // The rest, which are fewer, likewise.
  decltype(read(i)) values[kAhead - 1]{};
  for (int ahead = 0; ahead < kAhead - 1; ++ahead) {
    if (i + ahead * stride < end) {
      values[ahead] = read(i + ahead * stride);
    }
  }
  for (int ahead = 0; ahead < kAhead - 1; ++ahead) {
    if (i + ahead * stride < end) {
      take(i + ahead * stride, values[ahead]);
    }
  }
}

}  // namespace jforge
