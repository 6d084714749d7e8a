#pragma once

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// Returns an evaluation's or a sweep's summary.json as CSV (RFC 4180): a header and a row for each
/// model, task and method. Columns are figures in order of first occurrence; a nested figure is
/// named by its path ("speed.0.tokens_per_second"). Missing and null figures are empty. Throws as
/// all_figures() does.
[[nodiscard]] std::string results_csv(const ReportJson& summary);

}  // namespace jforge
