#pragma once

/// The first sentence of a report.

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// Returns one sentence for each task of `summary` (evaluation/summary.json): what the model
/// "final", or the only one, reaches by the method with the most tokens per forward, beside "base"
/// if that is there, and its speed at the smallest batch if that was measured. Empty if nothing but
/// greedy decoding was evaluated.
[[nodiscard]] std::string headline(const ReportJson& summary);

}  // namespace jforge
