#include "results/report/speed_figures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

namespace jforge {

namespace {

// Another version's summary may have elements that are not objects.
std::vector<const ReportJson*> speeds_of(const ReportJson& figures) {
  std::vector<const ReportJson*> speeds;
  const auto found = figures.find("speed");
  if (found != figures.end() && found->is_array()) {
    for (const ReportJson& speed : *found) {
      if (speed.is_object()) {
        speeds.push_back(&speed);
      }
    }
  }
  return speeds;
}

struct Interval {
  double mean = std::nan("");
  double low = std::nan("");
  double high = std::nan("");
};

Interval interval_of(const ReportJson& speed, const std::string& key) {
  return {json_number(speed, key), json_number(speed, key + "_low"),
          json_number(speed, key + "_high")};
}

struct Contender {
  int index = 0;
  std::string name;
  Interval value;
  std::string shown;  ///< "1.38× AR (1.31–1.45)"
};

std::vector<Contender> contenders(const std::vector<NamedFigures>& methods, double batch_prompts,
                                  const std::string* baseline) {
  const char* const key = baseline != nullptr ? "speed_up" : "tokens_per_second";
  std::vector<Contender> found;
  std::vector<const ReportJson*> figures;
  std::ranges::transform(methods, std::back_inserter(figures), &NamedFigures::figures);
  if (baseline == nullptr && speed_places(figures, batch_prompts).size() > 1) {
    return found;  // Different machines do not compare.
  }
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const ReportJson* const speed = speed_at(*methods[i].figures, batch_prompts);
    if (speed == nullptr || !std::isfinite(json_number(*speed, key))) {
      continue;
    }
    const std::string text =
        baseline != nullptr
            ? with_interval(speed, key, "{:.2f}", fmt::format("× {}", *baseline).c_str())
            : with_interval(speed, key, "{:.0f}", " tokens/s");
    found.push_back({static_cast<int>(i), methods[i].name, interval_of(*speed, key), text});
  }
  return found;
}

}  // namespace

const ReportJson* speed_at(const ReportJson& figures, double batch_prompts) {
  for (const ReportJson* speed : speeds_of(figures)) {
    if (std::abs(json_number(*speed, "batch_prompts") - batch_prompts) < 0.5) {
      return speed;
    }
  }
  return nullptr;
}

std::string speed_place(const ReportJson& speed) {
  const double ranks = json_number(speed, "ranks");
  const double threads = json_number(speed, "threads");
  return std::isfinite(ranks) && std::isfinite(threads)
             ? fmt::format("{:.0f} {} of {:.0f} {}", ranks, ranks > 1 ? "ranks" : "rank", threads,
                           threads > 1 ? "threads" : "thread")
             : std::string();
}

std::set<std::string> speed_places(const std::vector<const ReportJson*>& figures,
                                   double batch_prompts) {
  std::set<std::string> places;
  for (const ReportJson* one : figures) {
    if (const ReportJson* const speed = speed_at(*one, batch_prompts)) {
      places.insert(speed_place(*speed));
    }
  }
  return places;
}

std::vector<double> speed_batches(const std::vector<const ReportJson*>& figures) {
  std::set<double> batches;
  for (const ReportJson* one : figures) {
    for (const ReportJson* speed : speeds_of(*one)) {
      if (std::isfinite(json_number(*speed, "batch_prompts"))) {
        batches.insert(json_number(*speed, "batch_prompts"));
      }
    }
  }
  return {batches.begin(), batches.end()};
}

std::string with_interval(const ReportJson* speed, const std::string& key, const char* format,
                          const char* unit) {
  if (speed == nullptr || !std::isfinite(json_number(*speed, key))) {
    return "–";
  }
  return fmt::format("{}{} ({})", shown(json_number(*speed, key), format), unit,
                     interval_text(*speed, key, format));
}

std::string fastest_by_clock(const NamedFigures& baseline, const std::vector<NamedFigures>& methods,
                             double batch_prompts) {
  const std::string* const against = baseline.figures != nullptr ? &baseline.name : nullptr;
  const std::vector<Contender> all = contenders(methods, batch_prompts, against);
  if (all.empty()) {
    return {};
  }
  const Contender& best = *std::ranges::max_element(
      all, {}, [](const Contender& contender) { return contender.value.mean; });
  const std::string described = fmt::format("{}, {}", best.name, best.shown);
  const bool behind = against != nullptr && best.value.high < 1;
  std::vector<std::string> close;
  for (const Contender& other : all) {
    if (other.index != best.index && other.value.high >= (behind ? 1 : best.value.low)) {
      close.push_back(fmt::format("{}, {}", other.name, other.shown));
    }
  }
  if (behind) {
    return close.empty()
               ? fmt::format("{}; the next is {}", *against, described)
               : fmt::format("{}; not told apart from it: {}", *against, fmt::join(close, "; "));
  }
  // If the interval holds 1, neither is faster.
  std::string text =
      against != nullptr && best.value.low <= 1
          ? fmt::format("{} and {} cannot be told apart: {}", *against, best.name, best.shown)
          : described;
  if (!close.empty()) {
    text += fmt::format("; not told apart from it: {}", fmt::join(close, "; "));
  }
  return text;
}

std::string speed_remarks(const std::vector<const ReportJson*>& figures) {
  std::map<double, std::set<std::string>> remarks;
  for (const ReportJson* one : figures) {
    for (const ReportJson* speed : speeds_of(*one)) {
      if (speed->value("remark", ReportJson()).is_string()) {
        remarks[json_number(*speed, "batch_prompts")].insert(json_text(*speed, "remark"));
      }
    }
  }
  std::string text;
  for (const auto& [batch, reasons] : remarks) {
    text += fmt::format("**Speeds at batch {:.0f} mean little: {}.**\n\n", batch,
                        fmt::join(reasons, "; "));
  }
  for (const double batch : speed_batches(figures)) {
    if (const auto places = speed_places(figures, batch); places.size() > 1) {
      text += fmt::format(
          "**Speeds at batch {:.0f} were measured apart, on {}: tokens/s do not compare, what each "
          "has over its own AR does.**\n\n",
          batch, fmt::join(places, " and on "));
    }
  }
  return text;
}

}  // namespace jforge
