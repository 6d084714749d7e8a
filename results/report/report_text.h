#pragma once

/// Text and JSON helpers of the report's parts.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace jforge {

using ReportJson = nlohmann::ordered_json;
/// Rows of cells; the first row is the head.
using TableCells = std::vector<std::vector<std::string>>;

/// Characters that a line of a table may take, so that a terminal shows it whole.
inline constexpr std::size_t kTableWidth = 100;

/// A Markdown table whose columns line up, so that it reads well as plain text too; a cell may hold
/// any text: bars are escaped, and line breaks become spaces. The first
/// `keys` columns say what a row is about. Of the others those that hold nothing ("–" or no text in
/// every row) are left out; where a line would be wider than kTableWidth the table is cut into
/// several, an empty line between them, each of which begins with the keys. Throws InternalError
/// when a row has not the head's number of cells.
[[nodiscard]] std::string markdown_table(const TableCells& cells, std::size_t keys = 1);
/// `text`, cut to `width` characters of which the last is then "…".
[[nodiscard]] std::string clipped(const std::string& text, std::size_t width);

/// The file as JSON, nothing when it is not there. Throws DataError naming the file when it is no
/// JSON object.
[[nodiscard]] std::optional<ReportJson> read_json_object(const std::filesystem::path& path);
/// The number under `key`, NaN when there is none.
[[nodiscard]] double json_number(const ReportJson& object, const std::string& key);
/// The text under `key`, else "–".
[[nodiscard]] std::string json_text(const ReportJson& object, const std::string& key);
/// `value` in fmt's `format`, "–" when it is not finite.
[[nodiscard]] std::string shown(double value, const char* format);
/// "98.0–99.4 %": "accuracy_low" and "accuracy_high" of figures as in summary.json; "–" without.
[[nodiscard]] std::string accuracy_interval(const ReportJson& figures);
/// "4.93–5.08": KEY_low and KEY_high, each in fmt's `format`; "–" without.
[[nodiscard]] std::string interval_text(const ReportJson& figures, const std::string& key,
                                        const char* format);
/// For names of figures: letters and digits stay, all else becomes "_".
[[nodiscard]] std::string file_name_of(const std::string& name);

/// report.md being written, and its figures.
struct ReportWriter {
  std::filesystem::path directory;
  std::string text = {};
  std::vector<std::string> missing = {};  ///< What this run does not hold, for the last section.

  /// Publishes figures/NAME.svg and shows it.
  void figure(const std::string& name, const std::string& caption, const std::string& svg);
};

}  // namespace jforge
