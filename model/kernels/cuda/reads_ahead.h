#pragma once

/// How a lane goes over numbers that it takes one after the other without waiting for each.

#include <cstdint>

#include "model/kernels/cuda/block_group.h"

namespace jforge {

/// Of a lane's reads, how many are on their way at once.
inline constexpr int kReadsAhead = 4;

/// take(i, read(i)) for i = begin, begin + stride, … below `end`, in this order. What the next few
/// need is read before the first of them is taken: a trip to memory for all of them, not for each.
/// So take(i) may write what read(i) reads, but not what a later read does.
template <class Read, class Take>
JFORGE_DEVICE void read_ahead(std::int64_t begin, std::int64_t end, std::int64_t stride,
                              const Read& read, const Take& take) {
  std::int64_t i = begin;
  for (; i + (kReadsAhead - 1) * stride < end; i += kReadsAhead * stride) {
    decltype(read(i)) values[kReadsAhead];
    for (int ahead = 0; ahead < kReadsAhead; ++ahead) {
      values[ahead] = read(i + ahead * stride);
    }
    for (int ahead = 0; ahead < kReadsAhead; ++ahead) {
      take(i + ahead * stride, values[ahead]);
    }
  }
  // The rest, which are fewer, likewise.
  decltype(read(i)) values[kReadsAhead - 1]{};
  for (int ahead = 0; ahead < kReadsAhead - 1; ++ahead) {
    if (i + ahead * stride < end) {
      values[ahead] = read(i + ahead * stride);
    }
  }
  for (int ahead = 0; ahead < kReadsAhead - 1; ++ahead) {
    if (i + ahead * stride < end) {
      take(i + ahead * stride, values[ahead]);
    }
  }
}

}  // namespace jforge
