#include "results/report/metrics_reader.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/durable_file.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// "metrics.3.jsonl" → 3; anything else → −1.
int attempt_of(const std::string& name) {
  constexpr std::string_view kPrefix = "metrics.";
  constexpr std::string_view kSuffix = ".jsonl";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) ||
      name.size() <= kPrefix.size() + kSuffix.size()) {
    return -1;
  }
  int attempt = -1;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [parsed, error] = std::from_chars(begin, end, attempt);
  return error == std::errc() && parsed == end ? attempt : -1;
}

}  // namespace

std::map<std::int32_t, std::vector<MetricsRow>> read_metrics(
    const std::filesystem::path& run_directory) {
  std::map<int, std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(run_directory)) {
    if (const int attempt = attempt_of(entry.path().filename().string()); attempt >= 0) {
      files[attempt] = entry.path();
    }
  }
  std::map<std::int32_t, std::map<std::int64_t, MetricsRow>> rounds;
  for (const auto& [attempt, path] : files) {
    const std::string text = read_file(path);
    std::size_t line_number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      ++line_number;
      const std::size_t end = text.find('\n', begin);
      if (end == std::string::npos) {
        break;  // torn by a crash in the middle of a write
      }
      const auto json =
          nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      const auto has_integer = [&](const char* key) {
        return json.contains(key) && json[key].is_number_integer();
      };
      if (!json.is_object() || !has_integer("round") || !has_integer("step")) {
        throw DataError(fmt::format("{}:{}: not a metrics record", path.string(), line_number));
      }
      MetricsRow row;
      row.step = json["step"].get<std::int64_t>();
      for (const auto& [key, value] : json.items()) {
        if (value.is_number()) {
          row.values[key] = value.get<double>();
        }
      }
      rounds[json["round"].get<std::int32_t>()][row.step] = std::move(row);
      begin = end + 1;
    }
  }
  std::map<std::int32_t, std::vector<MetricsRow>> result;
  for (auto& [round, rows] : rounds) {
    for (auto& [step, row] : rows) {
      result[round].push_back(std::move(row));
    }
  }
  return result;
}

}  // namespace jforge
