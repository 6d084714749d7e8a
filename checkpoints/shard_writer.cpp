#include "checkpoints/shard_writer.h"

#include <algorithm>
#include <utility>

#include "checkpoints/shard_layout_internal.h"
#include "data/hdf5/hdf5_file.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"

namespace jforge {

ShardWriter::ShardWriter(const std::filesystem::path& directory, ShardOwner owner,
                         std::span<const ShardSlice> slices, const ShardValues& values)
    : owner_(std::move(owner)),
      vectors_{values.parameter},
      temporary_(directory / shard_file_name(owner_.rank, owner_.world_size)) {
  shard_.rank = owner_.rank;
  shard_.file = shard_file_name(owner_.rank, owner_.world_size);
  for (const ShardSlice& slice : slices) {
    shard_.slices.push_back({slice.entry, slice.tensor_begin, slice.tensor_end});
  }
  if (!values.first_moment.empty() || !values.second_moment.empty()) {
    vectors_.push_back(values.first_moment);
    vectors_.push_back(values.second_moment);
  }
  const auto elements = static_cast<std::size_t>(count_elements(shard_.slices));
  for (const std::span<const float> vector : vectors_) {
    expect(vector.size() == elements, "a shard's values do not fill its slices");
    value_bytes_ += vector.size_bytes();
  }
}

bool ShardWriter::advance() {
  if (!file_) {
    lay_out();
  } else if (!extents_.empty()) {
    write_piece();
  } else {
    publish();
    return false;
  }
  return true;
}

void ShardWriter::lay_out() {
  // Unsealed: the manifest holds the whole file's size and checksum.
  Hdf5Writer layout(temporary_.path(), false);
  layout.attribute("format_version", std::int64_t{CheckpointManifest::kFormatVersion});
  layout.attribute("round", owner_.round);
  layout.attribute("step", owner_.step);
  layout.attribute("world_size", std::int64_t{owner_.world_size});
  layout.attribute("rank", std::int64_t{owner_.rank});
  layout.attribute("nonce", std::string_view(owner_.nonce));
  layout.write<std::int64_t>("slices", slice_rows(shard_.slices));
  std::vector<Extent> values;
  for (std::size_t v = 0; v < vectors_.size(); ++v) {
    const auto count = static_cast<std::int64_t>(vectors_[v].size());
    if (count > 0) {
      values.push_back({layout.reserve<float>(kVectorNames[v], count), vectors_[v].size_bytes(),
                        std::as_bytes(vectors_[v]).data()});
    }
  }
  layout.close();
  shard_.bytes = std::filesystem::file_size(temporary_.path());
  std::sort(values.begin(), values.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  std::uint64_t end = 0;
  for (const Extent& extent : values) {
    extents_.push_back({end, extent.offset - end, nullptr});
    extents_.push_back(extent);
    end = extent.offset + extent.bytes;
  }
  extents_.push_back({end, shard_.bytes - end, nullptr});
  std::reverse(extents_.begin(), extents_.end());
  file_.emplace(temporary_.path());
}

void ShardWriter::write_piece() {
  Extent& extent = extents_.back();
  const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(extent.bytes, kStepBytes));
  if (extent.source == nullptr) {
    read_back_.resize(size);
    file_->read_at(extent.offset, read_back_);
    hash_.update(read_back_);
  } else {
    const std::span<const std::byte> piece(extent.source, size);
    hash_.update(piece);
    file_->write_at(extent.offset, piece);
    extent.source += size;
    const std::uint64_t before = std::exchange(written_bytes_, written_bytes_ + size);
    if (2 * before < value_bytes_ && 2 * written_bytes_ >= value_bytes_) {
      fault_point("checkpoint.data");
    }
  }
  extent.offset += size;
  extent.bytes -= size;
  if (extent.bytes == 0) {
    extents_.pop_back();
  }
}

void ShardWriter::publish() {
  file_->close();
  shard_.hash = hash_.digest();
  fault_point("checkpoint.fsync");
  temporary_.publish();
  fault_point("checkpoint.rename");
}

}  // namespace jforge
