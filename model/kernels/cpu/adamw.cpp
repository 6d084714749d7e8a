#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "model/kernels/content_hash_blocks.h"
#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"
#include "runtime/content_hash.h"

namespace jforge {

namespace {

/// Elements of a unit of work: constant, so that sums do not depend on the thread count.
constexpr std::int64_t kBlock = 1 << 14;
constexpr std::int64_t kHashBlock = kContentHashBlock;
static_assert(kBlock * 2 % kHashBlock == 0);

std::uint64_t hash_of_block(std::span<const std::byte> bytes) {
  const std::size_t hashed =
      static_cast<std::size_t>(content_hash_stripes(std::ssize(bytes)) * kContentHashStripe);
  if (hashed == bytes.size()) {
    return hash64(bytes);
  }
  std::array<std::byte, kHashBlock> padded;
  const auto end = std::ranges::copy(bytes, padded.begin()).out;
  std::fill(end, padded.begin() + static_cast<std::ptrdiff_t>(hashed), std::byte{0});
  return hash64(std::span(padded).first(hashed));
}

/// content_hash of a tensor, some blocks at a time.
struct BlockHashes {
  std::span<const std::byte> bytes;
  std::uint64_t seed = 0;
  std::uint64_t* blocks = nullptr;
  std::int64_t* sum = nullptr;

  [[nodiscard]] std::int64_t count() const {
    return (std::ssize(bytes) + kHashBlock - 1) / kHashBlock;
  }
  void hash_range(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t block = begin; block < std::min(end, count()); ++block) {
      const auto at = static_cast<std::size_t>(block * kHashBlock);
      blocks[block] = placed_hash(
          hash_of_block(bytes.subspan(at, std::min<std::size_t>(kHashBlock, bytes.size() - at))),
          seed, bytes.size(), static_cast<std::uint64_t>(block));
    }
  }
  /// Hashes the part in unit `block` of an AdamW step.
  void hash_unit(std::int64_t block, std::int64_t elements) const {
    if (!bytes.empty()) {
      const std::int64_t per_unit = kBlock * (std::ssize(bytes) / elements) / kHashBlock;
      hash_range(block * per_unit, (block + 1) * per_unit);
    }
  }
  void add() const {
    if (sum != nullptr) {
      *sum = static_cast<std::int64_t>(
          std::accumulate(blocks, blocks + count(), static_cast<std::uint64_t>(*sum)));
    }
  }
};

std::span<const std::byte> bytes_of(const ConstTensorView& x) {
  return {static_cast<const std::byte*>(x.raw()), x.bytes()};
}

}  // namespace

void CpuKernelSet::sum_of_squares(ConstTensorView x, TensorView sum) {
  expect_sums(sum, 1, "sum_of_squares sum");
  const std::int64_t count = x.elements();
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  const float* data = x.data<float>();
  partial_sums_.assign(static_cast<std::size_t>(blocks), 0.0);
  parallel_for(blocks > 4, blocks, [&](std::int64_t block) {
    const std::int64_t begin = block * kBlock;
    partial_sums_[static_cast<std::size_t>(block)] =
        vector_.sum_of_squares(data + begin, std::min(kBlock, count - begin));
  });
  *sum.data<double>() += std::accumulate(partial_sums_.begin(), partial_sums_.end(), 0.0);
}

void CpuKernelSet::content_hash(ConstTensorView x, std::uint64_t seed, TensorView sum) {
  expect_hash_sum(sum);
  BlockHashes hashes{bytes_of(x), seed, nullptr, sum.data<std::int64_t>()};
  const std::int64_t count = hashes.count();
  partial_hashes_.resize(static_cast<std::size_t>(count));
  hashes.blocks = partial_hashes_.data();
  parallel_for(count > 8, count, [&](std::int64_t block) { hashes.hash_range(block, block + 1); });
  hashes.add();
}

void CpuKernelSet::adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
                         const AdamWState& state, const AdamWHashes& hashes) {
  expect_adamw_shapes(gradient, state);
  expect_adamw_hashes(hashes);
  const AdamWStep step = adamw_step(settings, decay);
  const std::int64_t count = state.parameter.elements();
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  const float* g = gradient.data<float>();
  float* p = state.parameter.data<float>();
  float* m = state.first_moment.data<float>();
  float* v = state.second_moment.data<float>();

  constexpr std::int64_t kHashesPerUnit = kBlock * std::int64_t{sizeof(float)} / kHashBlock;
  partial_hashes_.resize(static_cast<std::size_t>(blocks * kHashesPerUnit) * 4 * 2);
  std::uint64_t* free = partial_hashes_.data();
  const auto hashes_into = [&](const TensorView& sums) {
    std::array<BlockHashes, 4> parts;
    if (!sums.empty()) {
      std::int64_t* sum = sums.data<std::int64_t>();
      const auto part = [&](const TensorView& x) {
        std::int64_t* const its = sum++;
        return x.empty() ? BlockHashes{}
                         : BlockHashes{bytes_of(x), hashes.seed,
                                       std::exchange(free, free + blocks * kHashesPerUnit), its};
      };
      parts = {part(state.parameter), part(state.first_moment), part(state.second_moment),
               part(state.rounded)};
    }
    return parts;
  };
  const std::array<BlockHashes, 4> before = hashes_into(hashes.found);
  const std::array<BlockHashes, 4> after = hashes_into(hashes.left);
  parallel_for(blocks > 4, blocks, [&](std::int64_t block) {
    const std::int64_t at = block * kBlock;
    const std::int64_t size = std::min(kBlock, count - at);
    for (const BlockHashes& part : before) {
      part.hash_unit(block, count);
    }
    vector_.adamw(step, g + at, p + at, m + at, v + at, size);
    if (!state.rounded.empty()) {
      vector_.round(p + at, static_cast<BFloat16*>(state.rounded.raw()) + at, size);
    }
    for (const BlockHashes& part : after) {
      part.hash_unit(block, count);
    }
  });
  for (std::size_t i = 0; i < before.size(); ++i) {
    before[i].add();
    after[i].add();
  }
}

}  // namespace jforge
