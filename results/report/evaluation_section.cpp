#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include "results/report/chart.h"
#include "results/report/recorded_settings.h"
#include "results/report/report_sections.h"
#include "results/report/speed_figures.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// In order of occurrence. `measured`: Measured or pointers to them.
template <class Range>
std::vector<std::string> model_names(const Range& measured) {
  std::vector<std::string> names;
  for (const std::string& name : std::views::transform(
           measured,
           [](const auto& m) -> const std::string& { return std::invoke(&Measured::model, m); })) {
    if (std::ranges::find(names, name) == names.end()) {
      names.push_back(name);
    }
  }
  return names;
}

// Comparable: one task, scorer and sampling, the same problems.
struct TaskGroup {
  std::string heading;
  std::string alike;     // group_heading() of each
  std::string problems;  // their hash
  std::vector<const Measured*> rows;
};

// Returns "ledger (number, extract-2), 500 problems, temperature 1" (greedy: no sampling).
std::string group_heading(const Measured& m) {
  std::string rule = json_text(*m.figures, "scorer");
  const std::size_t name = rule.find('/');
  rule = name == std::string::npos ? std::string() : rule.substr(name + 1);
  for (std::size_t at = rule.find('/'); at != std::string::npos; at = rule.find('/', at)) {
    rule.replace(at, 1, ", ");
  }
  const std::string sampling = sampling_text(*m.figures);
  return m.task + (rule.empty() ? "" : " (" + rule + ")") +
         shown(m.number("n"), ", {:.0f} problems") + (sampling.empty() ? "" : ", " + sampling);
}

std::vector<TaskGroup> groups_of(const std::vector<Measured>& all) {
  std::vector<TaskGroup> groups;
  for (const Measured& m : all) {
    const std::string alike = group_heading(m);
    const std::string problems = json_text(*m.figures, "problems");
    const auto is_its = [&](const TaskGroup& group) {
      return group.alike == alike && group.problems == problems;
    };
    auto group = std::ranges::find_if(groups, is_its);
    if (group == groups.end()) {
      const bool others = std::ranges::find(groups, alike, &TaskGroup::alike) != groups.end();
      group = groups.insert(
          groups.end(), {alike + (others ? " (other ones than above)" : ""), alike, problems, {}});
    }
    group->rows.push_back(&m);
  }
  return groups;
}

std::string with_accuracy(const ReportJson& figures) {
  const std::string value = shown(100 * json_number(figures, "accuracy"), "{:.1f} %");
  const std::string interval = accuracy_interval(figures);
  return interval == "–" ? value : value + " (" + interval.substr(0, interval.rfind(' ')) + ")";
}

std::string accuracy_table(const TaskGroup& group) {
  TableCells rows = {
      {"model", "method", "block size", "accuracy", "base tests", "TPF", "mean TPF"}};
  for (const Measured* m : group.rows) {
    rows.push_back({m->model, m->method, recorded_setting(*m->figures, "block_size"),
                    with_accuracy(*m->figures), shown(100 * m->number("base_accuracy"), "{:.1f} %"),
                    with_interval(m->figures, "tpf", "{:.2f}"),
                    shown(m->number("tpf_mean"), "{:.2f}")});
  }
  return markdown_table(rows, 2);
}

std::vector<const ReportJson*> figures_of(const TaskGroup& group) {
  std::vector<const ReportJson*> figures;
  for (const Measured* m : group.rows) {
    figures.push_back(m->figures);
  }
  return figures;
}

// Names the fastest method per model and batch size.
std::string fastest_lines(const TaskGroup& group) {
  std::string text;
  for (const std::string& model : model_names(group.rows)) {
    NamedFigures baseline{"AR"};
    std::vector<NamedFigures> methods;
    for (const Measured* m : group.rows) {
      if (m->model == model && m->method == kReferenceMethod) {
        baseline.figures = m->figures;
      } else if (m->model == model) {
        methods.push_back({m->method, m->figures});
      }
    }
    for (const double batch : speed_batches(figures_of(group))) {
      const std::string fastest = fastest_by_clock(baseline, methods, batch);
      if (!fastest.empty()) {
        text +=
            fmt::format("- fastest by the clock, {} at batch {:.0f}: {}\n", model, batch, fastest);
      }
    }
  }
  return text.empty() ? text : text + "\n";
}

// Returns a table of interleaved measurements; empty without any.
std::string speed_table(const TaskGroup& group) {
  const std::vector<double> batches = speed_batches(figures_of(group));
  TableCells rows = {{"model", "method"}};
  for (const double batch : batches) {
    rows[0].insert(rows[0].end(), {fmt::format("batch {:.0f} on", batch),
                                   fmt::format("tokens/s, batch {:.0f}", batch),
                                   fmt::format("over AR, batch {:.0f}", batch)});
  }
  for (const Measured* m : group.rows) {
    std::vector<std::string> row = {m->model, m->method};
    for (const double batch : batches) {
      const ReportJson* const speed = speed_at(*m->figures, batch);
      // Only if values differ.
      const bool apart = speed_places(figures_of(group), batch).size() > 1;
      row.push_back(apart && speed != nullptr ? speed_place(*speed) : "");
      row.push_back(speed == nullptr ? "–"
                                     : shown(json_number(*speed, "tokens_per_second"), "{:.0f}"));
      row.push_back(with_interval(speed, "speed_up", "{:.2f}", "×"));
    }
    rows.push_back(std::move(row));
  }
  return batches.empty() ? std::string()
                         : fmt::format("Speed by the clock, without prefill:\n\n{}\n{}{}",
                                       markdown_table(rows, 2), fastest_lines(group),
                                       speed_remarks(figures_of(group)));
}

// The heading states the sampling.
std::string measurement_table(const TaskGroup& group) {
  TableCells rows = {{"model", "method"}};
  std::ranges::transform(kMethodSettings, std::back_inserter(rows[0]), setting_name);
  rows[0].insert(rows[0].end(), {"ended by EOS", "time-outs", "differs from AR"});
  for (const Measured* m : group.rows) {
    std::vector<std::string> row = {m->model, m->method};
    for (const char* key : kMethodSettings) {
      row.push_back(recorded_setting(*m->figures, key));
    }
    row.insert(row.end(), {shown(m->number("stopped_by_eos"), "{:.0f}"),
                           shown(m->number("timeouts"), "{:.0f}"),
                           m->method == kReferenceMethod
                               ? "–"
                               : shown(m->number("disagreements_with_ar"), "{:.0f} problems")});
    rows.push_back(std::move(row));
  }
  return markdown_table(rows, 2);
}

// Returns the accuracy by rule of tasks with several rules; else empty.
std::string rules_table(const std::vector<Measured>& all) {
  TableCells rows = {{"task", "model", "method", "rule", "accuracy"}};
  for (const Measured& m : all) {
    const auto shares = m.figures->find("rule_accuracy");
    if (shares == m.figures->end() || !shares->is_object()) {
      continue;
    }
    for (const auto& [rule, share] : shares->items()) {
      rows.push_back(
          {m.task, m.model, m.method, rule, shown(100 * json_number(*shares, rule), "{:.1f} %")});
    }
  }
  return rows.size() == 1
             ? std::string()
             : "The same answers by each rule. string is what evalchemy reports and the accuracy "
               "above, minerva the normal form of Lewkowycz et al. (2022).\n\n" +
                   markdown_table(rows, 4) + "\n";
}

// Different scorers or samplings of a task must not be compared.
std::string comparison_warnings(const std::vector<Measured>& all) {
  std::map<std::string, std::set<std::string>> scorers;
  std::map<std::string, std::set<std::string>> samplings;
  for (const Measured& m : all) {
    scorers[m.task].insert(json_text(*m.figures, "scorer"));
    samplings[m.task].insert(sampling_text(*m.figures));
  }
  std::string text;
  for (const auto& [task, names] : scorers) {
    if (names.size() > 1) {
      text += fmt::format(
          "**{}: the tables come from different scorers; their accuracies do not compare.**\n\n",
          task);
    }
  }
  for (const auto& [task, choices] : samplings) {
    if (choices.size() > 1) {
      text += fmt::format(
          "**{}: the tables' answers were not all sampled alike; their figures do not "
          "compare.**\n\n",
          task);
    }
  }
  return text;
}

// Returns "gsm8k jacobi block_size=16 blocks=2", which a label can break at spaces.
std::string group_of(const Measured& m) {
  std::string method = m.method;
  std::ranges::replace(method, ',', ' ');
  const std::size_t settings = method.find('.');
  return m.task + " " + (settings == std::string::npos ? method : method.replace(settings, 1, " "));
}

// Groups are task × method, series are models: before beside after.
Chart bars(const std::vector<Measured>& all, const std::string& title, const ChartAxis& y,
           bool with_reference, double factor, const std::string& key) {
  Chart chart{.title = title, .y = y};
  for (const std::string& model : model_names(all)) {
    chart.series.push_back({model});
  }
  std::vector<std::string>& groups = chart.x.names;
  for (const Measured& m : all) {
    if (!with_reference && m.method == kReferenceMethod) {
      continue;
    }
    auto group = std::ranges::find(groups, group_of(m));
    if (group == groups.end()) {
      group = groups.insert(group, group_of(m));
    }
    ChartSeries& series = *std::ranges::find(chart.series, m.model, &ChartSeries::name);
    series.x.push_back(static_cast<double>(group - groups.begin()));
    series.y.push_back(factor * json_number(*m.figures, key));
    series.low.push_back(factor * json_number(*m.figures, key + "_low"));
    series.high.push_back(factor * json_number(*m.figures, key + "_high"));
  }
  return chart;
}

// Returns the method with the highest TPF.
const Measured* fastest(const std::vector<Measured>& all, const std::string& model,
                        const std::string& task) {
  const Measured* best = nullptr;
  for (const Measured& m : all) {
    if (m.model == model && m.task == task && std::isfinite(m.number("tpf")) &&
        (best == nullptr || m.number("tpf") > best->number("tpf"))) {
      best = &m;
    }
  }
  return best;
}

// At batch 1, where parallel decoding gains most.
void write_speed_figure(ReportWriter& report, const std::vector<Measured>& all) {
  std::vector<Measured> speeds;
  for (const Measured& m : all) {
    if (const ReportJson* const speed = speed_at(*m.figures, 1)) {
      speeds.push_back({m.task, m.model, m.method, speed});
    }
  }
  if (speeds.empty()) {
    report.missing.emplace_back("speed: not measured (evaluate.speed_problems = 0)");
    return;
  }
  report.figure("speed", "Tokens per second at batch 1, without prefill, with 95 % intervals",
                render_svg(bars(speeds, "Decoding speed at batch 1",
                                {.label = "tokens per second, without prefill", .from_zero = true},
                                true, 1, "tokens_per_second")));
}

// Writes a line per model and task.
void write_ablation(ReportWriter& report, const std::vector<Measured>& all) {
  const std::vector<std::string> models = model_names(all);
  const auto trained = std::ranges::count_if(models, [](const auto& m) { return m != kBaseModel; });
  if (trained < 2) {
    report.missing.push_back(
        "ablation table: it compares two or more trained models; evaluate each into the same "
        "directory (`jforge evaluate --model … --out` this directory)");
    return;
  }
  TableCells rows = {{"task", "model", "method", "problems", "accuracy", "TPF", "forwards/token",
                      "over its AR, batch 1"}};
  std::set<std::string> seen;
  for (const Measured& m : all) {
    const Measured* best = fastest(all, m.model, m.task);
    if (best == nullptr || !seen.insert(m.task + "\n" + m.model).second) {
      continue;
    }
    rows.push_back({m.task, m.model, best->method, shown(best->number("n"), "{:.0f}"),
                    with_accuracy(*best->figures), with_interval(best->figures, "tpf", "{:.2f}"),
                    shown(1 / best->number("tpf"), "{:.2f}"),
                    with_interval(speed_at(*best->figures, 1), "speed_up", "{:.2f}", "×")});
  }
  report.text +=
      "## Ablation\n\nEach model with the method that needs the fewest forward passes.\n\n" +
      markdown_table(rows, 3) + "\n";
}

}  // namespace

std::vector<Measured> all_figures(const ReportJson& summary) {
  const auto models = summary.find("models");
  if (models == summary.end() || !models->is_object()) {
    throw DataError("summary.json holds no \"models\"; evaluate again");
  }
  std::vector<Measured> found;
  std::vector<std::string> tasks_in_order;
  for (const auto& [model, tasks] : models->items()) {
    if (!tasks.is_object()) {
      throw DataError("summary.json: \"" + model + "\" holds no tasks");
    }
    for (const auto& [task, methods] : tasks.items()) {
      if (std::ranges::find(tasks_in_order, task) == tasks_in_order.end()) {
        tasks_in_order.push_back(task);
      }
      for (const auto& [method, figures] : methods.items()) {
        if (!figures.is_object()) {
          throw DataError(
              fmt::format("summary.json: {} {} {} holds no figures", model, task, method));
        }
        found.push_back({task, model, method, &figures});
      }
    }
  }
  std::ranges::stable_sort(found, {}, [&](const Measured& m) {
    return std::ranges::find(tasks_in_order, m.task) - tasks_in_order.begin();
  });
  return found;
}

std::string write_evaluation_section(ReportWriter& report, const ReportJson& summary) {
  const std::vector<Measured> all = all_figures(summary);
  if (all.empty()) {
    return {};
  }
  const std::vector<TaskGroup> groups = groups_of(all);
  std::string tables;
  for (const TaskGroup& group : groups) {
    tables +=
        fmt::format("### {}\n\n{}\n{}", group.heading, accuracy_table(group), speed_table(group));
  }
  report.text +=
      "## Accuracy and speed\n\n" + tables +
      "TPF = (tokens − 1) / forward passes after the prefill, which gives the first token, over "
      "all problems; AR has exactly 1. Mean TPF is the mean over answers, as the paper's authors "
      "report it. Intervals, in brackets, are 95 %: Wilson's score interval of the accuracy, the "
      "bootstrap over problems of TPF, Student's t over the repeats of speeds. Speeds come from "
      "interleaved repeats (AR, method, AR, method, …), each over the next few problems; with "
      "several ranks they are those of one rank beside the others. `evaluation/results.csv` has "
      "those with prefill too.\n\n" +
      comparison_warnings(all) + rules_table(all);
  const bool only_reference =
      std::ranges::all_of(all, [](const auto& m) { return m.method == kReferenceMethod; });
  report.figure("tpf", "Tokens per forward pass with 95 % intervals",
                render_svg(bars(all, "Tokens per forward pass",
                                {.label = "tokens per forward pass", .from_zero = true},
                                only_reference, 1, "tpf")));
  report.figure(
      "accuracy", "Accuracy with 95 % intervals",
      render_svg(bars(all, "Accuracy", {.label = "problems solved, %"}, true, 100, "accuracy")));
  write_speed_figure(report, all);
  write_ablation(report, all);
  report.text += "## How it was measured\n\n";
  for (const TaskGroup& group : groups) {
    report.text += fmt::format("### {}\n\n{}\n", group.heading, measurement_table(group));
  }
  return tables;
}

}  // namespace jforge
