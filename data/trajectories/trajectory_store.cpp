#include "data/trajectories/trajectory_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "data/trajectories/trajectory_digest.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"

namespace jforge {
namespace {

constexpr std::size_t kOpenShards = 32;

/// Returns nullopt unless `name` is a committed shard's.
std::optional<LeaseId> lease_of(const std::string& name) {
  constexpr std::string_view kPrefix = "lease-";
  constexpr std::string_view kSuffix = ".h5";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) ||
      name.size() <= kPrefix.size() + kSuffix.size()) {
    return std::nullopt;
  }
  LeaseId lease = 0;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto result = std::from_chars(begin, end, lease);
  if (result.ec != std::errc{} || result.ptr != end || lease < 0) {
    return std::nullopt;
  }
  return lease;
}

/// 64-bit numbers and texts in native byte order: reader and writer are the same program.
class IndexWriter {
 public:
  void number(std::int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), 8); }
  void text(std::string_view text) {
    number(static_cast<std::int64_t>(text.size()));
    bytes_ += text;
  }
  template <class T>
  void numbers(const std::vector<T>& values) {
    static_assert(sizeof(T) == 8);
    text({reinterpret_cast<const char*>(values.data()), 8 * values.size()});
  }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class IndexReader {
 public:
  explicit IndexReader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T number() {
    std::int64_t value = 0;
    std::memcpy(&value, next(8).data(), 8);
    return static_cast<T>(value);
  }
  std::string text() { return std::string(next(number<std::uint64_t>())); }
  template <class T>
  std::vector<T> numbers() {
    const std::string_view bytes = next(number<std::uint64_t>());
    std::vector<T> values(bytes.size() / 8);
    if (!values.empty()) {
      std::memcpy(values.data(), bytes.data(), 8 * values.size());
    }
    return values;
  }
  void expect_end() const { expect(rest_.empty(), kGarbled); }

 private:
  static constexpr const char* kGarbled = "garbled index of trajectories between ranks";

  std::string_view next(std::uint64_t size) {
    expect(size <= rest_.size(), kGarbled);
    const std::string_view found = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return found;
  }

  std::string_view rest_;
};

}  // namespace

std::vector<std::pair<LeaseId, std::filesystem::path>> list_committed_shards(
    const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::pair<LeaseId, std::filesystem::path>> shards;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto lease = lease_of(entry->path().filename().string())) {
      shards.emplace_back(*lease, entry->path());
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw EnvironmentError(fmt::format("{}: cannot list: {}", directory.string(), error.message()));
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

TrajectoryStore TrajectoryStore::open(const std::filesystem::path& directory, SealCheck check) {
  TrajectoryStore store;
  store.scan(directory, check, {});
  return store;
}

TrajectoryStore TrajectoryStore::of(std::vector<ShardInfo> shards) {
  TrajectoryStore store;
  for (ShardInfo& shard : shards) {
    store.known_.insert(shard.path.string());
    store.next_lease_ = std::max(store.next_lease_, shard.identity.lease + 1);
    store.add(std::move(shard), false);
  }
  return store;
}

TrajectoryStore TrajectoryStore::open_complete(const std::filesystem::path& directory,
                                               std::span<const PromptId> expected,
                                               std::optional<double> wait_seconds) {
  using Clock = std::chrono::steady_clock;
  const double wait = wait_seconds.value_or(publication_wait_seconds(directory / "shard"));
  const auto started = Clock::now();
  TrajectoryStore store;
  for (;;) {
    store.scan(directory, SealCheck::content, ShardIndex::read(directory));
    const auto missing =
        std::ranges::find_if_not(expected, [&](PromptId id) { return store.contains(id); });
    if (missing == expected.end()) {
      return store;
    }
    if (std::chrono::duration<double>(Clock::now() - started).count() >= wait) {
      throw DataError(fmt::format(
          "prompt {} has no trajectory in {}; run the generating phase of the round again",
          *missing, directory.string()));
    }
    note_progress();  // This wait has its own limit.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void TrajectoryStore::scan(const std::filesystem::path& directory, SealCheck check,
                           const ShardIndex& index) {
  for (const auto& [lease, path] : list_committed_shards(directory)) {
    if (!known_.contains(path.string())) {
      next_lease_ = std::max(next_lease_, lease + 1);
      add(path, check, index);
    }
  }
}

void TrajectoryStore::add(const std::filesystem::path& path, SealCheck check,
                          const ShardIndex& index) {
  known_.insert(path.string());
  std::optional<ShardInfo> info = index.find(path);
  const bool remembered = info.has_value();
  if (!remembered) {
    ++files_opened_;
    try {
      info = TrajectoryReader(path, check).info();
    } catch (const DataError& error) {
      damaged_.push_back({path, error.what()});
      return;
    }
  }
  add(std::move(*info), !remembered && check == SealCheck::content);
}

void TrajectoryStore::add(ShardInfo info, bool checked) {
  const std::filesystem::path path = info.path;
  if (!shards_.empty()) {
    const ShardInfo& first = shards_.front();
    if (info.identity.round != first.identity.round ||
        info.identity.block_size != first.identity.block_size ||
        info.identity.identity != first.identity.identity) {
      throw DataError(fmt::format(
          "{} and {} come from different rounds, block sizes or models: they cannot be one store; "
          "move one aside",
          first.path.string(), path.string()));
    }
  }
  const auto shard = static_cast<std::uint32_t>(shards_.size());
  for (std::size_t i = 0; i < info.prompt_ids.size(); ++i) {
    const auto [place, fresh] =
        places_.try_emplace(info.prompt_ids[i], std::pair{shard, static_cast<std::uint32_t>(i)});
    if (!fresh) {
      throw DataError(fmt::format("prompt {} is in {} and in {}: move one of the two aside",
                                  info.prompt_ids[i], shards_[place->second.first].path.string(),
                                  path.string()));
    }
  }
  shards_.push_back(std::move(info));
  checked_.push_back(checked);
}

std::vector<PromptId> TrajectoryStore::prompt_ids() const {
  std::vector<PromptId> ids;
  ids.reserve(places_.size());
  for (const auto& [id, place] : places_) {
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

const TrajectoryReader& TrajectoryStore::reader(std::size_t shard) const {
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const auto& entry) { return entry.first == shard; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
    return open_.front().second;
  }
  fault_point("trajectories.open");
  ++files_opened_;
  // HDF5 must not open a damaged file; one full check is enough.
  const ShardInfo& info = shards_[shard];
  TrajectoryReader reader(info.path, checked_[shard] ? SealCheck::size : SealCheck::content);
  if (reader.digests() != info.digests) {
    throw DataError(info.path.string() + ": it differs from the shard in the index");
  }
  checked_[shard] = true;
  open_.emplace_front(shard, std::move(reader));
  if (open_.size() > kOpenShards) {
    open_.pop_back();
  }
  return open_.front().second;
}

std::pair<std::uint32_t, std::uint32_t> TrajectoryStore::place_of(PromptId prompt_id) const {
  const auto found = places_.find(prompt_id);
  if (found == places_.end()) {
    throw DataError(fmt::format("no trajectory of prompt {} among {} committed shards", prompt_id,
                                shards_.size()));
  }
  return found->second;
}

std::size_t TrajectoryStore::shard_of(PromptId prompt_id) const {
  return place_of(prompt_id).first;
}

Trajectory TrajectoryStore::read(PromptId prompt_id) const {
  const auto [shard, record] = place_of(prompt_id);
  try {
    return reader(shard).read(record);
  } catch (const DataError&) {
    ShardIndex::forget(shards_[shard].path.parent_path());
    throw;
  }
}

std::string TrajectoryStore::index() const {
  IndexWriter writer;
  writer.number(next_lease_);
  writer.number(static_cast<std::int64_t>(shards_.size()));
  for (const ShardInfo& shard : shards_) {
    writer.text(shard.path.filename().string());
    writer.number(shard.identity.lease);
    writer.number(shard.identity.attempt);
    writer.number(shard.identity.rank);
    writer.number(shard.identity.round);
    writer.number(shard.identity.block_size);
    writer.text(shard.identity.identity);
    writer.numbers(shard.identity.prompt_ids);
    writer.numbers(shard.prompt_ids);
    writer.numbers(shard.digests);
    writer.numbers(shard.packed_lengths);
    writer.number(shard.totals.block_tokens);
    writer.number(shard.totals.forwards);
    writer.number(shard.totals.flipped_blocks);
    writer.number(shard.totals.ended_by_eos);
  }
  return writer.take();
}

TrajectoryStore TrajectoryStore::from_index(const std::filesystem::path& directory,
                                            std::string_view index) {
  IndexReader reader(index);
  TrajectoryStore store;
  store.next_lease_ = reader.number<LeaseId>();
  const auto count = reader.number<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    ShardInfo shard;
    shard.path = directory / reader.text();
    shard.identity.lease = reader.number<LeaseId>();
    shard.identity.attempt = reader.number<std::int64_t>();
    shard.identity.rank = reader.number<Rank>();
    shard.identity.round = reader.number<std::int64_t>();
    shard.identity.block_size = reader.number<std::int32_t>();
    shard.identity.identity = reader.text();
    shard.identity.prompt_ids = reader.numbers<PromptId>();
    shard.prompt_ids = reader.numbers<PromptId>();
    shard.digests = reader.numbers<std::uint64_t>();
    shard.packed_lengths = reader.numbers<std::int64_t>();
    shard.totals.block_tokens = reader.number<std::int64_t>();
    shard.totals.forwards = reader.number<std::int64_t>();
    shard.totals.flipped_blocks = reader.number<std::int64_t>();
    shard.totals.ended_by_eos = reader.number<std::int64_t>();
    store.known_.insert(shard.path.string());
    store.add(std::move(shard), false);
  }
  reader.expect_end();
  return store;
}

ShardTotals TrajectoryStore::totals() const {
  ShardTotals totals;
  for (const ShardInfo& shard : shards_) {
    totals += shard.totals;
  }
  return totals;
}

std::string TrajectoryStore::store_digest() const {
  std::vector<std::uint64_t> digests;
  digests.reserve(places_.size());
  for (const PromptId id : prompt_ids()) {
    const auto [shard, index] = places_.at(id);
    digests.push_back(shards_[shard].digests[index]);
  }
  return hash_hex(combine_digests(digests));
}

void TrajectoryStore::verify() const {
  if (!damaged_.empty()) {
    throw DataError(damaged_.front().reason);
  }
  for (const ShardInfo& shard : shards_) {
    TrajectoryReader(shard.path, SealCheck::content).verify();
  }
}

}  // namespace jforge
