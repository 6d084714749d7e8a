#pragma once

#include <string>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// The untrained model in summaries; its greedy decoding is the reference of speed-ups.
inline constexpr const char* kBaseModel = "base";
inline constexpr const char* kReferenceMethod = "ar";

/// A method's results on a task. `figures` points into the summary.
struct Measured {
  std::string task;
  std::string model;
  std::string method;
  const ReportJson* figures;

  [[nodiscard]] double number(const char* key) const { return json_number(*figures, key); }
};

/// Returns all figures of a summary.json, grouped by task, else in the file's order. Throws
/// DataError if "models" is malformed.
[[nodiscard]] std::vector<Measured> all_figures(const ReportJson& summary);

/// Returns the tables of accuracy and speed; empty without models. Throws like all_figures().
std::string write_evaluation_section(ReportWriter& report, const ReportJson& summary);

}  // namespace jforge
