#include <fmt/format.h>

#include <array>
#include <chrono>
#include <string_view>

#include "coordinator/run_journal.h"
#include "runtime/durable_file.h"

namespace jforge {

namespace {

/// Escapes backslashes, quotation marks and line feeds.
std::string label(std::string_view value) {
  std::string text;
  for (const char byte : value) {
    if (byte == '\n') {
      text += "\\n";
      continue;
    }
    if (byte == '\\' || byte == '"') {
      text += '\\';
    }
    text += byte;
  }
  return '"' + text + '"';
}

std::string head(std::string_view name, std::string_view help) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n", name, help);
}

struct NumberMetric {
  const char* key;  ///< In run.json.
  const char* name;
  const char* help;
};
constexpr std::array<NumberMetric, 6> kNumbers{
    {{"attempt", "jforge_run_attempt", "How often the run was started."},
     {"ranks", "jforge_run_ranks", "Processes of the job."},
     {"step", "jforge_run_phase_done", "What is done of the phase, in its unit."},
     {"total", "jforge_run_phase_total", "What there is to do in the phase."},
     {"eta_seconds", "jforge_run_phase_eta_seconds", "Time left in the phase."},
     {"tokens_per_second", "jforge_run_tokens_per_second", "Tokens trained or generated."}}};
constexpr std::array<const char*, 4> kStatuses{"running", "interrupted", "finished", "failed"};

}  // namespace

std::string run_metrics(const std::string& run, const nlohmann::json& status) {
  const std::string of_run = "run=" + label(run);
  const std::string now = status.value("status", "");
  std::string text = head("jforge_run_status", "1 for the status that the run has, else 0.");
  for (const char* candidate : kStatuses) {
    text += fmt::format("jforge_run_status{{{},status={}}} {}\n", of_run, label(candidate),
                        now == candidate ? 1 : 0);
  }
  text += head("jforge_run_info", "What the run is doing, and where.");
  // A failed run's phase is its error.
  text += fmt::format("jforge_run_info{{{},phase={},unit={},host={},version={}}} 1\n", of_run,
                      label(now == "failed" ? "" : status.value("phase", "")),
                      label(status.value("unit", "")), label(status.value("host", "")),
                      label(status.value("version", "")));
  for (const NumberMetric& metric : kNumbers) {
    if (const auto value = status.find(metric.key); value != status.end() && value->is_number()) {
      text += head(metric.name, metric.help) +
              fmt::format("{}{{{}}} {}\n", metric.name, of_run, value->get<double>());
    }
  }
  const std::chrono::duration<double> epoch = std::chrono::system_clock::now().time_since_epoch();
  text += head("jforge_run_updated_timestamp_seconds", "When this file was written (Unix time).");
  return text +
         fmt::format("jforge_run_updated_timestamp_seconds{{{}}} {:.0f}\n", of_run, epoch.count());
}

void write_run_metrics(const std::filesystem::path& run_directory, const nlohmann::json& status) {
  replace_file(run_directory / "metrics.prom", run_metrics(run_directory.string(), status));
}

}  // namespace jforge
