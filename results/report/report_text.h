#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace jforge {

using ReportJson = nlohmann::ordered_json;
/// Rows of cells; the first row is the head.
using TableCells = std::vector<std::vector<std::string>>;

/// In characters, so that a terminal shows a table whole.
inline constexpr std::size_t kTableWidth = 100;

/// Returns a Markdown table with aligned columns; escapes cells. The first `keys` columns identify
/// a row. Other columns are left out if all cells are "–" or empty. A table wider than kTableWidth
/// is split, and each part repeats the keys. Throws InternalError if rows differ in length.
[[nodiscard]] std::string markdown_table(const TableCells& cells, std::size_t keys = 1);
/// Returns at most `width` characters of `text`, with "…" as the last if cut.
[[nodiscard]] std::string clipped(const std::string& text, std::size_t width);

/// Returns nothing if the file is missing. Throws DataError if it is not a JSON object.
[[nodiscard]] std::optional<ReportJson> read_json_object(const std::filesystem::path& path);
/// Returns NaN if there is no number.
[[nodiscard]] double json_number(const ReportJson& object, const std::string& key);
/// Returns "–" if there is no text.
[[nodiscard]] std::string json_text(const ReportJson& object, const std::string& key);
/// Formats `value` with fmt; "–" if it is not finite.
[[nodiscard]] std::string shown(double value, const char* format);
/// Returns "98.0–99.4 %" from accuracy_low and accuracy_high, or "–".
[[nodiscard]] std::string accuracy_interval(const ReportJson& figures);
/// Returns "4.93–5.08" from KEY_low and KEY_high in fmt's `format`, or "–".
[[nodiscard]] std::string interval_text(const ReportJson& figures, const std::string& key,
                                        const char* format);
/// Replaces all but letters and digits by "_", for figures' names.
[[nodiscard]] std::string file_name_of(const std::string& name);

struct ReportWriter {
  std::filesystem::path directory;
  std::string text = {};
  std::vector<std::string> missing = {};  ///< Absent parts, for the last section.

  /// Publishes figures/NAME.svg and includes it.
  void figure(const std::string& name, const std::string& caption, const std::string& svg);
};

}  // namespace jforge
