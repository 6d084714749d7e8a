#pragma once

/// Shard files: a rank's slices of named tensors (CHECKPOINT_FORMAT.md). Uses no MPI.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"
#include "checkpoints/shard_slices.h"

namespace jforge {

enum class ShardVector : std::uint8_t { parameter = 0, first_moment = 1, second_moment = 2 };

/// Stored in the file and compared on reading.
struct ShardOwner {
  std::int64_t round = 0;
  std::int64_t step = 0;
  int world_size = 0;
  Rank rank = 0;
  std::string nonce;
};

/// For each vector, the elements of all slices in order. Empty moments: weights only.
struct ShardValues {
  std::span<const float> parameter;
  std::span<const float> first_moment;
  std::span<const float> second_moment;
};

/// Throws DataError if the file's size or checksum is wrong. HDF5 could loop on a damaged file.
void verify_shard(const std::filesystem::path& directory, const CheckpointShard& shard);

/// An open shard file. Not thread-safe.
class ShardFile {
 public:
  /// Requires: `manifest` outlives this object, and verify_shard() accepted the file. Throws
  /// DataError if the file belongs to another checkpoint or rank.
  ShardFile(const std::filesystem::path& directory, const CheckpointManifest& manifest,
            std::size_t shard);
  ~ShardFile();
  ShardFile(ShardFile&&) noexcept;
  ShardFile& operator=(ShardFile&&) noexcept;

  /// Reads from element `begin` of the shard's slice number `slice`. Throws DataError.
  void read(std::size_t slice, ShardVector vector, std::int64_t begin, std::span<float> target);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jforge
