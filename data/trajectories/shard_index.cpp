#include "data/trajectories/shard_index.h"

#include <fmt/format.h>
#include <simdjson.h>
#include <sys/stat.h>

#include <algorithm>
#include <concepts>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/error.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"

namespace jforge {
namespace {

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

/// A line's member. Lines are parsed by simdjson: a start reads as many as there are shards.
class Member {
 public:
  Member(const simdjson::dom::element& line, const char* name) : name_(name) {
    if (line[name].get(value_) != simdjson::SUCCESS) {
      refuse();
    }
  }
  template <std::integral T>
  [[nodiscard]] T integer() const {
    return integer_of<T>(value_);
  }
  template <std::integral T>
  [[nodiscard]] std::vector<T> integers() const {
    simdjson::dom::array values;
    if (value_.get(values) != simdjson::SUCCESS) {
      refuse();
    }
    std::vector<T> found;
    found.reserve(values.size());
    for (const simdjson::dom::element value : values) {
      found.push_back(integer_of<T>(value));
    }
    return found;
  }
  [[nodiscard]] std::string text() const {
    std::string_view text;
    if (value_.get(text) != simdjson::SUCCESS) {
      refuse();
    }
    return std::string(text);
  }

 private:
  [[noreturn]] void refuse() const {
    throw DataError(fmt::format("{} is missing or no value of its kind", name_));
  }
  template <std::integral T>
  [[nodiscard]] T integer_of(const simdjson::dom::element& value) const {
    if (std::uint64_t number = 0;
        value.get(number) == simdjson::SUCCESS && std::in_range<T>(number)) {
      return static_cast<T>(number);
    }
    if (std::int64_t number = 0;
        value.get(number) == simdjson::SUCCESS && std::in_range<T>(number)) {
      return static_cast<T>(number);
    }
    refuse();
  }

  const char* name_;
  simdjson::dom::element value_;
};

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
  static thread_local simdjson::dom::parser parser;
  simdjson::dom::element json;
  if (parser.parse(line.data(), line.size()).get(json) != simdjson::SUCCESS || !json.is_object()) {
    throw DataError("not a JSON object");
  }
  Entry entry;
  entry.bytes = Member(json, "bytes").integer<std::int64_t>();
  entry.changed_nanoseconds = Member(json, "changed_ns").integer<std::int64_t>();
  ShardInfo& info = entry.info;
  info.identity.lease = Member(json, "lease").integer<LeaseId>();
  info.identity.attempt = Member(json, "attempt").integer<std::int64_t>();
  info.identity.rank = Member(json, "rank").integer<Rank>();
  info.identity.round = Member(json, "round").integer<std::int64_t>();
  info.identity.block_size = Member(json, "block_size").integer<std::int32_t>();
  info.identity.identity = Member(json, "identity").text();
  info.identity.prompt_ids = Member(json, "lease_prompt_ids").integers<PromptId>();
  info.prompt_ids = Member(json, "prompt_ids").integers<PromptId>();
  info.digests = Member(json, "digests").integers<std::uint64_t>();
  info.packed_lengths = Member(json, "packed_lengths").integers<std::int64_t>();
  info.totals.block_tokens = Member(json, "block_tokens").integer<std::int64_t>();
  info.totals.forwards = Member(json, "forwards").integer<std::int64_t>();
  info.totals.flipped_blocks = Member(json, "flipped_blocks").integer<std::int64_t>();
  if (info.digests.size() != info.prompt_ids.size() ||
      info.packed_lengths.size() != info.prompt_ids.size()) {
    throw DataError("its arrays differ in length");
  }
  if (json["ended_by_eos"].error() == simdjson::NO_SUCH_FIELD) {
    return;  // From an earlier version: open the shard.
  }
  info.totals.ended_by_eos = Member(json, "ended_by_eos").integer<std::int64_t>();
  entries_.emplace(Member(json, "shard").text(), std::move(entry));
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
  const nlohmann::json line = {{"shard", shard.path.filename().string()},
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
