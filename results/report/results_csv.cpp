#include <algorithm>
#include <vector>

#include "results/report/report_sections.h"

namespace jforge {

namespace {

constexpr const char* kLineEnd = "\r\n";

/// Quotes only if necessary, like Python's csv.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + "\"";
}

std::string cell_of(const ReportJson& value) {
  return value.is_null()     ? std::string()
         : value.is_string() ? value.get<std::string>()
                             : value.dump();
}

}  // namespace

std::string results_csv(const ReportJson& summary) {
  const std::vector<Measured> rows = all_figures(summary);
  std::vector<ReportJson> figures;  // By path, such as "/speed/0/speed_up", for each row.
  std::vector<std::string> columns;
  for (const Measured& row : rows) {
    figures.push_back(row.figures->flatten());
    for (const auto& [path, value] : figures.back().items()) {
      if (std::ranges::find(columns, path) == columns.end()) {
        columns.push_back(path);
      }
    }
  }
  std::string text = "model,task,method";
  for (std::string name : columns) {
    std::ranges::replace(name, '/', '.');
    // "method" is also a figure: the method without settings.
    text += "," + csv_cell(name == ".method" ? "method_name" : name.substr(1));
  }
  text += kLineEnd;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += csv_cell(rows[i].model) + "," + csv_cell(rows[i].task) + "," + csv_cell(rows[i].method);
    for (const std::string& path : columns) {
      const auto found = figures[i].find(path);
      text += "," + (found == figures[i].end() ? std::string() : csv_cell(cell_of(*found)));
    }
    text += kLineEnd;
  }
  return text;
}

}  // namespace jforge
