// The configuration reference in README.md names every key, with its true default and kind.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "launch/config/job_fields.h"

namespace jforge {
namespace {

struct Row {
  std::string default_text;
  std::string kind;
};

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result;
  std::string cell;
  for (std::size_t i = 1; i < line.size(); ++i) {
    // "\|" is a bar inside a cell.
    if (line[i] == '|' && line[i - 1] != '\\') {
      const std::size_t first = cell.find_first_not_of(' ');
      const std::size_t last = cell.find_last_not_of(' ');
      result.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
      cell.clear();
    } else {
      cell += line[i];
    }
  }
  return result;
}

std::string without_ticks(const std::string& text) {
  return text.size() >= 2 && text.front() == '`' && text.back() == '`'
             ? text.substr(1, text.size() - 2)
             : text;
}

// "section.key" → row, from the tables under "### `[section]`" in README's "## Configuration".
std::map<std::string, Row> documented_keys() {
  const char* const source = std::getenv("JFORGE_SOURCE_DIR");
  const std::filesystem::path path =
      std::filesystem::path(source == nullptr ? "." : source) / "README.md";
  std::ifstream stream(path);
  EXPECT_TRUE(stream) << path;
  std::map<std::string, Row> rows;
  bool inside = false;
  std::string section;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("## ")) {
      inside = line.starts_with("## Configuration");
      section.clear();
    } else if (inside && line.starts_with("### `[")) {
      const std::size_t begin = line.find_first_not_of('[', line.find('['));
      section = line.substr(begin, line.find(']') - begin);
    } else if (inside && !section.empty() && line.starts_with("| `")) {
      const std::vector<std::string> parts = cells(line);
      EXPECT_EQ(parts.size(), 4U) << line;
      if (parts.size() == 4) {
        EXPECT_FALSE(parts[3].empty()) << line;
        EXPECT_TRUE(rows.insert({section + "." + without_ticks(parts[0]),
                                 {without_ticks(parts[1]), parts[2]}})
                        .second)
            << parts[0] << " is documented twice";
      }
    }
  }
  return rows;
}

// Fields as the reference names them: all rounds are alike, so they stand there as one.
std::map<std::string, Row> actual_keys() {
  JobConfig job;
  job.rounds.resize(1);
  PretrainConfig pretrain;
  std::vector<ConfigField> fields = job_fields(job);
  for (ConfigField& field : pretrain_fields(pretrain)) {
    if (field.section == "pretrain") {
      fields.push_back(std::move(field));
    }
  }
  std::map<std::string, Row> keys;
  for (const ConfigField& field : fields) {
    const std::string section = field.section == "rounds.0" ? "rounds" : field.section;
    std::string text = field.write().value_or("not set");
    // TOML has two kinds of quotes; the reference uses one.
    std::replace(text.begin(), text.end(), '\'', '"');
    keys[section + "." + field.key] = {
        text, field.kind == FieldKind::identity ? "identity" : "operational"};
  }
  return keys;
}

TEST(Readme, NamesEveryKeyWithItsDefaultAndKind) {
  const std::map<std::string, Row> documented = documented_keys();
  for (const auto& [key, row] : actual_keys()) {
    const auto found = documented.find(key);
    if (found == documented.end()) {
      ADD_FAILURE() << "README.md does not name " << key << " (default " << row.default_text << ", "
                    << row.kind << ")";
      continue;
    }
    EXPECT_EQ(found->second.default_text, row.default_text) << key;
    EXPECT_EQ(found->second.kind, row.kind) << key;
  }
}

TEST(Readme, NamesNoKeyThatDoesNotExist) {
  const std::map<std::string, Row> actual = actual_keys();
  for (const auto& [key, row] : documented_keys()) {
    EXPECT_TRUE(actual.contains(key)) << "README.md names " << key << ", which does not exist";
  }
}

}  // namespace
}  // namespace jforge
