#pragma once

/// What makes a directory a checkpoint: manifest.json, written last (CHECKPOINT_FORMAT.md).

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

/// Where a run stands, as its owner tells it.
struct CheckpointState {
  std::int64_t round = 0;              ///< ≥ 0
  std::int64_t step = 0;               ///< Optimizer steps of the round that are done, ≥ 0.
  std::string phase;                   ///< "train", "pretrain", …
  std::int64_t optimizer_updates = 0;  ///< Exponent of Adam's bias correction.
  Identity identity;                   ///< Of the run that wrote it.
  std::string cursors;                 ///< Opaque to checkpoints: the caller's JSON.

  bool operator==(const CheckpointState&) const = default;
};

/// Elements [begin, end) of tensor number `tensor` of the manifest, flattened row-major.
struct CheckpointSlice {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const CheckpointSlice&) const = default;
};

/// One shard file.
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
  static constexpr int kFormatVersion = 2;  ///< What is written.
  static constexpr int kOldestVersion = 1;  ///< What is still read.

  int version = kFormatVersion;
  CheckpointState state;
  int world_size = 0;
  bool has_moments = true;  ///< False: weights only.
  std::string nonce;        ///< Drawn once per writer; every shard of the checkpoint carries it.
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointShard> shards;  ///< By rank.

  /// One JSON document with a checksum over its content, newline at the end.
  [[nodiscard]] std::string to_json() const;
  /// Reads and checks everything that can be checked without the shards: format version, checksum,
  /// one shard of each rank under its proper name, every element of every tensor in exactly one
  /// slice. Throws DataError naming `source`.
  [[nodiscard]] static CheckpointManifest from_json(std::string_view text,
                                                    const std::string& source);

  bool operator==(const CheckpointManifest&) const = default;
};

inline constexpr const char* kManifestName = "manifest.json";

/// "round-1-step-00000500"
[[nodiscard]] std::string checkpoint_directory_name(std::int64_t round, std::int64_t step);
/// "shard-00000-of-00004.h5"
[[nodiscard]] std::string shard_file_name(Rank rank, int world_size);

/// A directory whose name is a checkpoint's; nothing is said about its content.
struct CheckpointDirectory {
  std::int64_t round = 0;
  std::int64_t step = 0;
  std::filesystem::path path;
};
/// All of them under `root`, newest (highest round, then step) first; empty when `root` does not
/// exist.
[[nodiscard]] std::vector<CheckpointDirectory> list_checkpoint_directories(
    const std::filesystem::path& root);

/// Manifest of a checkpoint directory. Throws DataError: absent, garbled, or of another round and
/// step than the directory's name says.
[[nodiscard]] CheckpointManifest read_manifest(const std::filesystem::path& directory);

/// The tensors of a table as a manifest lists them.
[[nodiscard]] std::vector<CheckpointTensor> checkpoint_tensors(const ParameterTable& table);

/// One shard's entry as JSON, to send it to the rank that writes the manifest, and back.
[[nodiscard]] std::string shard_to_json(const CheckpointShard& shard);
[[nodiscard]] CheckpointShard shard_from_json(std::string_view text);

}  // namespace jforge
