#include "results/report/recorded_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace jforge {

std::string recorded_setting(const ReportJson& figures, const std::string& key) {
  const auto found = figures.find(key);
  // A seed has more digits than a double.
  return found != figures.end() && found->is_number_integer() ? found->dump()
         : found != figures.end() && found->is_number()       ? shown(found->get<double>(), "{}")
                                                              : json_text(figures, key);
}

std::string setting_name(std::string key) {
  std::ranges::replace(key, '_', ' ');
  return key;
}

std::string sampling_text(const ReportJson& figures, const std::vector<std::string>& but) {
  std::vector<std::string> parts;
  for (const auto& [key, neutral] : kSamplingSettings) {
    const std::string value = recorded_setting(figures, key);
    if (value != "–" && value != neutral && std::ranges::find(but, key) == but.end()) {
      parts.push_back(setting_name(key) + " " + value);
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string differing_settings(const ReportJson& first, const ReportJson& second) {
  std::vector<std::string> parts;
  const auto compare = [&](const char* key) {
    const std::string a = recorded_setting(first, key);
    const std::string b = recorded_setting(second, key);
    if (a != b) {
      parts.push_back(fmt::format("{} {} → {}", key, a, b));
    }
  };
  for (const auto& [key, neutral] : kSamplingSettings) {
    compare(key);
  }
  std::ranges::for_each(kMethodSettings, compare);
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace jforge
