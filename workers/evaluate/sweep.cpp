#include "workers/evaluate/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/text_seal.h"
#include "workers/evaluate/evaluation_summary.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const DecodingSettings& settings) {
  Json json = Json::object();
  for (const auto& setting : settings) {
    std::visit([&](auto number) { json[setting.first] = number; }, setting.second);
  }
  return json;
}

Json sweep_of_task(const SweepConfig& sweep, const std::string& task, const std::string& model,
                   const EvaluationSummary& summary) {
  Json json{{"model", model},
            {"task", task},
            {"method", sweep.method},
            {"keys", sweep.keys()},
            {"baseline", summary.figures(model, task, std::string(kBaselineMethod))},
            {"points", Json::array()}};
  for (const DecodingSettings& settings : sweep.points()) {
    Json point = summary.figures(model, task, variant_label(sweep.method, settings));
    // "settings" of the summary is a hash.
    point["settings_hash"] = point["settings"];
    point["settings"] = to_json(settings);
    json["points"].push_back(std::move(point));
  }
  return json;
}

}  // namespace

std::map<std::string, SweepAxis, std::less<>> SweepConfig::empty_axes() {
  std::map<std::string, SweepAxis, std::less<>> axes;
  for (const DecodingKey& key : decoding_keys()) {
    // Plots need numeric axes.
    if (key.words.empty()) {
      axes.emplace(key.name, SweepAxis{key.fallback, {}});
    }
  }
  return axes;
}

void SweepConfig::validate() const {
  const std::vector<std::string> own = decoding_method_keys(method);
  for (const std::string& key : keys()) {
    expect_method_has(method, key, "sweep." + key);
    const std::vector<DecodingValue>& values = axes.find(key)->second.values;
    for (auto value = values.begin(); value != values.end(); ++value) {
      validate_decoding_settings({{key, *value}}, "sweep");
      if (std::find(values.begin(), value, *value) != value) {
        throw ConfigError(
            fmt::format("sweep.{}: {} is named twice; name it once", key, to_string(*value)));
      }
    }
  }
  if (keys().empty()) {
    throw ConfigError(
        fmt::format("[sweep] varies nothing; give values to a setting of \"{}\", for example {} = "
                    "[4, 8]",
                    method, own.front()));
  }
}

std::vector<std::string> SweepConfig::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, axis] : axes) {
    if (!axis.values.empty()) {
      names.push_back(key);
    }
  }
  return names;
}

std::vector<DecodingSettings> SweepConfig::points() const {
  std::vector<DecodingSettings> points(1);
  for (const std::string& key : keys()) {
    std::vector<DecodingSettings> longer;
    for (const DecodingSettings& point : points) {
      for (const DecodingValue& value : axes.find(key)->second.values) {
        longer.push_back(point);
        longer.back().insert_or_assign(key, value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

DecodingMethod varied_method(std::string_view name, const DecodingSettings& fixed,
                             const DecodingSettings& varied, std::uint64_t seed) {
  DecodingSettings settings = fixed;
  for (const auto& [key, value] : varied) {
    settings.insert_or_assign(key, value);
  }
  DecodingMethod method = make_decoding_method(name, settings, seed);
  method.label = variant_label(name, varied);
  return method;
}

std::vector<DecodingMethod> sweep_methods(const SweepConfig& sweep, const DecodingSettings& fixed,
                                          std::uint64_t seed) {
  sweep.validate();
  std::vector<DecodingMethod> methods;
  methods.push_back(make_decoding_method(kBaselineMethod, fixed, seed));
  for (const DecodingSettings& point : sweep.points()) {
    methods.push_back(varied_method(sweep.method, fixed, point, seed));
  }
  return methods;
}

Json write_sweep(const SweepConfig& sweep, const std::vector<std::string>& tasks,
                 const std::string& model, const std::filesystem::path& directory) {
  expect(!tasks.empty(), "a sweep over no task");
  const EvaluationSummary summary(directory);
  Json json = sweep_of_task(sweep, tasks.front(), model, summary);
  for (std::size_t i = 1; i < tasks.size(); ++i) {
    json["further_tasks"].push_back(sweep_of_task(sweep, tasks[i], model, summary));
  }
  publish_file(directory / "sweep.json", seal_json(json.dump(2) + "\n"));
  return json;
}

}  // namespace jforge
