#include "results/report/training_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "results/report/svg_plot.h"
#include "runtime/error.h"

namespace jforge {

namespace {
// The round of `jforge pretrain` and `jforge finetune`, which have no teacher: their metrics record
// 0 as the consistency loss.
constexpr std::int32_t kOrdinaryTraining = 0;
}  // namespace

void write_training_section(ReportWriter& report,
                            const std::map<std::int32_t, std::vector<MetricsRow>>& rounds) {
  TableCells rows = {{"round", "steps", "consistency loss, first → last", "AR loss, first → last",
                      "peak learning rate", "samples a step", "median tokens/s"}};
  LineChart consistency{
      "Consistency loss", "step", "KL(teacher ‖ student), as train.reduction has it", true, {}};
  LineChart autoregressive{"Autoregressive loss", "step", "of train.ar_loss", true, {}};
  for (const auto& [round, steps] : rounds) {
    const auto column = [&](const char* key) {
      std::vector<double> values;
      for (const MetricsRow& row : steps) {
        const auto it = row.values.find(key);
        values.push_back(it == row.values.end() ? std::numeric_limits<double>::quiet_NaN()
                                                : it->second);
      }
      return values;
    };
    std::vector<double> x;
    for (const MetricsRow& row : steps) {
      x.push_back(static_cast<double>(row.step));
    }
    const std::vector<double> kl = column("consistency");
    const std::vector<double> ce = column("autoregressive");
    std::vector<double> speed = column("tokens_per_second");
    std::ranges::sort(speed);
    const double median = (speed[(speed.size() - 1) / 2] + speed[speed.size() / 2]) / 2;
    const auto ends = [](const std::vector<double>& losses) {
      return shown(losses.front(), "{:.4f}") + " → " + shown(losses.back(), "{:.4f}");
    };
    const bool distilled = round != kOrdinaryTraining;
    rows.push_back({std::to_string(round), std::to_string(steps.size()), distilled ? ends(kl) : "–",
                    ends(ce), shown(std::ranges::max(column("learning_rate")), "{:.3g}"),
                    shown(std::ranges::max(column("samples")), "{:.0f}"), shown(median, "{:.0f}")});
    const std::string name = "round " + std::to_string(round);
    if (distilled) {
      consistency.series.push_back({name, x, kl});
    }
    autoregressive.series.push_back({name, x, ce});
  }
  report.text += "## Training\n\n" + markdown_table(rows) + "\n";
  if (!consistency.series.empty()) {
    report.figure("loss_consistency", "Consistency loss over steps", render_svg(consistency));
  }
  report.figure("loss_autoregressive", "Autoregressive loss over steps",
                render_svg(autoregressive));
}

namespace {

/// What cleaning left out in each round that it was asked for in.
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
