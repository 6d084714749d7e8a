#pragma once

/// Measured speeds as summary.json and sweep.json hold them (results/README.md "Speeds").

#include <set>
#include <string>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// The "speed" of a method's figures at this batch size; null where it was not measured.
[[nodiscard]] const ReportJson* speed_at(const ReportJson& figures, double batch_prompts);
/// Batch sizes at which these figures have speeds, ascending.
[[nodiscard]] std::vector<double> speed_batches(const std::vector<const ReportJson*>& figures);
/// A figure with its interval, "1.38× (1.31–1.45)": KEY, KEY_low and KEY_high of `speed`, each in
/// fmt's `format`, and `unit` behind the first. "–" where there is no figure, or `speed` is null.
[[nodiscard]] std::string with_interval(const ReportJson* speed, const std::string& key,
                                        const char* format, const char* unit = "");

/// A method or setting as the comparison of speeds names it.
struct NamedFigures {
  std::string name;
  const ReportJson* figures = nullptr;
};

/// "2 ranks of 1 thread": what a speed was measured on; empty where it does not say.
[[nodiscard]] std::string speed_place(const ReportJson& speed);
/// The different ones of all speeds at a batch size.
[[nodiscard]] std::set<std::string> speed_places(const std::vector<const ReportJson*>& figures,
                                                 double batch_prompts);

/// Returns what is fastest by the clock at one batch size: "jacobi, 1.38× AR (1.31–1.45)", "AR; the
/// next is …", "AR and jacobi cannot be told apart: …"; methods whose intervals overlap the fastest
/// one's are named. Empty if no speed was measured. `baseline.figures` may be null: then tokens per
/// second are compared, if all were measured on the same ranks and threads.
[[nodiscard]] std::string fastest_by_clock(const NamedFigures& baseline,
                                           const std::vector<NamedFigures>& methods,
                                           double batch_prompts);

/// One bold sentence for each batch size at which a remark says that speeds mean little, and one
/// for each at which they were measured on different ranks or threads.
[[nodiscard]] std::string speed_remarks(const std::vector<const ReportJson*>& figures);

}  // namespace jforge
