#pragma once

/// The report's part on evaluation/summary.json: the speed table, what trained models trade, and
/// how it was measured.

#include <string>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// Name of the untrained model in summaries, whose greedy decoding is the reference of speed-ups.
inline constexpr const char* kBaseModel = "base";
inline constexpr const char* kReferenceMethod = "ar";

/// What one method did on one task. `figures` lives as long as the summary.
struct Measured {
  std::string task;
  std::string model;
  std::string method;
  const ReportJson* figures;

  [[nodiscard]] double number(const char* key) const { return json_number(*figures, key); }
};

/// All figures of an evaluation's or a sweep's summary.json, grouped by task; within it in the
/// order of the file. Throws DataError when "models" is not as documented.
[[nodiscard]] std::vector<Measured> all_figures(const ReportJson& summary);

/// Writes the section; returns its tables of accuracy and speed. Nothing when `summary` holds no
/// model. Throws DataError when "models" is not as documented.
std::string write_evaluation_section(ReportWriter& report, const ReportJson& summary);

}  // namespace jforge
