#pragma once

/// Measured speeds in summary.json and sweep.json (results/README.md "Speeds").

#include <set>
#include <string>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// Returns the method's "speed" at this batch size; null if it was not measured.
[[nodiscard]] const ReportJson* speed_at(const ReportJson& figures, double batch_prompts);
/// Returns the batch sizes with speeds, ascending.
[[nodiscard]] std::vector<double> speed_batches(const std::vector<const ReportJson*>& figures);
/// Returns "1.38× (1.31–1.45)" from KEY, KEY_low and KEY_high of `speed`, in fmt's `format`, with
/// `unit` after the first; "–" if the figure is missing or `speed` is null.
[[nodiscard]] std::string with_interval(const ReportJson* speed, const std::string& key,
                                        const char* format, const char* unit = "");

/// A method or setting, as named in comparisons of speed.
struct NamedFigures {
  std::string name;
  const ReportJson* figures = nullptr;
};

/// Returns where a speed was measured, "2 ranks of 1 thread"; empty if unknown.
[[nodiscard]] std::string speed_place(const ReportJson& speed);
/// Returns the distinct places of speeds at a batch size.
[[nodiscard]] std::set<std::string> speed_places(const std::vector<const ReportJson*>& figures,
                                                 double batch_prompts);

/// Returns the fastest method by the clock at one batch size ("jacobi, 1.38× AR (1.31–1.45)", "AR;
/// the next is …", "AR and jacobi cannot be told apart: …") and the methods whose intervals overlap
/// its own. Empty without speeds. If `baseline.figures` is null, compares tokens per second,
/// provided that all were measured on the same ranks and threads.
[[nodiscard]] std::string fastest_by_clock(const NamedFigures& baseline,
                                           const std::vector<NamedFigures>& methods,
                                           double batch_prompts);

/// Returns a bold sentence for each batch size whose speeds are doubtful by a remark, and for each
/// with speeds from different ranks or threads.
[[nodiscard]] std::string speed_remarks(const std::vector<const ReportJson*>& figures);

}  // namespace jforge
