#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"
#include "runtime/content_hash.h"

namespace jforge {

namespace {

/// Elements of one unit of work: fixed, so that sums do not depend on the number of threads, and
/// few enough that a unit of an AdamW step stays in a core's second-level cache.
constexpr std::int64_t kBlock = 1 << 14;
/// A unit of work is whole ones of float32 and of bfloat16.
constexpr std::int64_t kHashBlock = kContentHashBlock;
static_assert(kBlock * 2 % kHashBlock == 0);

std::int64_t hash_blocks(std::int64_t bytes) { return (bytes + kHashBlock - 1) / kHashBlock; }

/// content_hash of a tensor, some blocks at a time: of which bytes, where the blocks' hashes go,
/// and the seed that becomes the result.
struct BlockHashes {
  std::span<const std::byte> bytes;
  std::uint64_t* blocks = nullptr;
  std::uint64_t* hash = nullptr;

  [[nodiscard]] std::int64_t count() const { return hash_blocks(std::ssize(bytes)); }
  void hash_range(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t block = begin; block < std::min(end, count()); ++block) {
      const auto at = static_cast<std::size_t>(block * kHashBlock);
      blocks[block] =
          hash64(bytes.subspan(at, std::min<std::size_t>(kHashBlock, bytes.size() - at)), *hash);
    }
  }
  /// Those of `block` of an AdamW step of `count` elements.
  void hash_unit(std::int64_t block, std::int64_t elements) const {
    if (!bytes.empty()) {
      const std::int64_t per_unit = kBlock * (std::ssize(bytes) / elements) / kHashBlock;
      hash_range(block * per_unit, (block + 1) * per_unit);
    }
  }
  void finish() const {
    if (hash != nullptr) {
      *hash = hash64(std::as_bytes(std::span(blocks, static_cast<std::size_t>(count()))), *hash);
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

std::uint64_t CpuKernelSet::content_hash(ConstTensorView x, std::uint64_t seed) {
  const std::int64_t count = hash_blocks(static_cast<std::int64_t>(x.bytes()));
  partial_hashes_.resize(static_cast<std::size_t>(count));
  const BlockHashes hashes{bytes_of(x), partial_hashes_.data(), &seed};
  parallel_for(count > 8, count, [&](std::int64_t block) { hashes.hash_range(block, block + 1); });
  hashes.finish();
  return seed;
}

void CpuKernelSet::adamw(const AdamWSettings& settings, bool decay, ConstTensorView gradient,
                         const AdamWState& state, AdamWHashes* found, AdamWHashes* left) {
  expect_adamw_shapes(gradient, state);
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
  const auto hashes_into = [&](AdamWHashes* hashes) {
    std::array<BlockHashes, 4> parts;
    if (hashes != nullptr) {
      const auto part = [&](const TensorView& x, std::uint64_t& hash) {
        return x.empty() ? BlockHashes{}
                         : BlockHashes{bytes_of(x),
                                       std::exchange(free, free + blocks * kHashesPerUnit), &hash};
      };
      parts = {part(state.rounded, hashes->rounded), part(state.parameter, hashes->parameter),
               part(state.first_moment, hashes->first_moment),
               part(state.second_moment, hashes->second_moment)};
    }
    return parts;
  };
  const std::array<BlockHashes, 4> before = hashes_into(found);
  const std::array<BlockHashes, 4> after = hashes_into(left);
  parallel_for(blocks > 4, blocks, [&](std::int64_t block) {
    const std::int64_t at = block * kBlock;
    const std::int64_t size = std::min(kBlock, count - at);
    for (const BlockHashes& hashes : before) {
      hashes.hash_unit(block, count);
    }
    vector_.adamw(step, g + at, p + at, m + at, v + at, size);
    if (!state.rounded.empty()) {
      vector_.round(p + at, static_cast<BFloat16*>(state.rounded.raw()) + at, size);
    }
    for (const BlockHashes& hashes : after) {
      hashes.hash_unit(block, count);
    }
  });
  for (std::size_t i = 0; i < before.size(); ++i) {
    before[i].finish();
    after[i].finish();
  }
}

}  // namespace jforge
