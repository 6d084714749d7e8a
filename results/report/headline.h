#pragma once

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// Returns one sentence per task of evaluation/summary.json: the result of model "final", or of the
/// only one, by the method with the highest TPF, compared with "base", and its speed at the
/// smallest batch, if known. Empty without such a method.
[[nodiscard]] std::string headline(const ReportJson& summary);

}  // namespace jforge
