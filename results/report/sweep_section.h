#pragma once

/// The report's part on sweep/sweep.json: every measured setting, the surface through them, and the
/// roofline with its knee.

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// `sweep`: {"model", "task", "method", "keys", "baseline", "points": [{"settings", figures …}],
/// "further_tasks": [such objects], "roofline": [{"rows", "seconds", "seconds_low",
/// "seconds_high"}]}, the last two optional (results/README.md). What is absent is named in
/// `report.missing`. Returns each task's settings, sorted by tokens per second, and what is
/// fastest. Throws DataError when a part that is there is not as documented.
std::string write_sweep_section(ReportWriter& report, const ReportJson& sweep);

}  // namespace jforge
