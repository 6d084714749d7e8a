#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "runtime/ids.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge::test {

/// Values of one rank, which any rank can compute.
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

/// Adds ranks in the order that collectives.h promises; bfloat16 in float32, rounded once.
template <class T>
std::vector<T> expected_sum(int ranks, std::size_t count, std::uint64_t round = 0) {
  const auto num_ranks = static_cast<std::size_t>(ranks);
  std::vector<std::vector<T>> inputs;
  for (Rank rank = 0; rank < ranks; ++rank) {
    inputs.push_back(values_of<T>(rank, count, round));
  }
  const bool ring = ranks >= 16 && count * sizeof(T) > 4096;
  const std::size_t block = (count + num_ranks - 1) / num_ranks;
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = ring ? i / block + 1 : 0;
    const auto term = [&](std::size_t turn) { return inputs[(first + turn) % num_ranks][i]; };
    if constexpr (std::is_same_v<T, BFloat16>) {
      float sum = to_float(term(0));
      for (std::size_t turn = 1; turn < num_ranks; ++turn) {
        sum += to_float(term(turn));
      }
      result[i] = to_bfloat16(sum);
    } else {
      T sum = term(0);
      for (std::size_t turn = 1; turn < num_ranks; ++turn) {
        sum = static_cast<T>(sum + term(turn));
      }
      result[i] = sum;
    }
  }
  return result;
}

/// Bitwise, because the order of addition is promised.
template <class T>
::testing::AssertionResult same_bits(std::span<const T> got, std::span<const T> wanted) {
  if (got.size() != wanted.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements instead of " << wanted.size();
  }
  if (got.empty() || std::memcmp(got.data(), wanted.data(), got.size_bytes()) == 0) {
    return ::testing::AssertionSuccess();
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
