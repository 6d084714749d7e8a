#pragma once

/// RandomStream (runtime/random.h) for kernels.

#include <cstdint>

#include "runtime/random.h"

namespace jforge {

struct PhiloxWords {
  std::uint32_t words[4];
};

/// philox4x32_10()
[[nodiscard]] __device__ inline PhiloxWords philox(PhiloxWords counter, std::uint32_t key0,
                                                   std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * counter.words[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * counter.words[2];
    counter = {{static_cast<std::uint32_t>(second >> 32) ^ counter.words[1] ^ key0,
                static_cast<std::uint32_t>(second),
                static_cast<std::uint32_t>(first >> 32) ^ counter.words[3] ^ key1,
                static_cast<std::uint32_t>(first)}};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

/// The stream (seed, purpose, round, item, block).
class DeviceStream {
 public:
  __device__ DeviceStream(std::uint64_t seed, RandomPurpose purpose, std::uint64_t round,
                          std::uint64_t item, std::uint64_t block) {
    const PhiloxWords first =
        philox({{static_cast<std::uint32_t>(purpose), static_cast<std::uint32_t>(round),
                 static_cast<std::uint32_t>(item), static_cast<std::uint32_t>(item >> 32)}},
               static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    const PhiloxWords second =
        philox({{static_cast<std::uint32_t>(block), first.words[2], first.words[3], 0}},
               first.words[0], first.words[1]);
    key0_ = second.words[0];
    key1_ = second.words[1];
    counter2_ = second.words[2];
    counter3_ = second.words[3];
  }

  /// RandomStream::block_at()
  [[nodiscard]] __device__ PhiloxWords block_at(std::uint64_t block) const {
    return philox({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                    counter2_, counter3_}},
                  key0_, key1_);
  }

 private:
  std::uint32_t key0_;
  std::uint32_t key1_;
  std::uint32_t counter2_;
  std::uint32_t counter3_;
};

}  // namespace jforge
