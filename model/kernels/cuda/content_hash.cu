/// XXH3 (Collet, "XXH3 - specification", long inputs) of blocks of a tensor, as the CPU set divides
/// it. A block's eight accumulators are eight lanes.

#include <cstring>

#include "model/kernels/content_hash_blocks.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/partial_sums.h"
#include "runtime/content_hash.h"

namespace jforge {

namespace {

constexpr std::int64_t kStripe = kContentHashStripe;  ///< What the accumulators take at once.
constexpr std::int64_t kAccumulators = 8;
constexpr std::int64_t kStripesPerChunk = 16;  ///< Then the accumulators are scrambled.
constexpr std::int64_t kHashLanes = 256;
constexpr std::int64_t kUnits = kHashLanes / kAccumulators;  ///< Hashed blocks of a block of lanes.

constexpr std::uint64_t kPrime32A = 0x9E3779B1;
constexpr std::uint64_t kPrime32B = 0x85EBCA77;
constexpr std::uint64_t kPrime32C = 0xC2B2AE3D;
constexpr std::uint64_t kPrime64A = 0x9E3779B185EBCA87;
constexpr std::uint64_t kPrime64B = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t kPrime64C = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime64D = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime64E = 0x27D4EB2F165667C5;

/// Where the words of the table begin.
constexpr std::int64_t kWords = 0;   ///< The secret, for the stripes of a chunk in turn.
constexpr std::int64_t kLast = 24;   ///< Its words for the last stripe, …
constexpr std::int64_t kMerge = 32;  ///< … and for the end.
constexpr std::int64_t kStart = 40;  ///< What the accumulators begin with.

/// The two halves of a · b, one xor the other.
[[nodiscard]] JFORGE_DEVICE inline std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kLow = 0xFFFFFFFF;
  const std::uint64_t low = (a & kLow) * (b & kLow);
  const std::uint64_t middle = (a >> 32) * (b & kLow) + (low >> 32);
  const std::uint64_t cross = (a & kLow) * (b >> 32) + (middle & kLow);
  const std::uint64_t high = (a >> 32) * (b >> 32) + (middle >> 32) + (cross >> 32);
  return high ^ (cross << 32 | (low & kLow));
}

struct HashBlocks {
  const std::byte* bytes;
  std::int64_t size;
  std::uint64_t seed;
  const std::uint64_t* table;
  std::uint64_t* hashes;

  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<std::uint64_t>(kHashLanes); }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t count() const {
    return divide_up(size, kContentHashBlock);
  }
  [[nodiscard]] JFORGE_DEVICE std::int64_t stripes_of(std::int64_t block) const {
    const std::int64_t left = size - block * kContentHashBlock;
    return content_hash_stripes(left < kContentHashBlock ? left : kContentHashBlock);
  }

  /// The word that begins at byte `at`, wherever elements of two bytes may begin; zeros follow the
  /// last of them.
  [[nodiscard]] JFORGE_DEVICE std::uint64_t word(std::int64_t at) const {
    if (at + 8 <= size && reinterpret_cast<std::uintptr_t>(bytes + at) % 8 == 0) {
      return *reinterpret_cast<const std::uint64_t*>(bytes + at);
    }
    std::uint64_t word = 0;
    for (std::int64_t i = 0; i < 4 && at + 2 * i < size; ++i) {
      word |= std::uint64_t{*reinterpret_cast<const std::uint16_t*>(bytes + at + 2 * i)}
              << (16 * i);
    }
    return word;
  }

  /// `sum` is accumulator i; its neighbour's words are added, its own multiplied in.
  [[nodiscard]] JFORGE_DEVICE std::uint64_t accumulate(std::uint64_t sum, std::int64_t stripe,
                                                       std::int64_t i, std::uint64_t secret) const {
    const std::uint64_t key = word(stripe + i * 8) ^ secret;
    return sum + word(stripe + (i ^ 1) * 8) + (key & 0xFFFFFFFF) * (key >> 32);
  }

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t index) const {
    std::uint64_t* const sums = group.template shared<std::uint64_t>(kHashLanes);
    group.each([&](std::int64_t lane) {
      const std::int64_t block = index * kUnits + lane / kAccumulators;
      if (block >= count()) {
        return;
      }
      const std::int64_t i = lane % kAccumulators;
      const std::int64_t last = stripes_of(block) - 1;
      const std::int64_t begin = block * kContentHashBlock;
      std::uint64_t sum = table[kStart + i];
      for (std::int64_t stripe = 0; stripe < last; ++stripe) {
        const std::int64_t in_chunk = stripe % kStripesPerChunk;
        sum = accumulate(sum, begin + stripe * kStripe, i, table[kWords + in_chunk + i]);
        if (in_chunk + 1 == kStripesPerChunk) {
          sum = ((sum ^ (sum >> 47)) ^ table[kWords + kStripesPerChunk + i]) * kPrime32A;
        }
      }
      sums[lane] = accumulate(sum, begin + last * kStripe, i, table[kLast + i]);
    });
    group.each([&](std::int64_t lane) {
      const std::int64_t block = index * kUnits + lane / kAccumulators;
      if (lane % kAccumulators != 0 || block >= count()) {
        return;
      }
      std::uint64_t hash = static_cast<std::uint64_t>(stripes_of(block) * kStripe) * kPrime64A;
      for (std::int64_t i = 0; i < kAccumulators; i += 2) {
        hash += fold_product(sums[lane + i] ^ table[kMerge + i],
                             sums[lane + i + 1] ^ table[kMerge + i + 1]);
      }
      hash = (hash ^ (hash >> 37)) * 0x165667919E3779F9;
      hashes[block] = placed_hash(hash ^ (hash >> 32), seed, static_cast<std::uint64_t>(size),
                                  static_cast<std::uint64_t>(block));
    });
  }
};

/// What hashes are mixed with, in words.
std::vector<std::uint64_t> hash_table() {
  std::vector<std::uint64_t> table;
  const auto secret = hash64_secret(0);
  const auto append = [&](std::size_t begin, std::int64_t words) {
    for (std::int64_t i = 0; i < words; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, secret.data() + begin + static_cast<std::size_t>(i) * sizeof word,
                  sizeof word);
      table.push_back(word);
    }
  };
  append(0, kLast - kWords);
  append(secret.size() - kStripe - 7, kMerge - kLast);
  append(11, kStart - kMerge);
  table.insert(table.end(), {kPrime32C, kPrime64A, kPrime64B, kPrime64C, kPrime64D, kPrime32B,
                             kPrime64E, kPrime32A});
  return table;
}

}  // namespace

void CudaKernelSet::content_hash(ConstTensorView x, std::uint64_t seed, TensorView sum) {
  expect_hash_sum(sum);
  expect(sum.device() == DeviceQueue::kDevice && (x.empty() || x.device() == DeviceQueue::kDevice),
         "tensor is not on the device");
  if (x.bytes() == 0) {
    return;
  }
  if (hash_table_.bytes() == 0) {
    const std::vector<std::uint64_t> table = hash_table();
    const auto words = static_cast<std::int64_t>(table.size());
    hash_table_ = Buffer(table.size() * sizeof(std::uint64_t), account_, DeviceQueue::kDevice);
    copy_tensor(ConstTensorView(table.data(), DType::int64, Shape{words}),
                hash_table_.view(DType::int64, Shape{words}));
  }
  HashBlocks body{static_cast<const std::byte*>(x.raw()), static_cast<std::int64_t>(x.bytes()),
                  seed, reinterpret_cast<const std::uint64_t*>(hash_table_.data()), nullptr};
  body.hashes = partials_.at_least<std::uint64_t>(body.count());
  queue_.launch(divide_up(body.count(), kUnits), kHashLanes, body, "content_hash");
  add_partial_sums(queue_, body.hashes, body.count(),
                   reinterpret_cast<std::uint64_t*>(sum.data<std::int64_t>()),
                   "content_hash total");
}

}  // namespace jforge
