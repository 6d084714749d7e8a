#include "launch/config/toml_config.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace jforge {

namespace {

// Levenshtein distance, for "did you mean".
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

std::optional<std::size_t> as_index(const std::string& text) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(index)
                                                                  : std::nullopt;
}

// "rounds.0" → ("rounds", 0); "train" → ("train", nothing).
std::pair<std::string, std::optional<std::size_t>> split_section(const std::string& section) {
  const std::size_t dot = section.find('.');
  if (dot == std::string::npos) {
    return {section, std::nullopt};
  }
  return {section.substr(0, dot), as_index(section.substr(dot + 1))};
}

}  // namespace

TomlDocument::TomlDocument(const std::string& text, const std::string& file_name)
    : file_name_(file_name) {
  try {
    table_ = toml::parse(text, file_name);
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        fmt::format("{}:{}: {}", file_name, error.source().begin.line, error.description()));
  }
}

std::string TomlDocument::place(const toml::node& node) const {
  // Nodes that came from --set were parsed without a file.
  const toml::source_region& source = node.source();
  return source.path == nullptr ? "--set" : fmt::format("{}:{}", file_name_, source.begin.line);
}

void TomlDocument::set(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  const std::size_t dot = equals == std::string::npos ? equals : assignment.rfind('.', equals);
  if (equals == std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 == equals) {
    throw ConfigError("--set " + assignment + ": expected section.key=value");
  }
  const std::string path = assignment.substr(0, dot);
  const auto [section, index] = split_section(path);
  if (section != path && !index) {
    throw ConfigError(fmt::format("--set {}: there is no section {}; expected section.key=value",
                                  assignment, path));
  }
  const std::string key = assignment.substr(dot + 1, equals - dot - 1);
  const std::string text = assignment.substr(equals + 1);
  toml::table* target = nullptr;
  if (index) {
    toml::array* array = table_[section].as_array();
    toml::node* element =
        array == nullptr || *index >= array->size() ? nullptr : array->get(*index);
    target = element == nullptr ? nullptr : element->as_table();
    if (target == nullptr) {
      throw ConfigError(
          fmt::format("--set {}: there is no [[{}]] number {}", assignment, section, *index));
    }
  } else {
    table_.insert(section, toml::table{});
    target = table_[section].as_table();
    if (target == nullptr) {
      throw ConfigError("--set " + assignment + ": " + section + " is not a table");
    }
  }
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + text);
  } catch (const toml::parse_error&) {
    // Not TOML: a bare text, so that paths need no quotes on the command line.
    parsed.insert_or_assign("value", text);
  }
  parsed["value"].visit([&](auto& node) { target->insert_or_assign(key, std::move(node)); });
}

std::size_t TomlDocument::array_size(const std::string& name) const {
  const toml::node* node = table_.get(name);
  if (node == nullptr) {
    return 0;
  }
  const toml::array* array = node->as_array();
  if (array == nullptr || !array->is_array_of_tables()) {
    throw ConfigError(
        fmt::format("{}: {} must be an array of tables: write [[{}]]", place(*node), name, name));
  }
  return array->size();
}

const toml::node* TomlDocument::find(const std::string& section, const std::string& key) const {
  const auto [name, index] = split_section(section);
  const toml::node* node = table_.get(name);
  if (node != nullptr && index) {
    node = node->as_array()->get(*index);
  }
  const toml::table* table = node == nullptr ? nullptr : node->as_table();
  return table == nullptr ? nullptr : table->get(key);
}

bool TomlDocument::holds(const ConfigField& field) const {
  return find(field.section, field.key) != nullptr;
}

void TomlDocument::refuse_unknown_keys(const std::vector<ConfigField>& fields) const {
  const auto check = [&](const std::string& path, const toml::node& node) {
    const auto known = std::ranges::find(fields, path, &ConfigField::path);
    if (known != fields.end()) {
      return;
    }
    const auto nearest = std::ranges::min_element(
        fields, {}, [&](const ConfigField& field) { return edit_distance(field.path(), path); });
    throw ConfigError(
        fmt::format("{}: unknown key {}; did you mean {}?", place(node), path, nearest->path()));
  };
  for (const auto& [name, node] : table_) {
    const std::string section(name.str());
    const bool known_section = std::ranges::any_of(fields, [&](const ConfigField& field) {
      return split_section(field.section).first == section;
    });
    // With keys inside, the first of them is named below, with the nearest known one.
    if (!known_section && node.is_table() && node.as_table()->empty()) {
      throw ConfigError(fmt::format("{}: unknown section [{}]", place(node), section));
    }
    if (const toml::table* table = node.as_table()) {
      for (const auto& [key, value] : *table) {
        check(section + "." + std::string(key.str()), value);
      }
    } else if (const toml::array* array = node.as_array();
               array != nullptr && array->is_array_of_tables()) {
      for (std::size_t i = 0; i < array->size(); ++i) {
        for (const auto& [key, value] : *array->get_as<toml::table>(i)) {
          check(fmt::format("{}.{}.{}", section, i, std::string(key.str())), value);
        }
      }
    } else {
      throw ConfigError(fmt::format("{}: {} stands outside any section", place(node), section));
    }
  }
}

void TomlDocument::apply(const std::vector<ConfigField>& fields) const {
  refuse_unknown_keys(fields);
  for (const ConfigField& field : fields) {
    const toml::node* node = find(field.section, field.key);
    if (node == nullptr) {
      continue;
    }
    if (const auto expected = field.read(*node)) {
      throw ConfigError(fmt::format("{}: {} must be {}", place(*node), field.path(), *expected));
    }
  }
}

std::string write_toml(const std::vector<ConfigField>& fields) {
  std::string text;
  std::string section;
  for (const ConfigField& field : fields) {
    const auto value = field.write();
    if (field.section != section) {
      section = field.section;
      const auto [name, index] = split_section(section);
      text += (text.empty() ? "" : "\n") + (index ? "[[" + name + "]]\n" : "[" + name + "]\n");
    }
    if (value) {
      text += field.key + " = " + *value + "\n";
    }
  }
  return text;
}

std::map<std::string, std::string> identity_values(const std::vector<ConfigField>& fields) {
  std::map<std::string, std::string> values;
  for (const ConfigField& field : fields) {
    if (field.kind == FieldKind::identity) {
      values[field.path()] = field.write().value_or("");
    }
  }
  return values;
}

}  // namespace jforge
