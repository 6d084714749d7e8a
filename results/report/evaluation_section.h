#pragma once

/// The report's part on evaluation/summary.json: the speed table, what trained models trade, and
/// how it was measured.

#include <string>

#include "results/report/report_text.h"

namespace jforge {

/// Name of the untrained model in summaries, whose greedy decoding is the reference of speed-ups.
inline constexpr const char* kBaseModel = "base";
inline constexpr const char* kReferenceMethod = "ar";

/// Writes the section; returns its tables of accuracy and speed. Nothing when `summary` holds no
/// model. Throws DataError when "models" is not as documented.
std::string write_evaluation_section(ReportWriter& report, const ReportJson& summary);

}  // namespace jforge
