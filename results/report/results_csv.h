#pragma once

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// Returns a summary.json as CSV (RFC 4180): a header, then a row per model, task and method.
/// Columns are figures in order of first occurrence, nested ones by path
/// ("speed.0.tokens_per_second"). Missing and null figures are empty. Throws like all_figures().
[[nodiscard]] std::string results_csv(const ReportJson& summary);

}  // namespace jforge
