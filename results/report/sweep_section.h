#pragma once

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// `sweep`: {"model", "task", "method", "keys", "baseline", "points": [{"settings", figures …}],
/// "further_tasks": [such objects]}, the last optional (results/README.md). Adds absent parts to
/// `report.missing`. Returns each task's settings by tokens per second, and the fastest. Throws
/// DataError if a part is malformed.
std::string write_sweep_section(ReportWriter& report, const ReportJson& sweep);

}  // namespace jforge
