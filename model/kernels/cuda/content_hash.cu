/// XXH3 (Collet, "XXH3 - specification", long inputs) of blocks of a tensor, as the CPU set divides
/// it. A block's eight accumulators are eight lanes; what is shorter than a block is hashed by the
/// host.

#include <cstring>

#include "model/kernels/cuda/content_hashes.h"
#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "runtime/content_hash.h"

namespace jforge {

namespace {

constexpr std::int64_t kStripe = 64;  ///< Bytes that the accumulators take at once.
constexpr std::int64_t kAccumulators = 8;
constexpr std::int64_t kStripesPerChunk = 16;  ///< Then the accumulators are scrambled.
constexpr std::int64_t kChunks = kContentHashBlock / (kStripe * kStripesPerChunk);
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

/// Where the words of a seed's table begin.
constexpr std::int64_t kWords = 0;   ///< The secret, for the stripes of a chunk in turn.
constexpr std::int64_t kLast = 24;   ///< Its words for the last stripe, …
constexpr std::int64_t kMerge = 32;  ///< … and for the end.
constexpr std::int64_t kStart = 40;  ///< What the accumulators begin with.
constexpr std::int64_t kTableWords = 48;

void append_table(std::vector<std::uint64_t>& table, std::uint64_t seed) {
  const auto secret = hash64_secret(seed);
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
}

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
  std::int64_t count;
  const std::uint64_t* table;
  std::uint64_t* hashes;

  [[nodiscard]] std::int64_t shared_bytes() const { return shared_size<std::uint64_t>(kHashLanes); }

  /// Word `i`, wherever elements of two bytes may begin.
  [[nodiscard]] JFORGE_DEVICE static std::uint64_t word(const std::byte* from, std::int64_t i) {
    const std::byte* const at = from + i * 8;
    if (reinterpret_cast<std::uintptr_t>(at) % 8 == 0) {
      return *reinterpret_cast<const std::uint64_t*>(at);
    }
    const auto* const parts = reinterpret_cast<const std::uint16_t*>(at);
    return std::uint64_t{parts[0]} | std::uint64_t{parts[1]} << 16 | std::uint64_t{parts[2]} << 32 |
           std::uint64_t{parts[3]} << 48;
  }

  /// `sum` is accumulator i; its neighbour's words are added, its own multiplied in.
  [[nodiscard]] JFORGE_DEVICE static std::uint64_t accumulate(std::uint64_t sum,
                                                              const std::byte* stripe,
                                                              std::int64_t i,
                                                              std::uint64_t secret) {
    const std::uint64_t key = word(stripe, i) ^ secret;
    return sum + word(stripe, i ^ 1) + (key & 0xFFFFFFFF) * (key >> 32);
  }

  template <class Group>
  JFORGE_DEVICE void operator()(Group& group, std::int64_t index) const {
    std::uint64_t* const sums = group.template shared<std::uint64_t>(kHashLanes);
    group.each([&](std::int64_t lane) {
      const std::int64_t block = index * kUnits + lane / kAccumulators;
      if (block >= count) {
        return;
      }
      const std::int64_t i = lane % kAccumulators;
      const std::byte* stripe = bytes + block * kContentHashBlock;
      std::uint64_t sum = table[kStart + i];
      for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
        const bool last = chunk + 1 == kChunks;
        for (std::int64_t s = 0; s < (last ? kStripesPerChunk - 1 : kStripesPerChunk); ++s) {
          sum = accumulate(sum, stripe, i, table[kWords + s + i]);
          stripe += kStripe;
        }
        if (!last) {
          sum = ((sum ^ (sum >> 47)) ^ table[kWords + kStripesPerChunk + i]) * kPrime32A;
        }
      }
      sums[lane] = accumulate(sum, stripe, i, table[kLast + i]);
    });
    group.each([&](std::int64_t lane) {
      const std::int64_t block = index * kUnits + lane / kAccumulators;
      if (lane % kAccumulators != 0 || block >= count) {
        return;
      }
      std::uint64_t hash = std::uint64_t{kContentHashBlock} * kPrime64A;
      for (std::int64_t i = 0; i < kAccumulators; i += 2) {
        hash += fold_product(sums[lane + i] ^ table[kMerge + i],
                             sums[lane + i + 1] ^ table[kMerge + i + 1]);
      }
      hash = (hash ^ (hash >> 37)) * 0x165667919E3779F9;
      hashes[block] = hash ^ (hash >> 32);
    });
  }
};

struct CopyBytes {
  const std::byte* from;
  std::byte* to;
  JFORGE_DEVICE void operator()(std::int64_t i) const { to[i] = from[i]; }
};

}  // namespace

void ContentHashes::clear() {
  tensors_.clear();
  used_ = 0;
}

void ContentHashes::add(const ConstTensorView& x, std::uint64_t* hash) {
  expect(x.bytes() == 0 || x.device() == DeviceQueue::kDevice, "tensor is not on the device");
  const auto bytes = static_cast<std::int64_t>(x.bytes());
  const std::int64_t blocks = bytes / kContentHashBlock;
  const std::int64_t rest = bytes - blocks * kContentHashBlock;
  tensors_.push_back({static_cast<const std::byte*>(x.raw()), blocks, rest, used_, hash});
  used_ += divide_up(blocks * 8 + rest, 8) * 8;
}

void ContentHashes::run(std::size_t begin, std::size_t end) {
  table_.clear();
  for (std::size_t i = begin; i < end; ++i) {
    append_table(table_, *tensors_[i].hash);
  }
  const std::uint64_t* table = secrets_.upload(std::span<const std::uint64_t>(table_));
  auto* const memory = memory_.at_least<std::byte>(used_);
  for (std::size_t i = begin; i < end; ++i, table += kTableWords) {
    const Tensor& tensor = tensors_[i];
    auto* const hashes = reinterpret_cast<std::uint64_t*>(memory + tensor.place);
    queue_.launch(divide_up(tensor.blocks, kUnits), kHashLanes,
                  HashBlocks{tensor.data, tensor.blocks, table, hashes}, "content_hash");
    launch_elements(queue_, tensor.rest,
                    CopyBytes{tensor.data + tensor.blocks * kContentHashBlock,
                              memory + tensor.place + tensor.blocks * 8},
                    "content_hash rest");
  }
}

void ContentHashes::finish() {
  read_.resize(static_cast<std::size_t>(used_));
  if (used_ > 0) {
    queue_.download(read_.data(), memory_.at_least<std::byte>(used_), read_.size());
  }
  for (const Tensor& tensor : tensors_) {
    // As the CPU set's: the hash of the blocks' hashes, the last of which may be of a shorter one.
    const auto blocks = static_cast<std::size_t>(tensor.blocks);
    const auto rest = static_cast<std::size_t>(tensor.rest);
    const std::span<const std::byte> of_tensor(read_.data() + tensor.place, blocks * 8 + rest);
    table_.resize(blocks + (rest > 0 ? 1 : 0));
    std::memcpy(table_.data(), of_tensor.data(), blocks * 8);
    if (rest > 0) {
      table_.back() = hash64(of_tensor.subspan(blocks * 8), *tensor.hash);
    }
    *tensor.hash = hash64(std::as_bytes(std::span(table_)), *tensor.hash);
  }
}

std::uint64_t CudaKernelSet::content_hash(ConstTensorView x, std::uint64_t seed) {
  hashes_.clear();
  hashes_.add(x, &seed);
  hashes_.run(0, 1);
  hashes_.finish();
  return seed;
}

}  // namespace jforge
