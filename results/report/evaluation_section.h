#pragma once

/// The report's section on evaluation/summary.json: speeds, training trade-offs, and measurement
/// settings.

#include <string>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// The untrained model in summaries. Its greedy decoding is the reference of speed-ups.
inline constexpr const char* kBaseModel = "base";
inline constexpr const char* kReferenceMethod = "ar";

/// Results of a method on a task. `figures` points into the summary.
struct Measured {
  std::string task;
  std::string model;
  std::string method;
  const ReportJson* figures;

  [[nodiscard]] double number(const char* key) const { return json_number(*figures, key); }
};

/// Returns all figures of an evaluation's or a sweep's summary.json, grouped by task, otherwise in
/// the file's order. Throws DataError if "models" is malformed.
[[nodiscard]] std::vector<Measured> all_figures(const ReportJson& summary);

/// Writes the section and returns its tables of accuracy and speed; nothing if `summary` has no
/// model. Throws DataError if "models" is malformed.
std::string write_evaluation_section(ReportWriter& report, const ReportJson& summary);

}  // namespace jforge
