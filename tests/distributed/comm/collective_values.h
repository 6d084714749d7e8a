#pragma once

/// Values of ranks and what their sums must be, by serial code that passes no messages.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "runtime/ids.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge::test {

/// Values of one rank, drawn anew by every rank that needs them: the reference uses no message
/// passing.
template <class T>
std::vector<T> values_of(Rank rank, std::size_t count, std::uint64_t round = 0) {
  std::vector<T> values(count);
  // A cheap mixer instead of RandomStream: these tests draw hundreds of millions of values.
  std::uint64_t state = (round * 1000 + static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15U;
  for (T& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto bits = static_cast<std::uint32_t>(state >> 33);
    if constexpr (std::is_same_v<T, BFloat16>) {
      value = to_bfloat16(static_cast<float>(bits) * 0x1.0p-30F - 1);
    } else if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(bits) * T{0x1.0p-30} - T{1};
    } else {
      value = static_cast<T>(bits % 50);
    }
  }
  return values;
}

/// The sum over the ranks in rank order; of bfloat16 in float32, rounded once.
template <class T>
std::vector<T> sum_in_rank_order(int ranks, std::size_t count, std::uint64_t round = 0) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    std::vector<float> sum(count);
    for (Rank rank = 0; rank < ranks; ++rank) {
      const auto values = values_of<T>(rank, count, round);
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] = rank == 0 ? to_float(values[i]) : sum[i] + to_float(values[i]);
      }
    }
    std::vector<T> rounded(count);
    for (std::size_t i = 0; i < count; ++i) {
      rounded[i] = to_bfloat16(sum[i]);
    }
    return rounded;
  } else {
    std::vector<T> sum = values_of<T>(0, count, round);
    for (Rank rank = 1; rank < ranks; ++rank) {
      const auto values = values_of<T>(rank, count, round);
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] = static_cast<T>(sum[i] + values[i]);
      }
    }
    return sum;
  }
}

/// Bitwise: the order of addition is promised, not only closeness.
template <class T>
::testing::AssertionResult same_bits(std::span<const T> got, std::span<const T> wanted) {
  if (got.size() != wanted.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements instead of " << wanted.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &wanted[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << " of " << got.size()
                                           << " is wrong: " << ::testing::PrintToString(got[i])
                                           << " instead of " << ::testing::PrintToString(wanted[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace jforge::test
