/// XXH3 (Collet, "XXH3 - specification", long inputs) of a tensor's blocks. Within a chunk of
/// stripes the contributions to an accumulator only add up. So one lane per chunk and accumulator
/// sums a chunk, all chunks at once; then eight lanes, the accumulators, take the chunks in order.

#include <algorithm>
#include <array>
#include <cstring>

#include "model/kernels/content_hash_blocks.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/partial_sums.h"
#include "model/kernels/cuda/reads_ahead.h"
#include "runtime/content_hash.h"

namespace jforge {

namespace {

constexpr std::int64_t kStripe = kContentHashStripe;
constexpr std::int64_t kAccumulators = 8;
constexpr std::int64_t kStripesPerChunk = 16;  ///< Then the accumulators are scrambled.
/// One per chunk and accumulator of a block.
constexpr std::int64_t kHashLanes =
    kContentHashBlock / (kStripe * kStripesPerChunk) * kAccumulators;
/// AdamW's state, or the ranks' parts of a group.
constexpr std::int64_t kMostTensors = 16;

constexpr std::uint64_t kPrime32A = 0x9E3779B1;
constexpr std::uint64_t kPrime32B = 0x85EBCA77;
constexpr std::uint64_t kPrime32C = 0xC2B2AE3D;
constexpr std::uint64_t kPrime64A = 0x9E3779B185EBCA87;
constexpr std::uint64_t kPrime64B = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t kPrime64C = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime64D = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime64E = 0x27D4EB2F165667C5;

/// Offsets in the table, in words.
constexpr std::int64_t kWords = 0;   ///< The secret for the stripes of a chunk.
constexpr std::int64_t kLast = 24;   ///< The secret for the last stripe.
constexpr std::int64_t kMerge = 32;  ///< The secret for the final merge.
constexpr std::int64_t kStart = 40;  ///< The accumulators' initial values.

[[nodiscard]] __device__ inline std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kLow = 0xFFFFFFFF;
  const std::uint64_t low = (a & kLow) * (b & kLow);
  const std::uint64_t middle = (a >> 32) * (b & kLow) + (low >> 32);
  const std::uint64_t cross = (a & kLow) * (b >> 32) + (middle & kLow);
  const std::uint64_t high = (a >> 32) * (b >> 32) + (middle >> 32) + (cross >> 32);
  return high ^ (cross << 32 | (low & kLow));
}

struct HashedBytes {
  const std::byte* bytes;
  std::int64_t size;
  std::int64_t first;  ///< Its first block in the launch.
  std::uint64_t* sum;

  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t blocks() const {
    return divide_up(size, kContentHashBlock);
  }
  [[nodiscard]] __device__ std::int64_t stripes_of(std::int64_t block) const {
    const std::int64_t left = size - block * kContentHashBlock;
    return content_hash_stripes(left < kContentHashBlock ? left : kContentHashBlock);
  }

  /// The word at byte `at`, which need only be 2-byte aligned; zeros follow the end.
  [[nodiscard]] __device__ std::uint64_t word(std::int64_t at) const {
    std::uint64_t word = 0;
    for (std::int64_t i = 0; i < 4 && at + 2 * i < size; ++i) {
      word |= std::uint64_t{*reinterpret_cast<const std::uint16_t*>(bytes + at + 2 * i)}
              << (16 * i);
    }
    return word;
  }

  /// Reads the word at byte `at` of each of the chunk's stripes.
  __device__ void read_chunk(std::int64_t at, std::uint64_t (&words)[kStripesPerChunk]) const {
    constexpr std::int64_t kLastWord = (kStripesPerChunk - 1) * kStripe;
    if (at + kLastWord + 8 <= size && reinterpret_cast<std::uintptr_t>(bytes) % 8 == 0) {
      const auto* const begin = reinterpret_cast<const std::uint64_t*>(bytes + at);
      for (std::int64_t i = 0; i < kStripesPerChunk; ++i) {
        words[i] = begin[i * kStripe / 8];
      }
    } else {
      for (std::int64_t i = 0; i < kStripesPerChunk; ++i) {
        words[i] = word(at + i * kStripe);
      }
    }
  }
};

struct HashedTogether {
  HashedBytes tensors[kMostTensors];
  std::int64_t count;
  std::int64_t blocks;  ///< Of all tensors.

  void add(HashedBytes tensor) {
    tensor.first = blocks;
    blocks += tensor.blocks();
    tensors[count++] = tensor;
  }
  [[nodiscard]] __device__ HashedBytes owner(std::int64_t block) const {
    HashedBytes owner = tensors[0];
    for (std::int64_t i = 1; i < kMostTensors; ++i) {
      if (i < count && block >= tensors[i].first) {
        owner = tensors[i];
      }
    }
    return owner;
  }
};

/// A tensor's only block is its hash; AddHashes adds up several.
struct HashBlocks {
  HashedTogether together;
  std::uint64_t seed;
  const std::uint64_t* table;
  std::uint64_t* hashes;

  [[nodiscard]] std::int64_t shared_bytes() const {
    return 2 * shared_size<std::uint64_t>(kHashLanes) + shared_size<std::uint64_t>(kAccumulators);
  }
  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    // Per chunk and accumulator.
    auto* const products = group.shared<std::uint64_t>(kHashLanes);
    auto* const words = group.shared<std::uint64_t>(kHashLanes);
    auto* const accumulators = group.shared<std::uint64_t>(kAccumulators);
    const HashedBytes tensor = together.owner(index);
    const std::int64_t block = index - tensor.first;
    const std::int64_t stripes = tensor.stripes_of(block);
    const std::int64_t chunks = divide_up(stripes, kStripesPerChunk);
    group.each([&](std::int64_t lane) {
      const std::int64_t i = lane % kAccumulators;
      const std::int64_t first = lane / kAccumulators * kStripesPerChunk;
      if (first >= stripes) {
        return;
      }
      std::uint64_t own[kStripesPerChunk];
      tensor.read_chunk(block * kContentHashBlock + first * kStripe + i * 8, own);
      const std::uint64_t* const secrets = table + kWords + i;
      const std::uint64_t last_secret = table[kLast + i];  // Of the very last stripe.
      std::uint64_t product = 0;
      std::uint64_t sum = 0;
      for (std::int64_t in_chunk = 0; in_chunk < kStripesPerChunk; ++in_chunk) {
        const std::int64_t left = stripes - (first + in_chunk);
        const std::uint64_t secret = secrets[in_chunk];
        const std::uint64_t key = own[in_chunk] ^ (left == 1 ? last_secret : secret);
        product += left > 0 ? (key & 0xFFFFFFFF) * (key >> 32) : 0;
        sum += left > 0 ? own[in_chunk] : 0;
      }
      products[lane] = product;
      words[lane ^ 1] = sum;
    });
    group.each([&](std::int64_t lane) {
      if (lane >= kAccumulators) {
        return;
      }
      const std::uint64_t secret = table[kWords + kStripesPerChunk + lane];
      std::uint64_t sum = table[kStart + lane];
      read_ahead(
          0, chunks, 1,
          [&](std::int64_t chunk) {
            const std::int64_t at = chunk * kAccumulators + lane;
            return products[at] + words[at];
          },
          [&](std::int64_t chunk, std::uint64_t added) {
            if (chunk > 0) {
              sum = ((sum ^ (sum >> 47)) ^ secret) * kPrime32A;
            }
            sum += added;
          });
      accumulators[lane] = sum;
    });
    group.each([&](std::int64_t lane) {
      if (lane != 0) {
        return;
      }
      std::uint64_t hash = static_cast<std::uint64_t>(stripes * kStripe) * kPrime64A;
      for (std::int64_t i = 0; i < kAccumulators; i += 2) {
        hash += fold_product(accumulators[i] ^ table[kMerge + i],
                             accumulators[i + 1] ^ table[kMerge + i + 1]);
      }
      hash = (hash ^ (hash >> 37)) * 0x165667919E3779F9;
      hash = placed_hash(hash ^ (hash >> 32), seed, static_cast<std::uint64_t>(tensor.size),
                         static_cast<std::uint64_t>(block));
      if (tensor.blocks() == 1) {
        *tensor.sum += hash;
      } else {
        hashes[index] = hash;
      }
    });
  }
};

/// One block per tensor.
struct AddHashes {
  HashedTogether together;
  const std::uint64_t* hashes;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    const HashedBytes& tensor = together.tensors[index];
    const std::int64_t blocks = tensor.blocks();
    if (blocks > 1) {
      AddPartialSums<std::uint64_t>{hashes + tensor.first, blocks, tensor.sum}(group, 0);
    }
  }
};

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
  content_hash(std::array{HashedTensor{x, sum}}, seed);
}

void CudaKernelSet::content_hash_of_parts(ConstTensorView x, std::uint64_t seed, TensorView sums) {
  const std::int64_t size = part_size(x, sums);
  std::array<HashedTensor, kMostTensors> parts;
  for (std::int64_t first = 0; first < sums.elements(); first += kMostTensors) {
    const std::int64_t end = std::min(first + kMostTensors, sums.elements());
    for (std::int64_t part = first; part < end; ++part) {
      parts[static_cast<std::size_t>(part - first)] = {x.rows(part * size, (part + 1) * size),
                                                       sums.rows(part, part + 1)};
    }
    content_hash(std::span(parts).first(static_cast<std::size_t>(end - first)), seed);
  }
}

void CudaKernelSet::content_hash(std::span<const HashedTensor> tensors, std::uint64_t seed) {
  HashedTogether together{};
  bool adds = false;
  for (const auto& [x, sum] : tensors) {
    expect_hash_sum(sum);
    expect(
        sum.device() == DeviceQueue::kDevice && (x.empty() || x.device() == DeviceQueue::kDevice),
        "tensor is not on the device");
    if (!x.empty() && x.bytes() > 0) {
      expect(together.count < kMostTensors, "more tensors than are hashed together");
      const HashedBytes hashed{static_cast<const std::byte*>(x.raw()),
                               static_cast<std::int64_t>(x.bytes()), 0,
                               reinterpret_cast<std::uint64_t*>(sum.data<std::int64_t>())};
      adds = adds || hashed.blocks() > 1;
      together.add(hashed);
    }
  }
  if (together.count == 0) {
    return;
  }
  if (hash_table_.bytes() == 0) {
    const std::vector<std::uint64_t> table = hash_table();
    const auto words = static_cast<std::int64_t>(table.size());
    hash_table_ = Buffer(table.size() * sizeof(std::uint64_t), account_, DeviceQueue::kDevice);
    copy_tensor(ConstTensorView(table.data(), DType::int64, Shape{words}),
                hash_table_.view(DType::int64, Shape{words}));
  }
  auto* const hashes = partials_.at_least<std::uint64_t>(together.blocks);
  queue_.launch(together.blocks, kHashLanes,
                HashBlocks{together, seed,
                           reinterpret_cast<const std::uint64_t*>(hash_table_.data()), hashes},
                "content_hash");
  if (adds) {
    queue_.launch(together.count, kPartialSumLanes, AddHashes{together, hashes},
                  "content_hash total");
  }
}

}  // namespace jforge
