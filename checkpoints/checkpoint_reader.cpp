#include "checkpoints/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/shard_slices.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/error.h"

namespace jforge {

namespace {

struct Examination {
  std::optional<Checkpoint> checkpoint;
  std::string reason;
};

/// Returns the first error among files first, first + stride, …, or an empty text.
std::string verify_files(const Checkpoint& checkpoint, std::size_t first, std::size_t stride) {
  for (std::size_t i = first; i < checkpoint.manifest.shards.size(); i += stride) {
    try {
      verify_shard(checkpoint.directory, checkpoint.manifest.shards[i]);
    } catch (const DataError& error) {
      return error.what();
    }
  }
  return {};
}

Examination examine(const std::filesystem::path& directory) {
  try {
    Checkpoint checkpoint{directory, read_manifest(directory)};
    std::string reason = verify_files(checkpoint, 0, 1);
    if (reason.empty()) {
      return {std::move(checkpoint), {}};
    }
    return {std::nullopt, std::move(reason)};
  } catch (const DataError& error) {
    return {std::nullopt, error.what()};
  }
}

/// Suggests a checkpoint inside `directory`, if there is one.
DataError refusal_of(const std::filesystem::path& directory, const std::string& reason) {
  for (const auto& parent : {directory, directory / "checkpoints"}) {
    const auto within = list_checkpoint_directories(parent);
    if (!within.empty()) {
      return DataError(fmt::format("{} is not a checkpoint; name one inside it, such as {}",
                                   directory.string(), within.front().path.string()));
    }
  }
  return DataError(fmt::format("{} is not a valid checkpoint: {}", directory.string(), reason));
}

/// Collective: rank 0 reads the manifest and the ranks share the files.
Examination examine(const Communicator& comm, const std::filesystem::path& directory) {
  std::string manifest;
  std::string reason;
  static_cast<void>(agree(comm, false, [&] {
    if (comm.rank() == 0) {
      try {
        manifest = read_manifest(directory).to_json();
      } catch (const DataError& error) {
        reason = error.what();
      }
    }
  }));
  reason = broadcast_text(comm, reason, 0);
  if (!reason.empty()) {
    return {std::nullopt, reason};
  }
  manifest = broadcast_text(comm, manifest, 0);
  std::optional<Checkpoint> checkpoint;
  std::string complaint;
  static_cast<void>(agree(comm, false, [&] {
    checkpoint =
        Checkpoint{directory, CheckpointManifest::from_json(manifest, directory / kManifestName)};
    complaint = verify_files(*checkpoint, static_cast<std::size_t>(comm.rank()),
                             static_cast<std::size_t>(comm.size()));
  }));
  for (const std::string& text : gather_texts(comm, complaint, 0)) {
    reason = reason.empty() ? text : reason;
  }
  reason = broadcast_text(comm, reason, 0);
  if (!reason.empty()) {
    return {std::nullopt, reason};
  }
  return {std::move(checkpoint), {}};
}

/// Collective: returns rank 0's listing, newest first, so that all ranks walk the same names.
std::vector<std::string> list_names(const Communicator& comm, const std::filesystem::path& root) {
  std::string joined;
  static_cast<void>(agree(comm, false, [&] {
    if (comm.rank() == 0) {
      for (const CheckpointDirectory& directory : list_checkpoint_directories(root)) {
        joined += directory.path.filename().string() + "\n";
      }
    }
  }));
  joined = broadcast_text(comm, joined, 0);
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin < joined.size();) {
    const std::size_t end = joined.find('\n', begin);
    names.push_back(joined.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

bool take(Examination&& examination, CheckpointSearch& search) {
  if (examination.checkpoint) {
    search.newest = std::move(examination.checkpoint);
    return true;
  }
  search.skipped.push_back(std::move(examination.reason));
  return false;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

CheckpointSearch find_newest_checkpoint(const std::filesystem::path& root) {
  CheckpointSearch search;
  for (const CheckpointDirectory& directory : list_checkpoint_directories(root)) {
    if (take(examine(directory.path), search)) {
      break;
    }
  }
  return search;
}

CheckpointSearch find_newest_checkpoint(const Communicator& comm,
                                        const std::filesystem::path& root) {
  CheckpointSearch search;
  for (const std::string& name : list_names(comm, root)) {
    if (take(examine(comm, root / name), search)) {
      break;
    }
  }
  return search;
}

Checkpoint open_checkpoint(const std::filesystem::path& directory) {
  Examination examination = examine(directory);
  if (!examination.checkpoint) {
    throw refusal_of(directory, examination.reason);
  }
  return std::move(*examination.checkpoint);
}

Checkpoint open_checkpoint(const Communicator& comm, const std::filesystem::path& directory) {
  Examination examination = examine(comm, directory);
  if (!examination.checkpoint) {
    throw refusal_of(directory, examination.reason);
  }
  return std::move(*examination.checkpoint);
}

void expect_same_identity(const Checkpoint& checkpoint, const Identity& identity,
                          const std::vector<std::string>& accepted) {
  expect_same_identity(checkpoint.directory.string(), checkpoint.manifest.state.identity, identity,
                       accepted);
}

void expect_same_tensors(const Checkpoint& checkpoint, const ParameterTable& table) {
  const std::vector<CheckpointTensor> expected = checkpoint_tensors(table);
  const std::vector<CheckpointTensor>& found = checkpoint.manifest.tensors;
  const std::string where = checkpoint.directory.string();
  for (std::size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    if (i >= found.size()) {
      throw DataError(
          fmt::format("checkpoint {} lacks tensor {} of the model", where, expected[i].name));
    }
    if (i >= expected.size()) {
      throw DataError(fmt::format("checkpoint {} holds tensor {}, which the model lacks", where,
                                  found[i].name));
    }
    if (found[i] != expected[i]) {
      throw DataError(fmt::format("checkpoint {} holds tensor {} {} where the model has {} {}",
                                  where, found[i].name, shape_text(found[i].shape),
                                  expected[i].name, shape_text(expected[i].shape)));
    }
  }
}

SliceReader::SliceReader(const Checkpoint& checkpoint, const ParameterTable& table)
    : checkpoint_(checkpoint), table_(table) {
  expect_same_tensors(checkpoint, table);
  const std::vector<CheckpointShard>& shards = checkpoint.manifest.shards;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (std::size_t i = 0; i < shards[s].slices.size(); ++i) {
      const CheckpointSlice& slice = shards[s].slices[i];
      const std::int64_t offset = table.entries()[slice.tensor].offset;
      places_.push_back({offset + slice.begin, offset + slice.end, s, i});
    }
  }
  std::sort(places_.begin(), places_.end(),
            [](const Place& a, const Place& b) { return a.begin < b.begin; });
}

SliceReader::~SliceReader() = default;

ShardFile& SliceReader::open(std::size_t shard) {
  // Enough for a group read by a rank of a smaller world; far below a process's file limit.
  constexpr std::size_t kOpenFiles = 64;
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const auto& entry) { return entry.first == shard; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
    return open_.front().second;
  }
  if (open_.size() == kOpenFiles) {
    open_.pop_back();
  }
  open_.emplace_front(shard, ShardFile(checkpoint_.directory, checkpoint_.manifest, shard));
  ++files_opened_;
  return open_.front().second;
}

void SliceReader::read(ShardVector vector, std::span<const ParameterTable::Range> ranges,
                       std::span<float> target) {
  if (vector != ShardVector::parameter && !checkpoint_.manifest.has_moments) {
    throw DataError(fmt::format("checkpoint {} holds weights only, no optimizer state",
                                checkpoint_.directory.string()));
  }
  for (const ParameterTable::Range& range : ranges) {
    const auto size = static_cast<std::size_t>(range.end - range.begin);
    expect(range.begin <= range.end && size <= target.size(),
           "ranges of a checkpoint that do not fit their target");
    const std::span<float> values = target.first(size);
    target = target.subspan(size);
    std::int64_t done = range.begin;
    const auto pad_until = [&](std::int64_t end) {
      std::fill_n(values.begin() + (done - range.begin), end - done, 0.0F);
      done = end;
    };
    auto place = std::upper_bound(places_.begin(), places_.end(), range.begin,
                                  [](std::int64_t at, const Place& p) { return at < p.end; });
    for (; place != places_.end() && place->begin < range.end; ++place) {
      pad_until(std::max(done, place->begin));
      const std::int64_t end = std::min(place->end, range.end);
      open(place->shard)
          .read(place->slice, vector, done - place->begin,
                values.subspan(static_cast<std::size_t>(done - range.begin),
                               static_cast<std::size_t>(end - done)));
      elements_read_ += end - done;
      done = end;
    }
    pad_until(range.end);
  }
  expect(target.empty(), "ranges of a checkpoint that do not fill their target");
}

void SliceReader::read_shard(ShardVector vector, int shard, std::span<float> target) {
  std::vector<ParameterTable::Range> ranges;
  for (const ShardGroup& group : shard_groups(table_, shard)) {
    ranges.push_back({group.flat_begin, group.flat_begin + group.size});
  }
  read(vector, ranges, target);
}

CheckpointTensors::CheckpointTensors(const Checkpoint& checkpoint, const ParameterTable& table,
                                     MemoryAccount& account)
    : reader_(checkpoint, table) {
  std::int64_t largest = 0;
  for (const ParameterEntry& entry : table.entries()) {
    largest = std::max(largest, entry.shape.elements());
  }
  memory_ = Buffer(static_cast<std::size_t>(largest) * sizeof(float), account, MemoryUse::staging);
}

std::span<const float> CheckpointTensors::operator()(const ParameterEntry& entry) {
  const std::int64_t elements = entry.shape.elements();
  const ParameterTable::Range range{entry.offset, entry.offset + elements};
  const std::span<float> values = memory_.floats({elements}).span<float>();
  reader_.read(ShardVector::parameter, {&range, 1}, values);
  return values;
}

}  // namespace jforge
