#pragma once

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// Returns two sentences per task of evaluation/summary.json, what was gained and what it cost:
/// figures of model "final", or of the only one, compared with "base", by the method that is the
/// fastest at the smallest batch or, without speeds, has the highest TPF. Empty without such a
/// method.
[[nodiscard]] std::string headline(const ReportJson& summary);

}  // namespace jforge
