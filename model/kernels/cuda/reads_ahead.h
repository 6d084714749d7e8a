#pragma once

#include <cstdint>

namespace jforge {

inline constexpr int kReadsAhead = 4;

/// Calls take(i, read(i)) for i = begin, begin + stride, … < end, in order, but reads kAhead values
/// first to overlap their latency. take(i) may write what read(i) reads, but nothing read later.
template <int kAhead = kReadsAhead, class Read, class Take>
__device__ void read_ahead(std::int64_t begin, std::int64_t end, std::int64_t stride,
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
