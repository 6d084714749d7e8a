#pragma once

/// Speeds in summary.json and sweep.json (results/README.md "Speeds").

#include <set>
#include <string>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// Returns null if the speed was not measured.
[[nodiscard]] const ReportJson* speed_at(const ReportJson& figures, double batch_prompts);
/// Returns the batch sizes with speeds, ascending.
[[nodiscard]] std::vector<double> speed_batches(const std::vector<const ReportJson*>& figures);
/// Returns "1.38× (1.31–1.45)" from KEY, KEY_low and KEY_high in fmt's `format`, `unit` after the
/// first; "–" if missing.
[[nodiscard]] std::string with_interval(const ReportJson* speed, const std::string& key,
                                        const char* format, const char* unit = "");

/// A method or setting as named in comparisons.
struct NamedFigures {
  std::string name;
  const ReportJson* figures = nullptr;
};

/// Returns "2 ranks of 1 thread"; empty if not recorded.
[[nodiscard]] std::string speed_place(const ReportJson& speed);
/// Returns the distinct speed_place() at a batch size.
[[nodiscard]] std::set<std::string> speed_places(const std::vector<const ReportJson*>& figures,
                                                 double batch_prompts);

/// Returns the fastest method at a batch size and those with overlapping intervals: "jacobi, 1.38×
/// AR (1.31–1.45)", "AR; the next is …", "AR and jacobi cannot be told apart: …". Empty without
/// speeds. If `baseline.figures` is null, compares tokens/s on equal ranks and threads.
[[nodiscard]] std::string fastest_by_clock(const NamedFigures& baseline,
                                           const std::vector<NamedFigures>& methods,
                                           double batch_prompts);

/// Returns a bold sentence per batch size with a remark, or with different ranks or threads.
[[nodiscard]] std::string speed_remarks(const std::vector<const ReportJson*>& figures);

}  // namespace jforge
