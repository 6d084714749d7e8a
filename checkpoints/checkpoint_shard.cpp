#include "checkpoints/checkpoint_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>

#include "checkpoints/shard_layout_internal.h"
#include "checkpoints/shard_writer.h"
#include "data/hdf5/hdf5_file.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

void expect_owner(const Hdf5Reader& file, const CheckpointManifest& manifest,
                  const CheckpointShard& shard) {
  const auto expect_integer = [&](const char* name, std::int64_t expected) {
    if (const std::int64_t found = file.integer_attribute(name); found != expected) {
      throw DataError(fmt::format("{} is a foreign shard: its {} is {}, the manifest says {}",
                                  file.path().string(), name, found, expected));
    }
  };
  expect_integer("format_version", manifest.version);
  expect_integer("round", manifest.state.round);
  expect_integer("step", manifest.state.step);
  expect_integer("world_size", manifest.world_size);
  expect_integer("rank", shard.rank);
  if (file.text_attribute("nonce") != manifest.nonce) {
    throw DataError(
        fmt::format("{} is a foreign shard: it was written by another run", file.path().string()));
  }
  if (file.read<std::int64_t>("slices") != slice_rows(shard.slices)) {
    throw DataError(
        fmt::format("{} holds other slices than the manifest says", file.path().string()));
  }
}

}  // namespace

/// Version 1 has a checksummed dataset per slice and vector, read through HDF5; version 2 has one
/// run of bytes per vector, read directly.
struct ShardFile::State {
  State(const std::filesystem::path& path, const CheckpointManifest& checkpoint,
        const CheckpointShard& entry)
      : manifest(checkpoint), shard(entry), file(path, SealCheck::none) {
    expect_owner(file, manifest, shard);
    std::int64_t begin = 0;
    for (const CheckpointSlice& slice : shard.slices) {
      slice_begin.push_back(begin);
      begin += slice.end - slice.begin;
    }
    if (manifest.version > 1) {
      bytes.emplace(path);
      for (std::size_t v = 0; v < (manifest.has_moments ? kVectorNames.size() : 1); ++v) {
        vector_begin.push_back(begin == 0 ? 0 : file.locate<float>(kVectorNames[v], begin));
      }
    }
  }

  const CheckpointManifest& manifest;
  const CheckpointShard& shard;
  Hdf5Reader file;
  std::vector<std::int64_t> slice_begin;  ///< Offset in a vector, in elements.
  std::optional<RangeReader> bytes;
  std::vector<std::uint64_t> vector_begin;  ///< Offset in the file, in bytes, by ShardVector.
};

ShardFile::ShardFile(const std::filesystem::path& directory, const CheckpointManifest& manifest,
                     std::size_t shard)
    : state_(std::make_unique<State>(directory / manifest.shards.at(shard).file, manifest,
                                     manifest.shards[shard])) {}
ShardFile::~ShardFile() = default;
ShardFile::ShardFile(ShardFile&&) noexcept = default;
ShardFile& ShardFile::operator=(ShardFile&&) noexcept = default;

void ShardFile::read(std::size_t number, ShardVector vector, std::int64_t begin,
                     std::span<float> target) {
  const CheckpointSlice& slice = state_->shard.slices.at(number);
  const std::int64_t size = slice.end - slice.begin;
  expect(begin >= 0 && begin + static_cast<std::int64_t>(target.size()) <= size,
         "a read outside of a checkpoint's slice");
  const auto index = static_cast<std::size_t>(vector);
  if (state_->bytes) {
    const auto element = static_cast<std::uint64_t>(state_->slice_begin[number] + begin);
    state_->bytes->read(state_->vector_begin.at(index) + element * sizeof(float),
                        std::as_writable_bytes(target));
    return;
  }
  const std::string dataset =
      state_->manifest.tensors[slice.tensor].name + ":" + kVectorNames[index];
  if (state_->file.size(dataset) != size) {
    throw DataError(fmt::format("{}: {} has another size than the manifest says",
                                state_->file.path().string(), dataset));
  }
  state_->file.read_slice<float>(dataset, begin, target);
}

void verify_shard(const std::filesystem::path& directory, const CheckpointShard& shard) {
  const std::filesystem::path path = directory / shard.file;
  await_file(path);
  std::error_code reason;
  const std::uint64_t bytes = std::filesystem::file_size(path, reason);
  if (reason) {
    throw_read_failure(reason.value(),
                       fmt::format("{} cannot be read: {}", path.string(), reason.message()));
  }
  if (bytes != shard.bytes) {
    throw DataError(fmt::format("{} is damaged or foreign: it has {} bytes, the manifest says {}",
                                path.string(), bytes, shard.bytes));
  }
  if (const std::uint64_t hash = hash_file(path); hash != shard.hash) {
    throw DataError(
        fmt::format("{} is damaged or foreign: its checksum is {}, the manifest says {}",
                    path.string(), hash_hex(hash), hash_hex(shard.hash)));
  }
}

}  // namespace jforge
