#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "results/report/chart.h"
#include "results/report/report_sections.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// Round number of `jforge pretrain` and `finetune`, whose consistency loss is 0.
constexpr std::int32_t kOrdinaryTraining = 0;

using Rounds = std::map<std::int32_t, std::vector<MetricsRow>>;

/// Over all rounds.
struct Curve {
  const char* key;
  const char* figure;
  const char* title;
  ChartAxis y;
  double factor = 1;
  bool loss = true;  ///< Otherwise measured at intervals: dots, not smoothed.
};

const std::array<Curve, 4> kCurves = {
    {{"consistency",
      "loss_consistency",
      "Consistency loss",
      {.label = "divergence from the teacher's prediction (KL)", .logarithmic = true}},
     {"autoregressive",
      "loss_autoregressive",
      "Autoregressive loss",
      {.label = "loss of predicting the next token", .logarithmic = true}},
     {"held_out_accuracy",
      "held_out_accuracy",
      "Accuracy on held-out problems",
      {.label = "problems solved, %"},
      100,
      false},
     {"held_out_tpf",
      "held_out_tpf",
      "Tokens per forward pass on held-out problems",
      {.label = "tokens per forward pass"},
      1,
      false}}};

std::vector<double> column(const std::vector<MetricsRow>& steps, const char* key) {
  std::vector<double> values;
  for (const MetricsRow& row : steps) {
    const auto it = row.values.find(key);
    values.push_back(it == row.values.end() ? std::nan("") : it->second);
  }
  return values;
}

// Exponential moving average over a tenth of the values; skips non-finite ones.
std::vector<double> smoothed(const std::vector<double>& values) {
  const double share = 2 / (std::max(1.0, static_cast<double>(values.size()) / 10) + 1);
  double sum = 0;
  double weight = 0;
  std::vector<double> result;
  for (const double value : values) {
    if (std::isfinite(value)) {
      sum += share * (value - sum);
      weight += share * (1 - weight);
    }
    result.push_back(std::isfinite(value) ? sum / weight : value);
  }
  return result;
}

void write_curve(ReportWriter& report, const Rounds& rounds, const Curve& curve) {
  Chart chart{.title = curve.title, .x = {"training step, round after round"}, .y = curve.y};
  double earlier_steps = 0;
  for (const auto& [round, steps] : rounds) {
    ChartSeries line{"round " + std::to_string(round)};
    line.dots = !curve.loss;
    line.y = column(steps, curve.key);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      line.x.push_back(earlier_steps + static_cast<double>(steps[i].step));
      line.y[i] *= curve.factor;
    }
    earlier_steps = line.x.back();
    if (curve.loss) {
      line.raw = std::move(line.y);
      line.y = smoothed(line.raw);
    }
    const bool has_values = std::ranges::any_of(line.y, [](double y) { return std::isfinite(y); });
    if (has_values && (round != kOrdinaryTraining || curve.key != kCurves[0].key)) {
      chart.series.push_back(std::move(line));
    }
  }
  if (!chart.series.empty()) {
    report.figure(curve.figure,
                  curve.title + std::string(curve.loss ? " over steps, smoothed" : " over steps"),
                  render_svg(chart));
  }
}

}  // namespace

void write_training_section(ReportWriter& report, const Rounds& rounds) {
  TableCells rows = {{"round", "steps", "consistency loss, first → last", "AR loss, first → last",
                      "peak learning rate", "samples a step", "median tokens/s"}};
  for (const auto& [round, steps] : rounds) {
    std::vector<double> speed = column(steps, "tokens_per_second");
    std::ranges::sort(speed);
    const double median = (speed[(speed.size() - 1) / 2] + speed[speed.size() / 2]) / 2;
    const auto ends = [&](const char* key) {
      const std::vector<double> losses = column(steps, key);
      return shown(losses.front(), "{:.4f}") + " → " + shown(losses.back(), "{:.4f}");
    };
    rows.push_back({std::to_string(round), std::to_string(steps.size()),
                    round != kOrdinaryTraining ? ends("consistency") : "–", ends("autoregressive"),
                    shown(std::ranges::max(column(steps, "learning_rate")), "{:.3g}"),
                    shown(std::ranges::max(column(steps, "samples")), "{:.0f}"),
                    shown(median, "{:.0f}")});
  }
  report.text += "## Training\n\n" + markdown_table(rows) + "\n";
  for (const Curve& curve : kCurves) {
    write_curve(report, rounds, curve);
  }
}

namespace {

/// Writes only rounds that asked for cleaning.
void write_cleaning(ReportWriter& report, const std::filesystem::path& run_directory) {
  TableCells rows;
  for (int round = 1;
       std::filesystem::exists(run_directory / fmt::format("round-{}", round) / "generation.json");
       ++round) {
    const auto json =
        read_json_object(run_directory / fmt::format("round-{}", round) / "cleaning.json");
    if (!json) {
      continue;
    }
    TableCells::value_type head = {"round", "kept"};
    TableCells::value_type row = {std::to_string(round),
                                  shown(json_number(*json, "kept"), "{:.0f}")};
    for (const auto& rule : json->value("dropped", ReportJson::array())) {
      head.push_back(json_text(rule, "rule"));
      row.push_back(shown(json_number(rule, "count"), "{:.0f}"));
    }
    if (rows.empty()) {
      rows.push_back(head);
    }
    rows.push_back(row);
  }
  if (!rows.empty()) {
    report.text +=
        "What was trained on, and what cleaning left out:\n\n" + markdown_table(rows) + "\n";
  }
}

}  // namespace

void write_trajectories_section(ReportWriter& report, const std::filesystem::path& run_directory) {
  TableCells rows = {{"round", "block size", "prompts", "tokens", "block TPF", "flipped blocks",
                      "ended by end of sequence"}};
  for (int round = 1;; ++round) {
    const auto json =
        read_json_object(run_directory / fmt::format("round-{}", round) / "generation.json");
    if (!json) {
      break;
    }
    rows.push_back({std::to_string(round), shown(json_number(*json, "block_size"), "{:.0f}"),
                    shown(json_number(*json, "prompts"), "{:.0f}"),
                    shown(json_number(*json, "tokens"), "{:.0f}"),
                    shown(json_number(*json, "block_tpf"), "{:.2f}"),
                    shown(json_number(*json, "flipped_blocks"), "{:.0f}"),
                    shown(100 * json_number(*json, "ended_by_eos") / json_number(*json, "prompts"),
                          "{:.1f} %")});
  }
  if (rows.size() == 1) {
    report.missing.emplace_back("trajectories: made by `jforge run` or `jforge generate`");
    return;
  }
  report.text += "## Trajectories\n\n" + markdown_table(rows) + "\n";
  write_cleaning(report, run_directory);
}

void write_prompts_section(ReportWriter& report, const ReportJson& import) {
  TableCells rows = {{"rule", "dropped"}};
  for (const auto& rule : import.value("dropped", ReportJson::array())) {
    if (!rule.is_object()) {
      throw DataError(
          "prompts_import.json: \"dropped\" is not a list of rules; start the run again to have it "
          "written anew");
    }
    rows.push_back({json_text(rule, "rule"), shown(json_number(rule, "count"), "{:.0f}")});
  }
  report.text += fmt::format("## Prompts\n\n{} read, {} kept.\n\n",
                             shown(json_number(import, "records"), "{:.0f}"),
                             shown(json_number(import, "kept"), "{:.0f}"));
  if (rows.size() > 1) {
    report.text += markdown_table(rows) + "\n";
  }
}

}  // namespace jforge
