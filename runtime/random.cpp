#include "runtime/random.h"

#include <cmath>
#include <numbers>

namespace jforge {

namespace {
constexpr std::uint32_t kMultiplier0 = 0xD2511F53U;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57U;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;

std::uint32_t low(std::uint64_t x) noexcept { return static_cast<std::uint32_t>(x); }
std::uint32_t high(std::uint64_t x) noexcept { return static_cast<std::uint32_t>(x >> 32); }
}  // namespace

std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1),
               high(product0) ^ counter[3] ^ key[1], low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

RandomStream::RandomStream(std::uint64_t seed, RandomPurpose purpose, std::uint64_t round,
                           std::uint64_t item, std::uint64_t block) noexcept {
  const auto first =
      philox4x32_10({static_cast<std::uint32_t>(purpose), low(round), low(item), high(item)},
                    {low(seed), high(seed)});
  const auto second = philox4x32_10({low(block), first[2], first[3], 0}, {first[0], first[1]});
  key_ = {second[0], second[1]};
  counter_ = {0, 0, second[2], second[3]};
}

std::uint32_t RandomStream::next_u32() noexcept {
  if (used_ == 4) {
    buffer_ = philox4x32_10(counter_, key_);
    if (++counter_[0] == 0) {
      ++counter_[1];
    }
    used_ = 0;
  }
  return buffer_[static_cast<std::size_t>(used_++)];
}

std::uint64_t RandomStream::next_u64() noexcept {
  const std::uint64_t upper = next_u32();
  return (upper << 32) | next_u32();
}

std::array<std::uint32_t, 4> RandomStream::block_at(std::uint64_t block) const noexcept {
  return philox4x32_10({low(block), high(block), counter_[2], counter_[3]}, key_);
}

std::uint64_t RandomStream::below(std::uint64_t bound) noexcept {
  // Rejects values under 2^64 mod bound, so that every residue is equally likely.
  const std::uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t draw = next_u64();
    if (draw >= threshold) {
      return draw % bound;
    }
  }
}

double RandomStream::uniform() noexcept {
  return static_cast<double>(next_u64() >> 11) * 0x1.0p-53;
}

double RandomStream::normal() noexcept {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace jforge
