#pragma once

/// Writes one shard file of a checkpoint (CHECKPOINT_FORMAT.md) in small steps, so that it can be
/// done beside training. No MPI here.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"
#include "checkpoints/checkpoint_shard.h"
#include "runtime/content_hash.h"
#include "runtime/direct_file.h"
#include "runtime/durable_file.h"

namespace jforge {

/// HDF5 lays the file out; the values then go from where they are to their places in it and are
/// hashed on the way, in the order of the file: they are read once, by no copy of theirs where the
/// disk takes them directly, and the lock of HDF5 is free meanwhile. Destroyed before it is done,
/// it leaves no file.
class ShardWriter {
 public:
  /// Bytes of one step.
  static constexpr std::size_t kStepBytes = std::size_t{4} << 20;

  /// Opens nothing yet. `values` must stay as they are until the end; transfers are direct where
  /// each vector begins at a multiple of DirectFile::kAlignment.
  ShardWriter(const std::filesystem::path& directory, ShardOwner owner,
              std::span<const ShardSlice> slices, const ShardValues& values);

  /// The next step; returns whether there is more to do. Once it has returned false the shard is
  /// published durably. Fault places: checkpoint.data (half of the values are written),
  /// checkpoint.fsync (all written, nothing synced), checkpoint.rename (published). Throws
  /// EnvironmentError; then no step may follow.
  bool advance();

  /// The shard's manifest entry, once advance() has returned false.
  [[nodiscard]] const CheckpointShard& shard() const { return shard_; }

 private:
  /// A run of bytes of the file, and where its content comes from: nowhere means that HDF5 has
  /// written it.
  struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    const std::byte* source = nullptr;
  };

  void lay_out();
  void write_piece();
  void publish();

  ShardOwner owner_;
  std::vector<std::span<const float>> vectors_;  ///< In the order of ShardVector.
  CheckpointShard shard_;
  TemporaryFile temporary_;
  std::optional<DirectFile> file_;
  std::vector<Extent> extents_;  ///< What is still to be written, in file order, last first.
  std::uint64_t value_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
  HashStream hash_;
  std::vector<std::byte> read_back_;
};

}  // namespace jforge
