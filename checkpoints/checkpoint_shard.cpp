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

/// Where the parts of a shard file lie. Version 1 has a checksummed dataset for each slice and
/// vector, read through HDF5; version 2 one run of bytes for each vector, read without it.
class ShardSource {
 public:
  ShardSource(const std::filesystem::path& path, const CheckpointManifest& manifest,
              const CheckpointShard& shard)
      : manifest_(manifest), shard_(shard), file_(path, SealCheck::none) {
    expect_owner(file_, manifest, shard);
    if (manifest.version > 1) {
      bytes_.emplace(path);
    }
  }

  /// Elements [begin, begin + target.size()) of slice `number`, counted from the slice's first.
  void read(std::size_t number, ShardVector vector, std::int64_t begin, std::span<float> target) {
    const CheckpointSlice& slice = shard_.slices[number];
    const char* name = kVectorNames[static_cast<std::size_t>(vector)];
    if (bytes_) {
      std::optional<std::uint64_t>& start = starts_[static_cast<std::size_t>(vector)];
      if (!start) {
        start = file_.locate<float>(name, count_elements(shard_.slices));
      }
      const std::int64_t before = count_elements(std::span(shard_.slices).first(number));
      bytes_->read(*start + static_cast<std::uint64_t>(before + begin) * sizeof(float),
                   std::as_writable_bytes(target));
      return;
    }
    const std::string dataset = manifest_.tensors[slice.tensor].name + ":" + name;
    if (file_.size(dataset) != slice.end - slice.begin) {
      throw DataError(fmt::format("{}: {} has another size than the manifest says",
                                  file_.path().string(), dataset));
    }
    file_.read_slice<float>(dataset, begin, target);
  }

 private:
  const CheckpointManifest& manifest_;
  const CheckpointShard& shard_;
  Hdf5Reader file_;
  std::optional<RangeReader> bytes_;
  std::array<std::optional<std::uint64_t>, kVectorNames.size()> starts_;
};

}  // namespace

CheckpointShard write_shard(const std::filesystem::path& directory, const ShardOwner& owner,
                            std::span<const ShardSlice> slices, const ShardValues& values) {
  ShardWriter writer(directory, owner, slices, values);
  while (writer.advance()) {
  }
  return writer.shard();
}

void verify_shard(const std::filesystem::path& directory, const CheckpointShard& shard) {
  const std::filesystem::path path = directory / shard.file;
  await_file(path);
  std::error_code reason;
  const std::uint64_t bytes = std::filesystem::file_size(path, reason);
  if (reason) {
    throw DataError(fmt::format("{} cannot be read: {}", path.string(), reason.message()));
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

void read_shard(const std::filesystem::path& directory, const CheckpointManifest& manifest,
                std::size_t shard_number, std::span<const ShardRead> reads) {
  const CheckpointShard& shard = manifest.shards[shard_number];
  std::optional<ShardSource> file;
  for (const ShardRead& read : reads) {
    const std::int64_t read_end = read.begin + static_cast<std::int64_t>(read.target.size());
    for (std::size_t i = 0; i < shard.slices.size(); ++i) {
      const CheckpointSlice& slice = shard.slices[i];
      const std::int64_t begin = std::max(read.begin, slice.begin);
      const std::int64_t end = std::min(read_end, slice.end);
      if (slice.tensor != read.tensor || begin >= end) {
        continue;
      }
      if (!file) {
        file.emplace(directory / shard.file, manifest, shard);
      }
      file->read(i, read.vector, begin - slice.begin,
                 read.target.subspan(static_cast<std::size_t>(begin - read.begin),
                                     static_cast<std::size_t>(end - begin)));
    }
  }
}

}  // namespace jforge
