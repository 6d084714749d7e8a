#pragma once

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// Returns one sentence per task of `summary` (evaluation/summary.json): the result of model
/// "final", or of the only one, by the method with the most tokens per forward, compared with
/// "base" if present, and its speed at the smallest batch if measured. Empty if only greedy
/// decoding was evaluated.
[[nodiscard]] std::string headline(const ReportJson& summary);

}  // namespace jforge
