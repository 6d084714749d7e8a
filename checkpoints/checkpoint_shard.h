#pragma once

/// One shard file of a checkpoint: a rank's slices of named tensors (CHECKPOINT_FORMAT.md). No MPI
/// here.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"
#include "checkpoints/shard_slices.h"

namespace jforge {

/// What a shard holds for each element: the float32 weight, and Adam's moments.
enum class ShardVector : std::uint8_t { parameter = 0, first_moment = 1, second_moment = 2 };

/// Whose shard it is: written into the file, compared on reading.
struct ShardOwner {
  std::int64_t round = 0;
  std::int64_t step = 0;
  int world_size = 0;
  Rank rank = 0;
  std::string nonce;
};

/// The values of a shard: for each vector the slices' elements one after another, in the order of
/// `slices`. The moments are both empty in a checkpoint of weights only.
struct ShardValues {
  std::span<const float> parameter;
  std::span<const float> first_moment;
  std::span<const float> second_moment;
};

/// Publishes one shard durably in `directory` (which exists) and returns its manifest entry; slices
/// index into the manifest's tensors. All steps of a ShardWriter (shard_writer.h). Throws
/// EnvironmentError; then no file is left.
[[nodiscard]] CheckpointShard write_shard(const std::filesystem::path& directory,
                                          const ShardOwner& owner,
                                          std::span<const ShardSlice> slices,
                                          const ShardValues& values);

/// Throws DataError naming the file when it is missing or its size or checksum is not the
/// manifest's. Reads bytes only, never through HDF5, so it ends in bounded time whatever the file
/// holds.
void verify_shard(const std::filesystem::path& directory, const CheckpointShard& shard);

/// An open shard file. Values go straight from it into their targets. Not thread-safe.
class ShardFile {
 public:
  /// Opens shard number `shard` of the manifest, which outlives this object; the file must have
  /// been verified. Throws DataError naming the file; one that says it belongs to another
  /// checkpoint or rank than the manifest does is refused.
  ShardFile(const std::filesystem::path& directory, const CheckpointManifest& manifest,
            std::size_t shard);
  ~ShardFile();
  ShardFile(ShardFile&&) noexcept;
  ShardFile& operator=(ShardFile&&) noexcept;

  /// Elements [begin, begin + target.size()) of slice number `slice` of the shard, counted from the
  /// slice's first. Throws DataError naming the file.
  void read(std::size_t slice, ShardVector vector, std::int64_t begin, std::span<float> target);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jforge
