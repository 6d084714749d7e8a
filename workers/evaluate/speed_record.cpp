#include "workers/evaluate/speed_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "data/tasks/score_interval.h"
#include "runtime/append_log.h"
#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/text_seal.h"
#include "workers/evaluate/part_files.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

/// This job alone causes a load of about 1 per core.
constexpr double kBusyLoad = 1.25;
constexpr double kUnsteadyClock = 1.1;

std::optional<double> optional_number(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<double>());
}

const SpeedPass* pass_of(const SpeedRepeat& repeat, const std::string& method) {
  const auto found = std::ranges::find(repeat.passes, method, &SpeedPass::method);
  return found == repeat.passes.end() ? nullptr : &*found;
}

// Tokens and seconds are sums over ranks: the ratio is one rank's speed.
double decoding_speed(const SpeedPass& pass) {
  return static_cast<double>(pass.tokens - pass.sequences) / pass.decode_seconds;
}
double whole_speed(const SpeedPass& pass) {
  return static_cast<double>(pass.tokens) / (pass.decode_seconds + pass.prefill_seconds);
}

/// In each repeat, divided by the baseline's if given.
std::vector<double> speeds(std::span<const SpeedRepeat> repeats, const std::string& method,
                           const std::string* baseline, double (*speed)(const SpeedPass&)) {
  std::vector<double> values;
  for (const SpeedRepeat& repeat : repeats) {
    const SpeedPass* const own = pass_of(repeat, method);
    const SpeedPass* const other = baseline == nullptr ? nullptr : pass_of(repeat, *baseline);
    if (own != nullptr && (baseline == nullptr || other != nullptr)) {
      values.push_back(speed(*own) / (other == nullptr ? 1.0 : speed(*other)));
    }
  }
  return values;
}

void set_interval(Json& figures, const std::string& key, std::span<const double> values) {
  const std::optional<SpeedInterval> interval = geometric_interval(values);
  figures[key] = interval ? Json(interval->mean) : Json(nullptr);
  figures[key + "_low"] = interval ? Json(interval->low) : Json(nullptr);
  figures[key + "_high"] = interval ? Json(interval->high) : Json(nullptr);
}

}  // namespace

std::string to_line(const SpeedRepeat& repeat) {
  Json passes = Json::array();
  for (const SpeedPass& pass : repeat.passes) {
    passes.push_back({{"method", pass.method},
                      {"sequences", pass.sequences},
                      {"tokens", pass.tokens},
                      {"decode_seconds", pass.decode_seconds},
                      {"prefill_seconds", pass.prefill_seconds}});
  }
  const Json json{{"settings", repeat.settings},
                  {"place", repeat.place},
                  {"batch_prompts", repeat.batch_prompts},
                  {"problems", repeat.problems},
                  {"ranks", repeat.ranks},
                  {"threads", repeat.threads},
                  {"repeat", repeat.repeat},
                  {"load_per_core", json_or_null(repeat.load.load_per_core)},
                  {"slowest_megahertz", json_or_null(repeat.load.slowest_megahertz)},
                  {"fastest_megahertz", json_or_null(repeat.load.fastest_megahertz)},
                  {"passes", std::move(passes)}};
  return seal_json(json.dump());
}

SpeedRepeat parse_speed_repeat(std::string_view line, const std::string& origin) {
  const auto refusal = [&](const std::string& why) {
    return DataError(fmt::format(
        "{}: not a measured speed ({}); remove the file to measure speeds anew", origin, why));
  };
  try {
    const Json json = try_bounded_json<Json>(line);
    SpeedRepeat repeat{.settings = json.at("settings").get<std::string>(),
                       .place = json.at("place").get<std::string>(),
                       .batch_prompts = json_integer<std::int32_t>(json.at("batch_prompts")),
                       .problems = json_integer<std::int32_t>(json.at("problems")),
                       .ranks = json_integer<std::int32_t>(json.at("ranks")),
                       .threads = json_integer<std::int32_t>(json.at("threads")),
                       .repeat = json_integer<std::int32_t>(json.at("repeat")),
                       .load = {.load_per_core = optional_number(json.at("load_per_core")),
                                .slowest_megahertz = optional_number(json.at("slowest_megahertz")),
                                .fastest_megahertz = optional_number(json.at("fastest_megahertz"))},
                       .passes = {}};
    for (const Json& pass : json.at("passes")) {
      repeat.passes.push_back({.method = pass.at("method").get<std::string>(),
                               .sequences = json_integer<std::int64_t>(pass.at("sequences")),
                               .tokens = json_integer<std::int64_t>(pass.at("tokens")),
                               .decode_seconds = pass.at("decode_seconds").get<double>(),
                               .prefill_seconds = pass.at("prefill_seconds").get<double>()});
    }
    return repeat;
  } catch (const nlohmann::json::exception& error) {
    throw refusal(error.what());
  }
}

std::vector<SpeedRepeat> SpeedFile::read(const std::string& settings, const std::string& place,
                                         std::size_t batches, std::int32_t repeats) const {
  if (!std::filesystem::exists(path_)) {
    return {};
  }
  using Key = std::pair<std::int32_t, std::int32_t>;
  std::map<std::string, std::map<Key, SpeedRepeat>> places;
  // Ignores a torn last line.
  (void)for_each_line(path_, [&](std::string_view line, const std::string& origin) {
    if (examine_seal(line) == TextSeal::broken) {
      log_warn("{}: its checksum does not match; measured anew", origin);
      return;
    }
    SpeedRepeat repeat = parse_speed_repeat(line, origin);
    if (repeat.settings == settings && repeat.repeat < repeats) {
      places[repeat.place].emplace(Key{repeat.repeat, repeat.batch_prompts}, std::move(repeat));
    }
  });
  const std::size_t wanted = batches * static_cast<std::size_t>(repeats);
  auto chosen = places.find(place);
  for (auto other = places.begin(); other != places.end(); ++other) {
    if (other->second.size() >= wanted &&
        (chosen == places.end() || chosen->second.size() < wanted)) {
      chosen = other;
    }
  }
  std::vector<SpeedRepeat> found;
  if (chosen != places.end()) {
    for (auto& [key, repeat] : chosen->second) {
      found.push_back(std::move(repeat));
    }
  }
  return found;
}

void SpeedFile::restart(const std::vector<SpeedRepeat>& found) const {
  std::string text;
  for (const SpeedRepeat& repeat : found) {
    text += to_line(repeat) + "\n";
  }
  publish_file(path_, text);
}

void SpeedFile::append(const SpeedRepeat& repeat) const {
  AppendLog(path_).append(to_line(repeat), /*durable=*/true);
}

std::optional<SpeedInterval> geometric_interval(std::span<const double> values) {
  if (values.size() < 2) {
    return std::nullopt;
  }
  const auto count = static_cast<double>(values.size());
  double mean = 0;
  for (const double value : values) {
    if (!(value > 0) || !std::isfinite(value)) {
      return std::nullopt;
    }
    mean += std::log(value) / count;
  }
  double squares = 0;
  for (const double value : values) {
    squares += (std::log(value) - mean) * (std::log(value) - mean);
  }
  const double deviation = std::sqrt(squares / (count - 1));
  const double t = student_quantile(std::ssize(values) - 1);
  const double half = t * deviation / std::sqrt(count);
  return SpeedInterval{std::exp(mean), std::exp(mean - half), std::exp(mean + half)};
}

std::optional<std::string> load_remark(std::span<const SpeedRepeat> repeats) {
  double load = 0;
  double slowest = 0;
  double fastest = 0;
  for (const SpeedRepeat& repeat : repeats) {
    load = std::max(load, repeat.load.load_per_core.value_or(0));
    const double slow = repeat.load.slowest_megahertz.value_or(0);
    slowest = slowest > 0 && slow > 0 ? std::min(slowest, slow) : std::max(slowest, slow);
    fastest = std::max(fastest, repeat.load.fastest_megahertz.value_or(0));
  }
  std::vector<std::string> reasons;
  if (load > kBusyLoad) {
    reasons.push_back(fmt::format("load average of {:.1f} per core", load));
  }
  if (slowest > 0 && fastest > kUnsteadyClock * slowest) {
    reasons.push_back(fmt::format("clock between {:.0f} and {:.0f} MHz", slowest, fastest));
  }
  return reasons.empty() ? std::nullopt
                         : std::optional(fmt::format("{}", fmt::join(reasons, ", ")));
}

Json speed_figures(std::span<const SpeedRepeat> repeats, const std::string& method,
                   const std::string& baseline) {
  expect(!repeats.empty(), "figures of no repeat");
  const SpeedRepeat& first = repeats.front();
  Json figures{{"batch_prompts", first.batch_prompts},
               {"problems", first.problems},
               {"repeats", repeats.size()},
               {"ranks", first.ranks},
               {"threads", first.threads}};
  set_interval(figures, "tokens_per_second", speeds(repeats, method, nullptr, decoding_speed));
  set_interval(figures, "tokens_per_second_with_prefill",
               speeds(repeats, method, nullptr, whole_speed));
  const std::string* const against = method == baseline ? nullptr : &baseline;
  const auto ratios = [&](double (*speed)(const SpeedPass&)) {
    return against == nullptr ? std::vector<double>() : speeds(repeats, method, against, speed);
  };
  set_interval(figures, "speed_up", ratios(decoding_speed));
  set_interval(figures, "speed_up_with_prefill", ratios(whole_speed));
  const std::optional<std::string> remark = load_remark(repeats);
  figures["remark"] = remark ? Json(*remark) : Json(nullptr);
  return figures;
}

}  // namespace jforge
