#pragma once

/// Checkpoint shard files: a rank's slices of named tensors (CHECKPOINT_FORMAT.md). Uses no MPI.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"
#include "checkpoints/shard_slices.h"

namespace jforge {

/// Vectors of a shard, float32: the weights and Adam's moments.
enum class ShardVector : std::uint8_t { parameter = 0, first_moment = 1, second_moment = 2 };

/// Identifies a shard: written into its file, compared on reading.
struct ShardOwner {
  std::int64_t round = 0;
  std::int64_t step = 0;
  int world_size = 0;
  Rank rank = 0;
  std::string nonce;
};

/// For each vector, the elements of all slices in the order of `slices`. Both moments are empty in
/// a weights-only checkpoint.
struct ShardValues {
  std::span<const float> parameter;
  std::span<const float> first_moment;
  std::span<const float> second_moment;
};

/// Durably publishes one shard in the existing `directory` by running a ShardWriter
/// (shard_writer.h) to its end. Slices index the manifest's tensors. Returns the manifest entry.
/// Throws EnvironmentError; then no file is left.
[[nodiscard]] CheckpointShard write_shard(const std::filesystem::path& directory,
                                          const ShardOwner& owner,
                                          std::span<const ShardSlice> slices,
                                          const ShardValues& values);

/// Throws DataError naming the file if it is missing or its size or checksum differs from the
/// manifest. Does not use HDF5, which may loop on a damaged file.
void verify_shard(const std::filesystem::path& directory, const CheckpointShard& shard);

/// An open shard file. Not thread-safe.
class ShardFile {
 public:
  /// Opens shard number `shard` of the manifest, which must outlive this object. Requires:
  /// verify_shard() accepted the file. Throws DataError naming a file of another checkpoint or
  /// rank.
  ShardFile(const std::filesystem::path& directory, const CheckpointManifest& manifest,
            std::size_t shard);
  ~ShardFile();
  ShardFile(ShardFile&&) noexcept;
  ShardFile& operator=(ShardFile&&) noexcept;

  /// Reads elements [begin, begin + target.size()), relative to the shard's slice number `slice`.
  /// Throws DataError naming the file.
  void read(std::size_t slice, ShardVector vector, std::int64_t begin, std::span<float> target);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jforge
