#pragma once

/// An evaluation's figures as a table for other programs.

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// `summary` (an evaluation's or a sweep's summary.json) as CSV (RFC 4180): a header, then a row
/// for each model, task and method. Columns are the figures in the order in which they first occur;
/// a nested figure has its path as its name ("speed.0.tokens_per_second"). Cells are empty if there
/// is no such figure, or it is null. Throws as all_figures().
[[nodiscard]] std::string results_csv(const ReportJson& summary);

}  // namespace jforge
