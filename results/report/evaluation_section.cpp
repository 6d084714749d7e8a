#include "results/report/evaluation_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "results/report/svg_plot.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// One line of the summary: what one method did on one task.
struct Measured {
  std::string task;
  std::string model;
  std::string method;
  const ReportJson* figures;

  [[nodiscard]] double number(const char* key) const { return json_number(*figures, key); }
};

// Grouped by task, as the tables are; within it in the order of the file.
std::vector<Measured> all_figures(const ReportJson& models) {
  std::vector<Measured> found;
  std::vector<std::string> tasks_in_order;
  for (const auto& [model, tasks] : models.items()) {
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

const Measured* reference_of(const std::vector<Measured>& all, const std::string& model,
                             const std::string& task) {
  const auto found = std::ranges::find_if(all, [&](const Measured& m) {
    return m.model == model && m.task == task && m.method == kReferenceMethod;
  });
  return found == all.end() ? nullptr : &*found;
}

// Speed of `m` over that of greedy decoding by `model`; NaN where it was not measured, or with
// other ranks or batches, which would be compared instead.
double speed_up(const std::vector<Measured>& all, const Measured& m, const std::string& model) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Measured* reference = reference_of(all, model, m.task);
  if (reference == nullptr) {
    return nan;
  }
  for (const char* key : {"ranks", "batch_prompts"}) {
    // Written so that a number that is not there, or null because samples differ in it, is refused.
    if (!(m.number(key) <= reference->number(key) && m.number(key) >= reference->number(key))) {
      return nan;
    }
  }
  return m.number("tokens_per_second") / reference->number("tokens_per_second");
}

std::vector<std::string> model_names(const std::vector<Measured>& all) {
  std::vector<std::string> names;
  for (const Measured& m : all) {
    if (std::ranges::find(names, m.model) == names.end()) {
      names.push_back(m.model);
    }
  }
  return names;
}

std::string interval(const Measured& m) {
  const double low = m.number("accuracy_low");
  const double high = m.number("accuracy_high");
  return std::isfinite(low) && std::isfinite(high)
             ? fmt::format("{:.1f}–{:.1f} %", 100 * low, 100 * high)
             : "–";
}

// Tokens per forward over the baseline's, with its interval.
std::string tpf_ratio_text(const Measured& m) {
  const double low = m.number("tpf_ratio_low");
  const double high = m.number("tpf_ratio_high");
  return shown(m.number("tpf_ratio"), "{:.2f}×") + (std::isfinite(low) && std::isfinite(high)
                                                        ? fmt::format(" ({:.2f}–{:.2f})", low, high)
                                                        : "");
}

// With the base tests' own share, of tasks that add further tests to them.
std::string accuracy_text(const Measured& m) {
  const double base = m.number("base_accuracy");
  return shown(100 * m.number("accuracy"), "{:.1f} %") +
         (std::isfinite(base) ? fmt::format(" (base tests {:.1f} %)", 100 * base) : "");
}

std::string speed_table(const std::vector<Measured>& all) {
  const std::vector<std::string> models = model_names(all);
  const bool against_base =
      models.size() > 1 && std::ranges::find(models, kBaseModel) != models.end();
  TableCells rows = {{"task", "model", "method", "TPF", "TPF over AR", "tokens/s", "with prefill",
                      "speed-up over AR", "accuracy", "95 % interval", "problems"}};
  const auto behind_speed_up = [](std::vector<std::string>& row) { return row.begin() + 8; };
  if (against_base) {
    rows[0].insert(behind_speed_up(rows[0]), "over base AR");
  }
  for (const Measured& m : all) {
    rows.push_back({m.task, m.model, m.method, shown(m.number("tpf"), "{:.2f}"), tpf_ratio_text(m),
                    shown(m.number("tokens_per_second"), "{:.0f}"),
                    shown(m.number("tokens_per_second_with_prefill"), "{:.0f}"),
                    shown(speed_up(all, m, m.model), "{:.2f}×"), accuracy_text(m), interval(m),
                    shown(m.number("n"), "{:.0f}")});
    if (against_base) {
      rows.back().insert(behind_speed_up(rows.back()),
                         shown(speed_up(all, m, kBaseModel), "{:.2f}×"));
    }
  }
  return markdown_table(rows);
}

std::string measurement_table(const std::vector<Measured>& all) {
  TableCells rows = {{"task", "model", "method", "block size", "window", "max. new tokens",
                      "scorer", "ended by EOS", "time-outs", "differs from AR", "ranks", "batch"}};
  for (const Measured& m : all) {
    rows.push_back(
        {m.task, m.model, m.method, shown(m.number("block_size"), "{:.0f}"),
         json_text(*m.figures, "window"), shown(m.number("max_new_tokens"), "{:.0f}"),
         json_text(*m.figures, "scorer"), shown(m.number("stopped_by_eos"), "{:.0f}"),
         shown(m.number("timeouts"), "{:.0f}"),
         m.method == kReferenceMethod ? "–"
                                      : shown(m.number("disagreements_with_ar"), "{:.0f} problems"),
         shown(m.number("ranks"), "{:.0f}"), shown(m.number("batch_prompts"), "{:.0f}")});
  }
  return markdown_table(rows);
}

// pass@k of methods that draw several samples for a problem; empty when there is none.
std::string samples_table(const std::vector<Measured>& all) {
  TableCells rows = {{"task", "model", "method", "samples per problem", "pass@k"}};
  for (const Measured& m : all) {
    const auto pass_at = m.figures->find("pass_at");
    if (pass_at == m.figures->end() || !pass_at->is_object()) {
      continue;
    }
    std::string text;
    for (const auto& [k, share] : pass_at->items()) {
      text += fmt::format("{}pass@{} {}", text.empty() ? "" : ", ", k,
                          shown(100 * json_number(*pass_at, k), "{:.1f} %"));
    }
    rows.push_back(
        {m.task, m.model, m.method, shown(m.number("samples_per_problem"), "{:.0f}"), text});
  }
  return rows.size() > 1 ? markdown_table(rows) + "\n" : std::string();
}

// Figures of different scorers must not be read side by side without being told.
std::string scorer_warning(const std::vector<Measured>& all) {
  std::map<std::string, std::set<std::string>> scorers;
  for (const Measured& m : all) {
    scorers[m.task].insert(json_text(*m.figures, "scorer"));
  }
  std::string text;
  for (const auto& [task, names] : scorers) {
    if (names.size() > 1) {
      text += fmt::format(
          "**{}: the rows come from different scorers; their accuracies do not compare.**\n\n",
          task);
    }
  }
  return text;
}

// "jacobi.block_size=8" in words that a label can be broken between.
std::string group_of(const Measured& m) {
  std::string method = m.method;
  std::ranges::replace(method, '.', ' ');
  return m.task + " " + method;
}

// Groups are task × method, series are models, so that before and after stand side by side.
BarChart bars(const std::vector<Measured>& all, const std::string& title, const std::string& label,
              bool with_reference, double factor, const char* value, const char* low,
              const char* high) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  BarChart chart{title, label, {}, model_names(all), {}};
  const auto wanted = [&](const Measured& m) {
    return with_reference || m.method != kReferenceMethod;
  };
  for (const Measured& m : all) {
    const std::string group = group_of(m);
    if (wanted(m) && std::ranges::find(chart.groups, group) == chart.groups.end()) {
      chart.groups.push_back(group);
    }
  }
  const std::vector<std::vector<double>> empty(chart.series.size(),
                                               std::vector<double>(chart.groups.size(), nan));
  chart.values = chart.low = chart.high = empty;
  for (const Measured& m : all) {
    if (!wanted(m)) {
      continue;
    }
    const auto s =
        static_cast<std::size_t>(std::ranges::find(chart.series, m.model) - chart.series.begin());
    const auto g = static_cast<std::size_t>(std::ranges::find(chart.groups, group_of(m)) -
                                            chart.groups.begin());
    chart.values[s][g] = factor * m.number(value);
    chart.low[s][g] = factor * m.number(low);
    chart.high[s][g] = factor * m.number(high);
  }
  return chart;
}

// The method that needs the fewest forward passes, of one model and task.
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

// What each way of training trades: one line for each model and task.
void write_ablation(ReportWriter& report, const std::vector<Measured>& all) {
  const std::vector<std::string> models = model_names(all);
  const auto trained = std::ranges::count_if(models, [](const auto& m) { return m != kBaseModel; });
  if (trained < 2) {
    report.missing.push_back(
        "ablation table: it compares two or more trained models; evaluate each into the same "
        "directory (`jforge evaluate --model … --out` this directory)");
    return;
  }
  TableCells rows = {{"task", "model", "method", "accuracy", "95 % interval", "iterations/token",
                      "TPF", "speed-up over base AR"}};
  std::set<std::string> seen;
  for (const Measured& m : all) {
    const Measured* best = fastest(all, m.model, m.task);
    if (best == nullptr || !seen.insert(m.task + "\n" + m.model).second) {
      continue;
    }
    rows.push_back({m.task, m.model, best->method,
                    shown(100 * best->number("accuracy"), "{:.1f} %"), interval(*best),
                    shown(1 / best->number("tpf"), "{:.2f}"), shown(best->number("tpf"), "{:.2f}"),
                    shown(speed_up(all, *best, kBaseModel), "{:.2f}×")});
  }
  report.text +=
      "## Ablation\n\nEach model with the method that needs the fewest forward passes.\n\n" +
      markdown_table(rows) + "\n";
}

}  // namespace

std::string write_evaluation_section(ReportWriter& report, const ReportJson& summary) {
  if (!summary.contains("models") || !summary["models"].is_object()) {
    throw DataError("summary.json holds no \"models\"; evaluate again");
  }
  const std::vector<Measured> all = all_figures(summary["models"]);
  if (all.empty()) {
    return {};
  }
  const std::string table = speed_table(all);
  report.text +=
      "## Accuracy and speed\n\n" + table +
      "\nTPF = generated tokens / forward passes over all problems, prefill excluded. "
      "Tokens/s: of all ranks, over the slowest rank's decoding seconds without prefill, and with "
      "it. Speeds are compared only where ranks and batch are the same. AR: one token per forward "
      "pass. Intervals, also those in brackets, are the bootstrap's over problems, 95 %.\n\n" +
      scorer_warning(all) + samples_table(all);
  const bool only_reference =
      std::ranges::all_of(all, [](const auto& m) { return m.method == kReferenceMethod; });
  report.figure(
      "tpf", "Tokens per forward pass",
      render_svg(bars(all, "Tokens per forward pass", "TPF", only_reference, 1, "tpf", "", "")));
  BarChart accuracy = bars(all, "Accuracy", "problems solved, %", true, 100, "accuracy",
                           "accuracy_low", "accuracy_high");
  accuracy.decimals = 1;
  report.figure("accuracy", "Accuracy with 95 % intervals", render_svg(accuracy));
  BarChart speed =
      bars(all, "Decoding speed", "tokens/s without prefill", true, 1, "tokens_per_second", "", "");
  speed.decimals = 0;
  report.figure("speed", "Tokens per second without prefill", render_svg(speed));
  write_ablation(report, all);
  report.text += "## How it was measured\n\n" + measurement_table(all) + "\n";
  return table;
}

}  // namespace jforge
