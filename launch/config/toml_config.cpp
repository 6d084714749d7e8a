#include "launch/config/toml_config.h"

#include <algorithm>
#include <charconv>

#include "launch/config/bounded_toml.h"
#include "runtime/nearest_name.h"

namespace jforge {

namespace {

std::optional<std::size_t> as_index(const std::string& text) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(index)
                                                                  : std::nullopt;
}

// "rounds.1" → ("rounds", 1); "train" → ("train", nothing).
std::pair<std::string, std::optional<std::size_t>> split_section(const std::string& section) {
  const std::size_t dot = section.find('.');
  if (dot == std::string::npos) {
    return {section, std::nullopt};
  }
  return {section.substr(0, dot), as_index(section.substr(dot + 1))};
}

}  // namespace

const ConfigField* find_field(const std::vector<ConfigField>& fields, const std::string& path) {
  const auto found =
      std::ranges::find_if(fields, [&](const ConfigField& field) { return field.path() == path; });
  return found == fields.end() ? nullptr : &*found;
}

TomlDocument::TomlDocument(const std::string& text, const std::string& file_name)
    : table_(parse_bounded_toml(text, file_name)), file_name_(file_name) {}

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
    const std::size_t size = array == nullptr ? 0 : array->size();
    toml::node* element = *index < 1 || *index > size ? nullptr : array->get(*index - 1);
    target = element == nullptr ? nullptr : element->as_table();
    if (target == nullptr) {
      throw ConfigError(
          fmt::format("--set {}: there is no [[{}]] number {}; they are counted from 1 and the "
                      "configuration has {}",
                      assignment, section, *index, size));
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
    parsed = parse_bounded_toml("value = " + text, "");
  } catch (const ConfigError&) {
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
    node = node->as_array()->get(*index - 1);
  }
  const toml::table* table = node == nullptr ? nullptr : node->as_table();
  return table == nullptr ? nullptr : table->get(key);
}

bool TomlDocument::holds(const ConfigField& field) const {
  return find(field.section, field.key) != nullptr;
}

void TomlDocument::refuse_unknown_keys(const std::vector<ConfigField>& fields) const {
  std::vector<std::string> paths;
  std::vector<std::string> sections;
  for (const ConfigField& field : fields) {
    paths.push_back(field.path());
    const std::string section = split_section(field.section).first;
    if (std::ranges::find(sections, section) == sections.end()) {
      sections.push_back(section);
    }
  }
  const auto check = [&](const std::string& section, const std::string& key,
                         const toml::node& node) {
    const std::string path = section + "." + key;
    if (std::ranges::find(paths, path) != paths.end()) {
      return;
    }
    std::string help = did_you_mean(path, paths);
    if (help.empty()) {
      std::vector<std::string> keys;
      for (const ConfigField& field : fields) {
        if (field.section == section) {
          keys.push_back(field.key);
        }
      }
      help = fmt::format("; known there are {}", fmt::join(keys, ", "));
    }
    throw ConfigError(fmt::format("{}: unknown key {}{}", place(node), path, help));
  };
  for (const auto& [name, node] : table_) {
    const std::string section(name.str());
    if (!node.is_table() && !node.is_array_of_tables()) {
      throw ConfigError(fmt::format("{}: {} stands outside any section", place(node), section));
    }
    if (std::ranges::find(sections, section) == sections.end()) {
      std::string help = did_you_mean(section, sections);
      if (help.empty()) {
        help = fmt::format("; known are {}", fmt::join(sections, ", "));
      }
      throw ConfigError(fmt::format("{}: unknown section [{}]{}", place(node), section, help));
    }
    if (const toml::table* table = node.as_table()) {
      for (const auto& [key, value] : *table) {
        check(section, std::string(key.str()), value);
      }
    } else {
      const toml::array& array = *node.as_array();
      for (std::size_t i = 0; i < array.size(); ++i) {
        for (const auto& [key, value] : *array.get_as<toml::table>(i)) {
          check(fmt::format("{}.{}", section, i + 1), std::string(key.str()), value);
        }
      }
    }
  }
}

void TomlDocument::apply(const std::vector<ConfigField>& fields, ConfigFor command) const {
  refuse_unknown_keys(fields);
  for (const ConfigField& field : fields) {
    const toml::node* node = find(field.section, field.key);
    if (node == nullptr) {
      continue;
    }
    const std::string name = fmt::format("{}: {}", place(*node), field.path());
    if (!field.applies_to.contains(command)) {
      throw ConfigError(
          fmt::format("{} has no effect in {}; leave it out", name, to_string(command)));
    }
    if (const ConfigField* other = find_field(fields, field.unless);
        other != nullptr && holds(*other)) {
      throw ConfigError(
          fmt::format("{} has no effect beside {}; leave out one of them", name, field.unless));
    }
    if (const auto expected = field.read(*node)) {
      throw ConfigError(fmt::format("{} must be {}", name, *expected));
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
    const ConfigField* other = find_field(fields, field.unless);
    if (value && (other == nullptr || !other->write())) {
      text += field.key + " = " + *value + "\n";
    }
  }
  return text;
}

Identity identity_values(const std::vector<ConfigField>& fields) {
  Identity values;
  for (const ConfigField& field : fields) {
    if (field.kind == FieldKind::identity) {
      const std::string value = field.write().value_or("");
      if (std::ranges::find(field.same_results, value) == field.same_results.end()) {
        values[field.path()] = value;
      }
      values.changes[field.path()] = field.change;
    }
  }
  return values;
}

}  // namespace jforge
