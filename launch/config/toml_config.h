#pragma once

/// Reads a TOML file into a configuration through its list of fields. Unknown keys and wrong types
/// are ConfigErrors that name file, line, key and the expected value.

#include <string>
#include <vector>

#include "checkpoints/identity.h"
#include "launch/config/field.h"

namespace jforge {

/// Parsed TOML with the file's name, before it meets any configuration.
class TomlDocument {
 public:
  /// Throws ConfigError with file, line and the parser's reason.
  TomlDocument(const std::string& text, const std::string& file_name);

  /// Applies "section.key=value" (or "rounds.1.key=value", counted from 1): value is TOML, or a
  /// bare text. Throws ConfigError.
  void set(const std::string& assignment);
  /// Number of tables in the array `name`; 0 when absent.
  [[nodiscard]] std::size_t array_size(const std::string& name) const;
  /// Fills every field that the document holds. Throws ConfigError if a key is unknown or removed,
  /// does not apply to `command`, or has no effect (ConfigField::unless).
  void apply(const std::vector<ConfigField>& fields, ConfigFor command = ConfigFor::run) const;
  /// Whether the document gives `field` a value, of whatever type.
  [[nodiscard]] bool holds(const ConfigField& field) const;

 private:
  [[nodiscard]] std::string place(const toml::node& node) const;
  [[nodiscard]] const toml::node* find(const std::string& section, const std::string& key) const;
  void refuse_unknown_keys(const std::vector<ConfigField>& fields) const;

  toml::table table_;
  std::string file_name_;
};

/// The field at `path`; null when there is none.
[[nodiscard]] const ConfigField* find_field(const std::vector<ConfigField>& fields,
                                            const std::string& path);
/// The resolved configuration as TOML text; keys that are not set or without effect are left out.
[[nodiscard]] std::string write_toml(const std::vector<ConfigField>& fields);
/// Identity fields as path → TOML text of the value ("" when not set).
[[nodiscard]] Identity identity_values(const std::vector<ConfigField>& fields);

}  // namespace jforge
