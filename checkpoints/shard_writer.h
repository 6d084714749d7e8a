#pragma once

/// Writes a shard file (CHECKPOINT_FORMAT.md) in small steps, during training. Uses no MPI.

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

/// HDF5 lays the file out; the values are then written and hashed in file order without HDF5's
/// lock. Leaves no file if destroyed early.
class ShardWriter {
 public:
  static constexpr std::size_t kStepBytes = std::size_t{4} << 20;

  /// Requires: `values` stay unchanged until the end. I/O is direct for vectors aligned to
  /// DirectFile::kAlignment.
  ShardWriter(const std::filesystem::path& directory, ShardOwner owner,
              std::span<const ShardSlice> slices, const ShardValues& values);

  /// Runs the next step; returns false once the shard is durable. Fault places: checkpoint.data
  /// (half of the values written), checkpoint.fsync (all written), checkpoint.rename (published).
  /// Throws EnvironmentError; then no step may follow.
  bool advance();

  /// Requires: advance() has returned false.
  [[nodiscard]] const CheckpointShard& shard() const { return shard_; }

 private:
  /// A null source means that HDF5 has written the range.
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
  std::vector<Extent> extents_;  ///< Remaining ranges, in reverse file order.
  std::uint64_t value_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
  HashStream hash_;
  std::vector<std::byte> read_back_;
};

}  // namespace jforge
