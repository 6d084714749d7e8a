#include "data/tasks/python_random.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "runtime/error.h"

namespace jforge {
namespace {

/// Up to this population Python draws from a shrinking list, above by rejection. The bound grows
/// for samples of more than kMostDrawn.
constexpr std::uint32_t kListed = 21;
constexpr std::uint32_t kMostDrawn = 5;

}  // namespace

PythonRandom::PythonRandom(std::uint32_t seed) {
  state_[0] = 19650218U;
  for (std::size_t i = 1; i < kWords; ++i) {
    state_[i] =
        1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<std::uint32_t>(i);
  }
  const auto mixed = [&](std::size_t i, std::uint32_t factor) {
    return state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * factor);
  };
  std::size_t i = 1;
  const auto advance = [&] {
    if (++i == kWords) {
      state_[0] = state_[kWords - 1];
      i = 1;
    }
  };
  // The key is the seed alone.
  for (std::size_t step = 0; step < kWords; ++step) {
    state_[i] = mixed(i, 1664525U) + seed;
    advance();
  }
  for (std::size_t step = 1; step < kWords; ++step) {
    state_[i] = mixed(i, 1566083941U) - static_cast<std::uint32_t>(i);
    advance();
  }
  state_[0] = 0x80000000U;
}

void PythonRandom::refill() {
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::uint32_t word = (state_[i] & 0x80000000U) | (state_[(i + 1) % kWords] & 0x7FFFFFFFU);
    state_[i] = state_[(i + 397) % kWords] ^ (word >> 1) ^ ((word & 1U) != 0 ? 0x9908B0DFU : 0U);
  }
  used_ = 0;
}

std::uint32_t PythonRandom::next() {
  if (used_ == kWords) {
    refill();
  }
  std::uint32_t word = state_[used_++];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9D2C5680U;
  word ^= (word << 15) & 0xEFC60000U;
  return word ^ (word >> 18);
}

std::uint32_t PythonRandom::below(std::uint32_t count) {
  const int unused_bits = std::countl_zero(count);
  std::uint32_t drawn = next() >> unused_bits;
  while (drawn >= count) {
    drawn = next() >> unused_bits;
  }
  return drawn;
}

std::vector<std::size_t> PythonRandom::sample(std::uint32_t count, std::uint32_t size) {
  expect(size <= count && size <= kMostDrawn, "a sample is no larger than what it is drawn from");
  std::vector<std::size_t> drawn;
  if (count > kListed) {
    while (drawn.size() < size) {
      const std::size_t number = below(count);
      if (std::find(drawn.begin(), drawn.end(), number) == drawn.end()) {
        drawn.push_back(number);
      }
    }
    return drawn;
  }
  std::vector<std::size_t> left(count);
  std::iota(left.begin(), left.end(), std::size_t{0});
  for (; drawn.size() < size; left.pop_back()) {
    const std::size_t place = below(static_cast<std::uint32_t>(left.size()));
    drawn.push_back(left[place]);
    left[place] = left.back();
  }
  return drawn;
}

}  // namespace jforge
