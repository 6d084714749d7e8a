#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "results/analysis/paired_comparison.h"
#include "results/report/recorded_settings.h"
#include "results/report/report.h"
#include "results/report/report_text.h"
#include "results/report/speed_figures.h"
#include "runtime/bounded_json.h"
#include "runtime/error.h"
#include "runtime/file_name.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

constexpr std::size_t kMostFlips = 20;
// Keep a line of flipped verdicts within kTableWidth.
constexpr std::size_t kVerdictWidth = 20;
constexpr std::size_t kAnswerWidth = 14;

struct Sample {
  double index = 0;  // in the benchmark
  std::string id;
  std::string verdict;
  std::string answer;
  std::string reason;
  double tokens = 0;  // NaN if not recorded
  double forwards = 0;
};
// Equal on both sides for the same question.
struct SampleKey {
  std::string problem;      // hash
  std::int64_t repeat = 0;  // counts equal problems of a benchmark
  std::int64_t sample = 0;
  auto operator<=>(const SampleKey&) const = default;
};
using Samples = std::map<SampleKey, Sample>;

struct Side {
  std::filesystem::path directory;  // of the evaluation; empty if nothing was evaluated
  ReportJson models = ReportJson::object();
};

Side read_side(const ComparedRun& run) {
  Side side{evaluation_directory_of(run.directory)};
  if (side.directory.empty()) {
    if (!std::filesystem::exists(run.directory / "run.json")) {
      throw DataError(run.directory.string() +
                      " is neither run nor evaluation: it has no run.json and no summary.json");
    }
    return side;
  }
  const std::filesystem::path path = side.directory / "summary.json";
  const auto summary = read_json_object(path);
  if (!summary->contains("models") || !(*summary)["models"].is_object()) {
    throw DataError(path.string() + " holds no \"models\"; evaluate again");
  }
  side.models = (*summary)["models"];
  return side;
}

Sample read_sample(const ReportJson& json) {
  const double index = json_number(json, "index");
  return {std::isfinite(index) ? index : 0, json_text(json, "id"),     json_text(json, "verdict"),
          json_text(json, "answer"),        json_text(json, "reason"), json_number(json, "tokens"),
          json_number(json, "forwards")};
}

// Returns nothing if the file is missing.
Samples read_samples(const Side& side, const std::string& model, const std::string& task,
                     const std::string& method) {
  const std::filesystem::path path =
      side.directory / model / (file_name_part(task) + "." + file_name_part(method) + ".jsonl");
  Samples samples;
  if (!std::filesystem::exists(path)) {
    return samples;
  }
  const std::string text = read_file(path);
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    ++number;
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const auto json =
        try_bounded_json<ReportJson>(std::string_view(text).substr(begin, end - begin));
    if (!json.is_object() || !json.contains("prompt_hash") || !json["prompt_hash"].is_string() ||
        !json.contains("verdict") || !json["verdict"].is_string()) {
      throw DataError(fmt::format("{}:{}: not an evaluated sample", path.string(), number));
    }
    const double sample = json_number(json, "sample");
    SampleKey key{json["prompt_hash"].get<std::string>(), 0,
                  std::isfinite(sample) ? static_cast<std::int64_t>(sample) : 0};
    while (samples.contains(key)) {
      ++key.repeat;
    }
    samples.emplace(std::move(key), read_sample(json));
    begin = end + 1;
  }
  return samples;
}

std::string configuration_section(const ComparedRun& first, const ComparedRun& second) {
  for (const ComparedRun* run : {&first, &second}) {
    if (run->configuration.empty()) {
      return fmt::format("{} records no configuration.\n\n", run->directory.string());
    }
  }
  TableCells rows = {{"key", "A", "B"}};
  std::set<std::string> keys;
  for (const ComparedRun* run : {&first, &second}) {
    for (const auto& [key, value] : run->configuration) {
      keys.insert(key);
    }
  }
  for (const std::string& key : keys) {
    const auto value = [&](const ComparedRun& run) {
      const auto found = run.configuration.find(key);
      return found == run.configuration.end() ? std::string("not set") : found->second;
    };
    if (value(first) != value(second)) {
      rows.push_back({key, value(first), value(second)});
    }
  }
  if (rows.size() == 1) {
    return "Both have the same configuration.\n\n";
  }
  const std::string table = markdown_table(rows, rows[0].size());
  if (table.find('\n') <= kTableWidth) {
    return table + "\n";
  }
  std::string text;  // paths and lists, which must not be cut
  for (std::size_t i = 1; i < rows.size(); ++i) {
    text += fmt::format("- {}\n  - A: {}\n  - B: {}\n", rows[i][0], rows[i][1], rows[i][2]);
  }
  return text + "\n";
}

std::vector<std::pair<std::string, std::string>> paired_models(const Side& first,
                                                               const Side& second) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> only_first;
  std::vector<std::string> only_second;
  for (const auto& [model, tasks] : first.models.items()) {
    if (second.models.contains(model)) {
      pairs.emplace_back(model, model);
    } else {
      only_first.push_back(model);
    }
  }
  for (const auto& [model, tasks] : second.models.items()) {
    if (!first.models.contains(model)) {
      only_second.push_back(model);
    }
  }
  if (only_first.size() == 1 && only_second.size() == 1) {
    pairs.emplace_back(only_first.front(), only_second.front());
  }
  return pairs;
}

struct Pair {
  std::string first_model;
  std::string second_model;
  std::string task;
  std::string method;
  const ReportJson* first;
  const ReportJson* second;

  [[nodiscard]] std::string model() const {
    return first_model == second_model ? first_model : first_model + " → " + second_model;
  }
  [[nodiscard]] std::string name() const { return model() + ", " + task + ", " + method; }
};

std::vector<Pair> shared_figures(const Side& first, const Side& second) {
  std::vector<Pair> pairs;
  for (const auto& [a, b] : paired_models(first, second)) {
    for (const auto& [task, methods] : first.models[a].items()) {
      if (!second.models[b].is_object() || !second.models[b].contains(task)) {
        continue;
      }
      for (const auto& [method, figures] : methods.items()) {
        const ReportJson& others = second.models[b][task];
        if (others.is_object() && others.contains(method)) {
          pairs.push_back({a, b, task, method, &figures, &others[method]});
        }
      }
    }
  }
  return pairs;
}

// Returns a line for each result that only `side` has.
std::string left_over(const Side& side, const std::vector<Pair>& pairs, bool is_first,
                      const char* letter) {
  std::string text;
  for (const auto& [model, tasks] : side.models.items()) {
    for (const auto& [task, methods] : tasks.items()) {
      for (const auto& [method, figures] : methods.items()) {
        const bool shared = std::ranges::any_of(pairs, [&](const Pair& pair) {
          return (is_first ? pair.first_model : pair.second_model) == model && pair.task == task &&
                 pair.method == method;
        });
        if (!shared) {
          text += fmt::format("- only in {}: {}, {}, {}\n", letter, model, task, method);
        }
      }
    }
  }
  return text;
}

struct Flip {
  const Sample* first;
  const Sample* second;
};

// One side's figures over the common samples.
struct CommonFigures {
  std::vector<double> solved;  // share of each problem's samples
  double tokens = 0;           // Σ (tokens − 1) over the samples
  double forwards = 0;

  void add(const Sample& sample) {
    solved.back() += sample.verdict == "pass" ? 1 : 0;
    tokens += sample.tokens - 1;
    forwards += sample.forwards;
  }
  [[nodiscard]] double accuracy() const {
    return std::reduce(solved.begin(), solved.end()) / static_cast<double>(solved.size());
  }
};

struct PairedVerdicts {
  std::optional<PairedComparison> comparison;  // nothing without common problems
  CommonFigures first;
  CommonFigures second;
  std::vector<Flip> flips;
  std::size_t uncommon = 0;  // samples that only one side has
};

PairedVerdicts pair_verdicts(const Samples& first, const Samples& second) {
  PairedVerdicts result;
  const SampleKey* problem = nullptr;
  std::vector<double> samples;  // of each problem
  std::size_t common = 0;
  for (const auto& [key, sample] : first) {
    const auto other = second.find(key);
    if (other == second.end()) {
      continue;
    }
    // A problem's samples are consecutive.
    if (problem == nullptr || problem->problem != key.problem || problem->repeat != key.repeat) {
      problem = &key;
      samples.push_back(0);
      result.first.solved.push_back(0);
      result.second.solved.push_back(0);
    }
    ++samples.back();
    ++common;
    result.first.add(sample);
    result.second.add(other->second);
    if ((sample.verdict == "pass") != (other->second.verdict == "pass")) {
      result.flips.push_back({&sample, &other->second});
    }
  }
  std::ranges::stable_sort(result.flips, {}, [](const Flip& flip) { return flip.first->index; });
  result.uncommon = first.size() + second.size() - 2 * common;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    result.first.solved[i] /= samples[i];
    result.second.solved[i] /= samples[i];
  }
  if (common > 0) {
    result.comparison = compare_paired(result.first.solved, result.second.solved);
  }
  return result;
}

std::vector<std::string> figures_row(const Pair& pair, const PairedVerdicts& verdicts) {
  const auto both = [](double first, double second, const char* format) {
    return shown(first, format) + " → " + shown(second, format);
  };
  double first_accuracy = json_number(*pair.first, "accuracy");
  double second_accuracy = json_number(*pair.second, "accuracy");
  double first_tpf = json_number(*pair.first, "tpf");
  double second_tpf = json_number(*pair.second, "tpf");
  if (verdicts.comparison && verdicts.uncommon > 0) {
    // Only common problems can be compared.
    first_accuracy = verdicts.first.accuracy();
    second_accuracy = verdicts.second.accuracy();
    first_tpf = verdicts.first.tokens / verdicts.first.forwards;
    second_tpf = verdicts.second.tokens / verdicts.second.forwards;
  }
  std::vector<std::string> row = {pair.model(), pair.task, pair.method,
                                  both(100 * first_accuracy, 100 * second_accuracy, "{:.1f} %")};
  if (verdicts.comparison) {
    const PairedComparison& c = *verdicts.comparison;
    row.push_back(
        fmt::format("{:+.1f} ({:+.1f} to {:+.1f})", 100 * c.difference, 100 * c.low, 100 * c.high));
    row.push_back(c.p_value < 0.001 ? "< 0.001" : fmt::format("{:.3f}", c.p_value));
    row.emplace_back(c.beyond_chance() ? "beyond chance" : "within chance");
  } else {
    row.insert(row.end(), {"–", "–", "no common problem"});
  }
  row.push_back(both(first_tpf, second_tpf, "{:.2f}"));
  row.push_back(shown(second_tpf / first_tpf, "{:.2f}×"));
  // Runs were measured at different times, so compare gains over AR.
  const auto gain = [](const ReportJson& figures) {
    return with_interval(speed_at(figures, 1), "speed_up", "{:.2f}", "×");
  };
  row.push_back(gain(*pair.first));
  row.push_back(gain(*pair.second));
  return row;
}

// Returns the accuracy by rule, for tasks with several rules.
std::string rules_note(const Pair& pair) {
  const auto first = pair.first->find("rule_accuracy");
  const auto second = pair.second->find("rule_accuracy");
  if (first == pair.first->end() || second == pair.second->end() || !first->is_object() ||
      !second->is_object()) {
    return {};
  }
  std::string rules;
  for (const auto& [rule, share] : first->items()) {
    rules += fmt::format("{} {} {} → {}", rules.empty() ? "" : ",", rule,
                         shown(100 * json_number(*first, rule), "{:.1f} %"),
                         shown(100 * json_number(*second, rule), "{:.1f} %"));
  }
  return fmt::format("- {}: by rule{}\n", pair.name(), rules);
}

std::string notes(const Pair& pair, const PairedVerdicts& verdicts) {
  std::string text;
  const std::string a = json_text(*pair.first, "scorer");
  const std::string b = json_text(*pair.second, "scorer");
  if (a != b) {
    text += fmt::format("- {}: scored by {} and {}: the accuracies do not compare\n", pair.name(),
                        a, b);
  }
  if (const std::string settings = differing_settings(*pair.first, *pair.second);
      !settings.empty()) {
    text += fmt::format("- {}: measured with different settings: {}\n", pair.name(), settings);
  }
  text += rules_note(pair);
  if (verdicts.uncommon > 0 && !verdicts.comparison) {
    text += fmt::format(
        "- {}: no problem was put in the same words to both (another prompt style, chat template "
        "or "
        "tokenizer, or other problems): the table has the figures of each, which do not compare\n",
        pair.name());
  } else if (verdicts.uncommon > 0) {
    text += fmt::format(
        "- {}: {} samples are in one of the two only; what the table has but for speeds "
        "is of the others\n",
        pair.name(), verdicts.uncommon);
  }
  return text;
}

std::string flips_section(const Pair& pair, const PairedVerdicts& verdicts) {
  if (verdicts.flips.empty()) {
    return {};
  }
  std::string text = fmt::format("### {}: {} solved by A alone, {} by B alone\n\n", pair.name(),
                                 verdicts.comparison->only_first, verdicts.comparison->only_second);
  TableCells rows = {{"problem", "A", "answer", "B", "answer"}};
  for (std::size_t i = 0; i < std::min(kMostFlips, verdicts.flips.size()); ++i) {
    const auto& [a, b] = verdicts.flips[i];
    const auto with_reason = [](const Sample& sample) {
      return sample.reason.empty() || sample.reason == "–" ? sample.verdict
                                                           : sample.verdict + ": " + sample.reason;
    };
    rows.push_back({a->id, clipped(with_reason(*a), kVerdictWidth),
                    clipped(a->answer, kAnswerWidth), clipped(with_reason(*b), kVerdictWidth),
                    clipped(b->answer, kAnswerWidth)});
  }
  for (auto& row : rows) {
    for (std::string& cell : row) {
      std::ranges::replace(cell, '|', '/');  // Escaped it would exceed its clipped width.
    }
  }
  text += markdown_table(rows, rows[0].size());
  if (verdicts.flips.size() > kMostFlips) {
    text += fmt::format("\n{} more.\n", verdicts.flips.size() - kMostFlips);
  }
  return text + "\n";
}

}  // namespace

std::filesystem::path evaluation_directory_of(const std::filesystem::path& directory) {
  for (const auto& candidate : {directory, directory / "evaluation", directory / "sweep"}) {
    if (std::filesystem::exists(candidate / "summary.json")) {
      return candidate;
    }
  }
  return {};
}

std::string compare_runs(const ComparedRun& first, const ComparedRun& second) {
  const Side a = read_side(first);
  const Side b = read_side(second);
  std::string text = fmt::format("A: {}\nB: {}\n\n## Configuration\n\n", first.directory.string(),
                                 second.directory.string()) +
                     configuration_section(first, second) + "## Figures\n\n";
  const std::vector<Pair> pairs = shared_figures(a, b);
  TableCells rows = {{"model", "task", "method", "accuracy", "B − A, points (95 %)", "p",
                      "difference is", "TPF", "TPF, B / A", "A over its AR, batch 1",
                      "B over its AR, batch 1"}};
  std::string remarks;
  std::string flips;
  for (const Pair& pair : pairs) {
    const Samples first_samples = read_samples(a, pair.first_model, pair.task, pair.method);
    const Samples second_samples = read_samples(b, pair.second_model, pair.task, pair.method);
    const PairedVerdicts verdicts = pair_verdicts(first_samples, second_samples);
    rows.push_back(figures_row(pair, verdicts));
    remarks += notes(pair, verdicts);
    flips += flips_section(pair, verdicts);
  }
  text += pairs.empty() ? "No model, task and method was evaluated in both.\n"
                        : markdown_table(rows, 3);
  remarks += left_over(a, pairs, true, "A") + left_over(b, pairs, false, "B");
  text += (remarks.empty() ? "" : "\n" + remarks) + "\n## Verdicts that differ\n\n";
  return text + (flips.empty() ? "None.\n" : flips);
}

}  // namespace jforge
