#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace jforge {

/// CPython 3's random.Random(seed): Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998),
/// seeded by array.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint32_t seed);

  /// Returns numbers in the order drawn. Requires: `size` ≤ 5.
  [[nodiscard]] std::vector<std::size_t> sample(std::uint32_t count, std::uint32_t size);

 private:
  static constexpr std::size_t kWords = 624;

  [[nodiscard]] std::uint32_t next();
  /// Requires: `count` ≥ 1.
  [[nodiscard]] std::uint32_t below(std::uint32_t count);
  void refill();

  std::array<std::uint32_t, kWords> state_;
  std::size_t used_ = kWords;
};

}  // namespace jforge
