#include "data/trajectories/shard_index.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/bounded_json.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"

namespace jforge {
namespace {

using Json = nlohmann::json;

/// Size and ctime, which programs cannot set, change whenever a file does.
struct FileState {
  std::int64_t bytes = 0;
  std::int64_t changed_nanoseconds = 0;
};

std::optional<FileState> state_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return std::nullopt;
  }
  return FileState{std::int64_t{status.st_size},
                   std::int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec};
}

template <class T>
std::vector<T> integers(const Json& values) {
  std::vector<T> found;
  found.reserve(values.size());
  for (const Json& value : values.get_ref<const Json::array_t&>()) {
    found.push_back(json_integer<T>(value));
  }
  return found;
}

}  // namespace

std::vector<std::filesystem::path> ShardIndex::files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("index-") && name.ends_with(".jsonl")) {
      found.push_back(entry->path());
    }
  }
  std::ranges::sort(found);
  return found;
}

ShardIndex ShardIndex::read(const std::filesystem::path& directory) {
  ShardIndex index;
  for (const std::filesystem::path& path : files(directory)) {
    std::string text;
    try {
      text = read_file(path);
    } catch (const DataError& error) {
      index.damage_.emplace_back(error.what());
      continue;
    }
    std::size_t number = 1;
    // Ignores an unfinished last line, which a kill leaves.
    for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1, ++number) {
      try {
        index.take_line(std::string_view(text).substr(begin, end - begin));
      } catch (const std::exception& error) {
        index.damage_.push_back(fmt::format("{}:{}: {}", path.string(), number, error.what()));
      }
    }
  }
  return index;
}

void ShardIndex::take_line(std::string_view line) {
  if (examine_seal(line) != TextSeal::holds) {
    throw DataError("its checksum does not match");
  }
  const Json json = parse_bounded_json(line, "line");
  Entry entry;
  entry.bytes = json_integer<std::int64_t>(json.at("bytes"));
  entry.changed_nanoseconds = json_integer<std::int64_t>(json.at("changed_ns"));
  ShardInfo& info = entry.info;
  info.identity.lease = json_integer<LeaseId>(json.at("lease"));
  info.identity.attempt = json_integer<std::int64_t>(json.at("attempt"));
  info.identity.rank = json_integer<Rank>(json.at("rank"));
  info.identity.round = json_integer<std::int64_t>(json.at("round"));
  info.identity.block_size = json_integer<std::int32_t>(json.at("block_size"));
  info.identity.identity = json.at("identity").get<std::string>();
  info.identity.prompt_ids = integers<PromptId>(json.at("lease_prompt_ids"));
  info.prompt_ids = integers<PromptId>(json.at("prompt_ids"));
  info.digests = integers<std::uint64_t>(json.at("digests"));
  info.packed_lengths = integers<std::int64_t>(json.at("packed_lengths"));
  info.totals.block_tokens = json_integer<std::int64_t>(json.at("block_tokens"));
  info.totals.forwards = json_integer<std::int64_t>(json.at("forwards"));
  info.totals.flipped_blocks = json_integer<std::int64_t>(json.at("flipped_blocks"));
  if (info.digests.size() != info.prompt_ids.size() ||
      info.packed_lengths.size() != info.prompt_ids.size()) {
    throw DataError("its arrays differ in length");
  }
  const auto ended = json.find("ended_by_eos");
  if (ended == json.end()) {
    return;  // From an earlier version: open the shard.
  }
  info.totals.ended_by_eos = json_integer<std::int64_t>(*ended);
  entries_.emplace(json.at("shard").get<std::string>(), std::move(entry));
}

std::optional<ShardInfo> ShardIndex::find(const std::filesystem::path& shard) const {
  const auto [begin, end] = entries_.equal_range(shard.filename().string());
  const std::optional<FileState> now = begin != end ? state_of(shard) : std::nullopt;
  const auto found = std::find_if(begin, end, [&](const auto& remembered) {
    const Entry& entry = remembered.second;
    return now && now->bytes == entry.bytes &&
           now->changed_nanoseconds == entry.changed_nanoseconds;
  });
  if (found == end) {
    return std::nullopt;
  }
  std::optional<ShardInfo> result = found->second.info;
  result->path = shard;
  return result;
}

void ShardIndex::forget(const std::filesystem::path& directory) noexcept {
  try {
    for (const std::filesystem::path& path : files(directory)) {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
  } catch (const std::exception&) {
    return;  // Out of memory: the files stay, and the damage is found again.
  }
}

ShardIndexLog::ShardIndexLog(const std::filesystem::path& directory, Rank rank)
    : log_(directory / fmt::format("index-{}.jsonl", rank)) {}

void ShardIndexLog::append(const ShardInfo& shard) {
  const std::optional<FileState> state = state_of(shard.path);
  if (!state) {
    throw EnvironmentError(shard.path.string() + ": a committed shard cannot be examined");
  }
  const Json line = {{"shard", shard.path.filename().string()},
                     {"bytes", state->bytes},
                     {"changed_ns", state->changed_nanoseconds},
                     {"lease", shard.identity.lease},
                     {"attempt", shard.identity.attempt},
                     {"rank", shard.identity.rank},
                     {"round", shard.identity.round},
                     {"block_size", shard.identity.block_size},
                     {"identity", shard.identity.identity},
                     {"lease_prompt_ids", shard.identity.prompt_ids},
                     {"prompt_ids", shard.prompt_ids},
                     {"digests", shard.digests},
                     {"packed_lengths", shard.packed_lengths},
                     {"block_tokens", shard.totals.block_tokens},
                     {"forwards", shard.totals.forwards},
                     {"flipped_blocks", shard.totals.flipped_blocks},
                     {"ended_by_eos", shard.totals.ended_by_eos}};
  log_.append(seal_json(line.dump()));
}

}  // namespace jforge
