#include "results/report/results_csv.h"

#include <algorithm>
#include <vector>

#include "runtime/error.h"

namespace jforge {

namespace {

constexpr const char* kLineEnd = "\r\n";

/// Quoted as Python's csv module does by default: only if it has to be.
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

/// A row's figures by the path of each, "/speed/0/speed_up".
struct Row {
  std::vector<std::string> keys;
  ReportJson figures;
};

std::vector<Row> rows_of(const ReportJson& models) {
  std::vector<Row> rows;
  for (const auto& [model, tasks] : models.items()) {
    for (const auto& [task, methods] : tasks.items()) {
      for (const auto& [method, figures] : methods.items()) {
        rows.push_back({{model, task, method}, figures.flatten()});
      }
    }
  }
  return rows;
}

}  // namespace

std::string results_csv(const ReportJson& summary) {
  const auto models = summary.find("models");
  if (models == summary.end() || !models->is_object()) {
    throw DataError("summary.json holds no \"models\"; evaluate again");
  }
  const std::vector<Row> rows = rows_of(*models);
  std::vector<std::string> columns;
  for (const Row& row : rows) {
    for (const auto& [path, value] : row.figures.items()) {
      if (std::ranges::find(columns, path) == columns.end()) {
        columns.push_back(path);
      }
    }
  }
  std::string text = "model,task,method";
  for (std::string name : columns) {
    std::ranges::replace(name, '/', '.');
    // "method" is a figure, too: the method without its settings.
    text += "," + csv_cell(name == ".method" ? "method_name" : name.substr(1));
  }
  text += kLineEnd;
  for (const Row& row : rows) {
    text += csv_cell(row.keys[0]) + "," + csv_cell(row.keys[1]) + "," + csv_cell(row.keys[2]);
    for (const std::string& path : columns) {
      const auto found = row.figures.find(path);
      text += "," + (found == row.figures.end() ? std::string() : csv_cell(cell_of(*found)));
    }
    text += kLineEnd;
  }
  return text;
}

}  // namespace jforge
