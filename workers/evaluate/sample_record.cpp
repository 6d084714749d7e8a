#include "workers/evaluate/sample_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "runtime/bounded_json.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/file_name.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

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
  json["rules"] = nullptr;
  for (const auto& [rule, right] : record.rules) {
    json["rules"][rule] = right;
  }
  json["text"] = record.text;
  if (!record.prompt.empty()) {
    json["prompt"] = record.prompt;
  }
  return json;
}

SampleRecord from_json(const Json& json) {
  SampleRecord record;
  record.index = json_integer<std::int64_t>(json.at("index"));
  record.sample = json_integer<std::int64_t>(json.at("sample"));
  record.id = json.at("id").get<std::string>();
  record.prompt_hash = json.at("prompt_hash").get<std::string>();
  record.settings = json.at("settings").get<std::string>();
  record.tokens = json_integer<std::int64_t>(json.at("tokens"));
  record.forwards = json_integer<std::int64_t>(json.at("forwards"));
  record.prefill_forwards = json_integer<std::int64_t>(json.at("prefill_forwards"));
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
  if (!json.at("rules").is_null()) {
    for (const auto& [rule, right] : json.at("rules").get_ref<const Json::object_t&>()) {
      record.rules.emplace_back(rule, right.get<bool>());
    }
  }
  record.text = json.at("text").get<std::string>();
  record.prompt = json.value("prompt", "");
  return record;
}

/// Turns JSON errors of `read` into DataError.
template <class Read>
auto parse_line(std::string_view line, const std::string& origin, const Read& read) {
  const auto refusal = [&](const std::string& why) {
    return DataError(fmt::format("{}: not an evaluated sample ({})", origin, why));
  };
  if (examine_seal(line) == TextSeal::broken) {
    throw refusal("its checksum does not match");
  }
  try {
    const Json json = try_bounded_json<Json>(line);
    if (json.is_discarded()) {
      throw refusal("not valid JSON");
    }
    const auto stop = json.at("stop").get<std::string>();
    if (stop != "eos" && stop != "length") {
      throw refusal(fmt::format("stop is \"{}\"", stop));
    }
    return read(json);
  } catch (const nlohmann::json::exception& error) {
    throw refusal(error.what());
  }
}

}  // namespace

DecodingCost cost_of(const SampleRecord& record) noexcept {
  return {.sequences = 1, .tokens = record.tokens, .forwards = record.forwards};
}

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
  // A completion may end inside a character.
  const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return timing ? seal_json(line) : line;
}

TimedSample parse_timed_sample(std::string_view line, const std::string& origin) {
  return parse_line(line, origin, [](const Json& json) {
    return TimedSample{from_json(json),
                       {.attempt = json_integer<std::int64_t>(json.at("attempt")),
                        .rank = json_integer<Rank>(json.at("rank")),
                        .ranks = json_integer<std::int32_t>(json.at("ranks")),
                        .batch_prompts = json_integer<std::int32_t>(json.at("batch_prompts")),
                        .decode_seconds = json.at("decode_seconds").get<double>(),
                        .prefill_seconds = json.at("prefill_seconds").get<double>()}};
  });
}

SampleFiles::SampleFiles(std::filesystem::path directory, const std::string& task,
                         const std::string& method)
    : directory_(std::move(directory)),
      task_(file_name_part(task)),
      stem_(task_ + "." + file_name_part(method)),
      parts_(directory_, stem_) {}

std::vector<TimedSample> SampleFiles::read_parts() const {
  std::vector<TimedSample> samples;
  parts_.read(
      [&](std::string_view line, const std::string& origin) {
        samples.push_back(parse_timed_sample(line, origin));
      },
      "samples are evaluated again");
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

std::optional<std::string> SampleFiles::merged_hash() const {
  return std::filesystem::exists(merged()) ? std::optional(hash_hex(hash_file(merged())))
                                           : std::nullopt;
}

void SampleFiles::publish_merged(const std::vector<SampleRecord>& records) const {
  std::string text;
  for (const SampleRecord& record : records) {
    text += to_line(record, std::nullopt);
    text += '\n';
  }
  publish_file(merged(), text);
}

}  // namespace jforge
