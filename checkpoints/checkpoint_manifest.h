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

/// Progress that the caller records in a checkpoint.
struct CheckpointState {
  std::int64_t round = 0;              ///< ≥ 0
  std::int64_t step = 0;               ///< Optimizer steps done in the round, ≥ 0.
  std::string phase;                   ///< "train", "pretrain", …
  std::int64_t optimizer_updates = 0;  ///< Exponent of Adam's bias correction.
  Identity identity;                   ///< Identity of the writing run.
  std::string cursors;                 ///< The caller's JSON, opaque here.

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
  std::string file;  ///< Name inside the directory.
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
  static constexpr int kFormatVersion = 2;  ///< Version written.
  static constexpr int kOldestVersion = 1;  ///< Oldest version read.

  int version = kFormatVersion;
  CheckpointState state;
  int world_size = 0;
  bool has_moments = true;  ///< False: weights only.
  std::string nonce;        ///< Random per writer; every shard repeats it.
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointShard> shards;  ///< By rank.

  /// Returns one JSON document with a checksum over its content and a final newline.
  [[nodiscard]] std::string to_json() const;
  /// Parses and checks a manifest without its shards: format version, checksum, one properly named
  /// shard per rank, every element of every tensor in exactly one slice. Throws DataError naming
  /// `source`.
  [[nodiscard]] static CheckpointManifest from_json(std::string_view text,
                                                    const std::string& source);

  bool operator==(const CheckpointManifest&) const = default;
};

inline constexpr const char* kManifestName = "manifest.json";

/// "round-1-step-00000500"
[[nodiscard]] std::string checkpoint_directory_name(std::int64_t round, std::int64_t step);
/// "shard-00000-of-00004.h5"
[[nodiscard]] std::string shard_file_name(Rank rank, int world_size);

/// A directory named like a checkpoint; its content is unchecked.
struct CheckpointDirectory {
  std::int64_t round = 0;
  std::int64_t step = 0;
  std::filesystem::path path;
};
/// Returns the checkpoint directories under `root`, newest (highest round, then step) first; empty
/// if `root` does not exist. Throws EnvironmentError if `root` cannot be listed.
[[nodiscard]] std::vector<CheckpointDirectory> list_checkpoint_directories(
    const std::filesystem::path& root);

/// Reads a directory's manifest. Throws DataError if it is missing, invalid, or records another
/// round or step than the directory name.
[[nodiscard]] CheckpointManifest read_manifest(const std::filesystem::path& directory);

/// Returns the table's tensors in manifest form.
[[nodiscard]] std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table);

/// Converts a shard entry to and from JSON, to send it to the rank that writes the manifest.
[[nodiscard]] std::string shard_to_json(const CheckpointShard& shard);
[[nodiscard]] CheckpointShard shard_from_json(std::string_view text);

}  // namespace jforge
