#pragma once

/// manifest.json, which makes a directory a checkpoint; written last (CHECKPOINT_FORMAT.md).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/identity.h"
#include "model/transformer/parameter_table.h"
#include "runtime/ids.h"

namespace jforge {

struct CheckpointState {
  std::int64_t round = 0;              ///< ≥ 0
  std::int64_t step = 0;               ///< Optimizer steps done in the round, ≥ 0.
  std::string phase;                   ///< "train", "pretrain", …
  std::int64_t optimizer_updates = 0;  ///< Exponent of Adam's bias correction.
  Identity identity;
  std::string cursors;  ///< Opaque JSON of the caller.

  bool operator==(const CheckpointState&) const = default;
};

/// Elements [begin, end) of manifest tensor number `tensor`, flattened row-major.
struct CheckpointSlice {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const CheckpointSlice&) const = default;
};

struct CheckpointShard {
  Rank rank = 0;
  std::string file;
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  ///< XXH3-64 of the whole file.
  std::vector<CheckpointSlice> slices;

  bool operator==(const CheckpointShard&) const = default;
};

struct CheckpointTensor {
  std::string name;
  std::vector<std::int64_t> shape;

  [[nodiscard]] std::int64_t elements() const;
  bool operator==(const CheckpointTensor&) const = default;
};

struct CheckpointManifest {
  static constexpr int kFormatVersion = 2;
  static constexpr int kOldestVersion = 1;

  int version = kFormatVersion;
  CheckpointState state;
  int world_size = 0;
  bool has_moments = true;  ///< False: weights only.
  std::string nonce;        ///< Random per writer; repeated in every shard.
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointShard> shards;  ///< By rank.

  /// Includes a checksum over the content and a final newline.
  [[nodiscard]] std::string to_json() const;
  /// Parses and checks everything but the shard files; every element of every tensor must lie in
  /// exactly one slice. Throws DataError naming `source`.
  [[nodiscard]] static CheckpointManifest from_json(std::string_view text,
                                                    const std::string& source);

  bool operator==(const CheckpointManifest&) const = default;
};

inline constexpr const char* kManifestName = "manifest.json";

/// "round-1-step-00000500"
[[nodiscard]] std::string checkpoint_directory_name(std::int64_t round, std::int64_t step);
/// "shard-00000-of-00004.h5"
[[nodiscard]] std::string shard_file_name(Rank rank, int world_size);

/// A directory named like a checkpoint; not validated.
struct CheckpointDirectory {
  std::int64_t round = 0;
  std::int64_t step = 0;
  std::filesystem::path path;
};
/// Returns the checkpoint directories under `root`, newest first; empty if `root` does not exist.
/// Throws EnvironmentError if it cannot be listed.
[[nodiscard]] std::vector<CheckpointDirectory> list_checkpoint_directories(
    const std::filesystem::path& root);

/// Throws DataError if the manifest is missing, invalid or does not match the directory's name.
[[nodiscard]] CheckpointManifest read_manifest(const std::filesystem::path& directory);

[[nodiscard]] std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table);

/// JSON of one shard's entry, for sending it to rank 0.
[[nodiscard]] std::string shard_to_json(const CheckpointShard& shard);
[[nodiscard]] CheckpointShard shard_from_json(std::string_view text);

}  // namespace jforge
