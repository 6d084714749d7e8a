#include "results/report/metrics_reader.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/bounded_json.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"

namespace jforge {

int metrics_attempt(const std::string& file_name) {
  constexpr std::string_view kPrefix = "metrics.";
  constexpr std::string_view kSuffix = ".jsonl";
  if (!file_name.starts_with(kPrefix) || !file_name.ends_with(kSuffix) ||
      file_name.size() <= kPrefix.size() + kSuffix.size()) {
    return -1;
  }
  int attempt = -1;
  const char* begin = file_name.data() + kPrefix.size();
  const char* end = file_name.data() + file_name.size() - kSuffix.size();
  const auto [parsed, error] = std::from_chars(begin, end, attempt);
  return error == std::errc() && parsed == end ? attempt : -1;
}

std::map<std::int32_t, std::vector<MetricsRow>> read_metrics(
    const std::filesystem::path& run_directory) {
  std::map<int, std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(run_directory)) {
    if (const int attempt = metrics_attempt(entry.path().filename().string()); attempt >= 0) {
      files[attempt] = entry.path();
    }
  }
  using Place = std::pair<std::int32_t, std::int64_t>;  // round and step
  std::map<Place, MetricsRow> kept;
  for (const auto& [attempt, path] : files) {
    const std::string text = read_file(path);
    std::map<Place, MetricsRow> made;
    std::size_t line_number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      ++line_number;
      const std::size_t end = text.find('\n', begin);
      if (end == std::string::npos) {
        break;  // torn by a crash in the middle of a write
      }
      const auto json = try_bounded_json(std::string_view(text).substr(begin, end - begin));
      const auto has_integer = [&](const char* key) {
        return json.contains(key) && json[key].is_number_integer();
      };
      if (examine_seal(std::string_view(text).substr(begin, end - begin)) == TextSeal::broken ||
          !json.is_object() || !has_integer("round") || !has_integer("step")) {
        throw DataError(fmt::format("{}:{}: damaged, or not a metrics record; remove the line",
                                    path.string(), line_number));
      }
      MetricsRow row;
      row.step = json["step"].get<std::int64_t>();
      for (const auto& [key, value] : json.items()) {
        if (value.is_number()) {
          row.values[key] = value.get<double>();
        }
      }
      made[{json["round"].get<std::int32_t>(), row.step}] = std::move(row);
      begin = end + 1;
    }
    if (!made.empty()) {
      // Later steps of earlier attempts are in no model.
      kept.erase(kept.lower_bound(made.begin()->first), kept.end());
      kept.merge(made);
    }
  }
  std::map<std::int32_t, std::vector<MetricsRow>> result;
  for (auto& [place, row] : kept) {
    result[place.first].push_back(std::move(row));
  }
  return result;
}

}  // namespace jforge
