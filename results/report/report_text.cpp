#include "results/report/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {

// Not a continuation byte of UTF-8.
bool begins_letter(char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }

std::size_t letters(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_letter));
}

// "| " before a cell and " " after it.
constexpr std::size_t kCellFrame = 3;

bool holds_something(const TableCells& rows, std::size_t column) {
  return rows.size() == 1 ||
         std::any_of(rows.begin() + 1, rows.end(), [&](const std::vector<std::string>& row) {
           return !row[column].empty() && row[column] != "–";
         });
}

// Control characters of ASCII, and U+0080 to U+009F, would command a terminal.
void blank_controls(std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    if (byte(i) < 0x20 || byte(i) == 0x7F) {
      text[i] = ' ';
    } else if (byte(i) == 0xC2 && i + 1 < text.size() && byte(i + 1) >= 0x80 &&
               byte(i + 1) < 0xA0) {
      text.replace(i, 2, " ");
    }
  }
}

TableCells escaped(TableCells rows) {
  for (auto& row : rows) {
    for (std::string& cell : row) {
      blank_controls(cell);
      for (std::size_t at = cell.find('|'); at != std::string::npos; at = cell.find('|', at + 2)) {
        cell.insert(at, 1, '\\');
      }
    }
  }
  return rows;
}

std::string table_of(const TableCells& rows, const std::vector<std::size_t>& columns,
                     const std::vector<std::size_t>& widths) {
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (const std::size_t i : columns) {
      text += "| " + rows[r][i] + std::string(widths[i] - letters(rows[r][i]) + 1, ' ');
    }
    text += "|\n";
    if (r == 0) {
      for (const std::size_t i : columns) {
        text += "|" + std::string(widths[i] + 2, '-');
      }
      text += "|\n";
    }
  }
  return text;
}

}  // namespace

std::string markdown_table(const TableCells& cells, std::size_t keys) {
  const TableCells rows = escaped(cells);
  std::vector<std::size_t> widths(rows.front().size(), 3);
  for (const auto& row : rows) {
    expect(row.size() == widths.size(), "a table's rows have different numbers of cells");
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], letters(row[i]));
    }
  }
  std::vector<std::size_t> key_columns;
  std::size_t key_width = 1;  // the bar after the last column
  for (std::size_t i = 0; i < std::min(keys, widths.size()); ++i) {
    key_columns.push_back(i);
    key_width += widths[i] + kCellFrame;
  }
  std::string text;
  std::vector<std::size_t> columns = key_columns;
  std::size_t width = key_width;
  for (std::size_t i = key_columns.size(); i < widths.size(); ++i) {
    if (!holds_something(rows, i)) {
      continue;
    }
    const std::size_t wider = widths[i] + kCellFrame;
    if (width + wider > kTableWidth && columns.size() > key_columns.size()) {
      text += table_of(rows, columns, widths) + "\n";
      columns = key_columns;
      width = key_width;
    }
    columns.push_back(i);
    width += wider;
  }
  return text + table_of(rows, columns, widths);
}

std::string clipped(const std::string& text, std::size_t width) {
  if (letters(text) <= width) {
    return text;
  }
  std::size_t end = 0;
  for (std::size_t shown = 0; shown < width; ++end) {
    shown += begins_letter(text[end]) ? 1U : 0U;  // this character and the "…" before it
  }
  --end;
  return text.substr(0, end) + "…";
}

std::optional<ReportJson> read_json_object(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  ReportJson json = try_bounded_json<ReportJson>(read_sealed(path));
  if (!json.is_object()) {
    throw DataError(path.string() + " is not a JSON object; remove it and run the phase again");
  }
  json.erase(kSealKey);
  return json;
}

double json_number(const ReportJson& object, const std::string& key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>()
                                               : std::numeric_limits<double>::quiet_NaN();
}

std::string json_text(const ReportJson& object, const std::string& key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "–";
}

std::string shown(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "–";
}

std::string accuracy_interval(const ReportJson& figures) {
  const double low = 100 * json_number(figures, "accuracy_low");
  const double high = 100 * json_number(figures, "accuracy_high");
  return std::isfinite(low + high) ? fmt::format("{:.1f}–{:.1f} %", low, high) : "–";
}

std::string interval_text(const ReportJson& figures, const std::string& key, const char* format) {
  const double low = json_number(figures, key + "_low");
  const double high = json_number(figures, key + "_high");
  return std::isfinite(low + high) ? shown(low, format) + "–" + shown(high, format) : "–";
}

std::string file_name_of(const std::string& name) {
  std::string result = name;
  std::ranges::replace_if(
      result, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return result;
}

void ReportWriter::figure(const std::string& name, const std::string& caption,
                          const std::string& svg) {
  publish_file(directory / "figures" / (name + ".svg"), svg);
  text += fmt::format("![{}](figures/{}.svg)\n\n", caption, name);
}

}  // namespace jforge
