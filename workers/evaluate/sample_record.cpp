#include "workers/evaluate/sample_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/file_name.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPartSuffix = ".part";

Json to_json(const SampleRecord& record) {
  Json json;
  json["index"] = record.index;
  json["sample"] = record.sample;
  json["id"] = record.id;
  json["prompt_hash"] = record.prompt_hash;
  json["settings"] = record.settings;
  json["tokens"] = record.tokens;
  json["forwards"] = record.forwards;
  json["prefill_forwards"] = record.prefill_forwards;
  json["stop"] = record.stopped_by_eos ? "eos" : "length";
  json["token_hash"] = record.token_hash;
  json["answer"] = record.answer ? Json(*record.answer) : Json(nullptr);
  json["verdict"] = record.verdict;
  json["reason"] = record.reason;
  json["base_verdict"] = record.base_verdict ? Json(*record.base_verdict) : Json(nullptr);
  json["text"] = record.text;
  return json;
}

SampleRecord from_json(const Json& json) {
  SampleRecord record;
  record.index = json.at("index").get<std::int64_t>();
  record.sample = json.at("sample").get<std::int64_t>();
  record.id = json.at("id").get<std::string>();
  record.prompt_hash = json.at("prompt_hash").get<std::string>();
  record.settings = json.at("settings").get<std::string>();
  record.tokens = json.at("tokens").get<std::int64_t>();
  record.forwards = json.at("forwards").get<std::int64_t>();
  record.prefill_forwards = json.at("prefill_forwards").get<std::int64_t>();
  record.stopped_by_eos = json.at("stop").get<std::string>() == "eos";
  record.token_hash = json.at("token_hash").get<std::string>();
  if (!json.at("answer").is_null()) {
    record.answer = json.at("answer").get<std::string>();
  }
  record.verdict = json.at("verdict").get<std::string>();
  record.reason = json.at("reason").get<std::string>();
  if (!json.at("base_verdict").is_null()) {
    record.base_verdict = json.at("base_verdict").get<std::string>();
  }
  record.text = json.at("text").get<std::string>();
  return record;
}

/// Runs `read` on the line's JSON; whatever does not fit becomes a DataError.
template <class Read>
auto parse_line(std::string_view line, const std::string& origin, const Read& read) {
  const auto refusal = [&](const std::string& why) {
    return DataError(fmt::format(
        "{}: not an evaluated sample ({}); remove the file to evaluate anew", origin, why));
  };
  try {
    const Json json = Json::parse(line);
    const auto stop = json.at("stop").get<std::string>();
    if (stop != "eos" && stop != "length") {
      throw refusal(fmt::format("stop is \"{}\"", stop));
    }
    return read(json);
  } catch (const nlohmann::json::exception& error) {
    throw refusal(error.what());
  }
}

/// Gives each complete line to `take` with "FILE:LINE"; returns whether text without a newline
/// followed.
bool for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view, const std::string&)>& take) {
  const std::string text = read_file(path);
  std::size_t begin = 0;
  for (std::size_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      break;
    }
    take(std::string_view(text).substr(begin, end - begin),
         fmt::format("{}:{}", path.string(), number));
    begin = end + 1;
  }
  return begin < text.size();
}

}  // namespace

std::string to_line(const SampleRecord& record, const std::optional<SampleTiming>& timing) {
  Json json = to_json(record);
  if (timing) {
    json["attempt"] = timing->attempt;
    json["rank"] = timing->rank;
    json["ranks"] = timing->ranks;
    json["batch_prompts"] = timing->batch_prompts;
    json["decode_seconds"] = timing->decode_seconds;
    json["prefill_seconds"] = timing->prefill_seconds;
  }
  // A completion may end in the middle of a character.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

TimedSample parse_timed_sample(std::string_view line, const std::string& origin) {
  return parse_line(line, origin, [](const Json& json) {
    return TimedSample{from_json(json),
                       {.attempt = json.at("attempt").get<std::int64_t>(),
                        .rank = json.at("rank").get<Rank>(),
                        .ranks = json.at("ranks").get<std::int32_t>(),
                        .batch_prompts = json.at("batch_prompts").get<std::int32_t>(),
                        .decode_seconds = json.at("decode_seconds").get<double>(),
                        .prefill_seconds = json.at("prefill_seconds").get<double>()}};
  });
}

SampleFiles::SampleFiles(std::filesystem::path directory, const std::string& task,
                         const std::string& method)
    : directory_(std::move(directory)),
      stem_(file_name_part(task) + "." + file_name_part(method)) {}

std::filesystem::path SampleFiles::part(std::int64_t attempt, Rank rank, int ranks) const {
  return directory_ /
         fmt::format("{}.attempt-{}.rank-{}-of-{}{}", stem_, attempt, rank, ranks, kPartSuffix);
}

namespace {

/// The attempt in a part's name; 0 when it is none of `stem`'s parts.
std::int64_t attempt_of(const std::string& name, const std::string& stem) {
  const std::string prefix = stem + ".attempt-";
  if (!name.starts_with(prefix) || !name.ends_with(kPartSuffix)) {
    return 0;
  }
  std::int64_t attempt = 0;
  const char* begin = name.data() + prefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), attempt);
  return error == std::errc() && *end == '.' && attempt > 0 ? attempt : 0;
}

}  // namespace

std::vector<std::filesystem::path> SampleFiles::parts() const {
  std::vector<std::pair<std::int64_t, std::filesystem::path>> found;
  if (!std::filesystem::exists(directory_)) {
    return {};
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (const std::int64_t attempt = attempt_of(entry.path().filename().string(), stem_);
        attempt > 0) {
      found.emplace_back(attempt, entry.path());
    }
  }
  std::ranges::sort(found);
  std::vector<std::filesystem::path> paths;
  for (auto& [attempt, path] : found) {
    paths.push_back(std::move(path));
  }
  return paths;
}

std::int64_t SampleFiles::next_attempt() const {
  const auto existing = parts();
  return existing.empty() ? 1 : attempt_of(existing.back().filename().string(), stem_) + 1;
}

std::vector<TimedSample> SampleFiles::read_parts() const {
  std::vector<TimedSample> samples;
  for (const auto& path : parts()) {
    // What follows the last newline was cut off by a crash in the middle of a write.
    (void)for_each_line(path, [&](std::string_view line, const std::string& origin) {
      samples.push_back(parse_timed_sample(line, origin));
    });
  }
  return samples;
}

std::vector<SampleRecord> SampleFiles::read_merged() const {
  std::vector<SampleRecord> records;
  const bool torn = for_each_line(merged(), [&](std::string_view line, const std::string& origin) {
    records.push_back(parse_line(line, origin, from_json));
  });
  if (torn) {
    throw DataError(fmt::format(
        "{}: its last line is not complete; remove the file to evaluate anew", merged().string()));
  }
  return records;
}

std::optional<std::string> SampleFiles::merged_settings() const {
  std::ifstream file(merged(), std::ios::binary);
  std::string line;
  if (!std::getline(file, line)) {
    return std::nullopt;
  }
  return parse_line(line, merged().string() + ":1", from_json).settings;
}

void SampleFiles::publish_merged(const std::vector<SampleRecord>& records) const {
  std::string text;
  for (const SampleRecord& record : records) {
    text += to_line(record, std::nullopt);
    text += '\n';
  }
  publish_file(merged(), text);
}

void SampleFiles::remove_parts() const {
  for (const auto& path : parts()) {
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) {
      throw EnvironmentError(fmt::format("cannot remove {}: {}", path.string(), error.message()));
    }
  }
}

}  // namespace jforge
