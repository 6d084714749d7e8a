#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "results/report/metrics_reader.h"
#include "results/report/report_text.h"

namespace jforge {

void write_training_section(ReportWriter& report,
                            const std::map<std::int32_t, std::vector<MetricsRow>>& rounds);
/// Reads round-R/generation.json. Throws DataError if one is damaged.
void write_trajectories_section(ReportWriter& report, const std::filesystem::path& run_directory);
/// `import`: prompts_import.json.
void write_prompts_section(ReportWriter& report, const ReportJson& import);

}  // namespace jforge
