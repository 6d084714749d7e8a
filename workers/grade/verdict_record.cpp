#include "workers/grade/verdict_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/tasks/task.h"
#include "runtime/bounded_json.h"
#include "runtime/error.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_status(std::string_view text) {
  return text == to_string(VerdictStatus::pass) || text == to_string(VerdictStatus::fail) ||
         text == to_string(VerdictStatus::timeout);
}

}  // namespace

std::string to_line(const VerdictRecord& record) {
  OrderedJson json{
      {"index", record.index},
      {"key", record.key},
      {"verdict", record.verdict},
      {"base_verdict", record.base_verdict ? OrderedJson(*record.base_verdict) : OrderedJson()},
      {"reason", record.reason}};
  for (const auto& [rule, right] : record.rules) {
    json["rules"][rule] = right;
  }
  return seal_json(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

VerdictRecord parse_verdict_record(std::string_view line, const std::string& origin) {
  const auto refusal = [&](const std::string& why) {
    return DataError(fmt::format("{}: not a verdict ({})", origin, why));
  };
  if (examine_seal(line) != TextSeal::holds) {
    throw refusal("its checksum is missing or does not match");
  }
  try {
    const OrderedJson json = try_bounded_json<OrderedJson>(line);
    if (json.is_discarded()) {
      throw refusal("not valid JSON");
    }
    VerdictRecord record;
    record.index = json_integer<std::int64_t>(json.at("index"));
    record.key = json.at("key").get<std::string>();
    record.verdict = json.at("verdict").get<std::string>();
    if (!json.at("base_verdict").is_null()) {
      record.base_verdict = json.at("base_verdict").get<std::string>();
    }
    record.reason = json.at("reason").get<std::string>();
    if (const auto rules = json.find("rules"); rules != json.end()) {
      for (const auto& [rule, right] : rules->get_ref<const OrderedJson::object_t&>()) {
        record.rules.emplace_back(rule, right.get<bool>());
      }
    }
    if (!is_status(record.verdict) || !is_status(record.base_verdict.value_or(record.verdict))) {
      throw refusal(fmt::format("its verdict is \"{}\"", record.verdict));
    }
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw refusal(error.what());
  }
}

}  // namespace jforge
