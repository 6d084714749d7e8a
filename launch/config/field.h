#pragma once

/// A configuration is a list of fields. A field is the only description of its key; the reader, the
/// resolved file, the identity of a run and the reference follow from it.

#include <fmt/format.h>
#include <toml++/toml.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoints/identity.h"
#include "data/tokenizer/chat_template.h"
#include "runtime/error.h"

namespace jforge {

enum class FieldKind : std::uint8_t {
  identity,     ///< Part of the run's identity: resuming with another value is refused.
  operational,  ///< May differ between attempts (paths of logs, batch sizes of decoding, …).
};

/// Which command a configuration is for.
enum class ConfigFor : std::uint8_t {
  run,       ///< `jforge run` and the commands that read parts of its configuration.
  pretrain,  ///< `jforge pretrain`
  finetune,  ///< `jforge finetune`
};
using Commands = std::set<ConfigFor>;
inline const Commands kAllCommands = {ConfigFor::run, ConfigFor::pretrain, ConfigFor::finetune};
/// "jforge run"
[[nodiscard]] std::string to_string(ConfigFor command);

/// A TOML string that reads back as `text`.
[[nodiscard]] std::string toml_quoted(std::string_view text);

/// One key of the configuration file.
struct ConfigField {
  std::string section;  ///< "train"; for arrays of tables "rounds.1", counted from 1.
  std::string key;
  FieldKind kind;
  std::string meaning;  ///< One line of Markdown for the reference; "Required." where it is.
  std::string schema;   ///< JSON schema of the value: {"type": "integer"}.
  /// Takes the value of a node. Returns the expected form if the node does not fit.
  std::function<std::optional<std::string>(const toml::node&)> read;
  /// The value as TOML text; nothing when it is not set.
  std::function<std::optional<std::string>()> write;
  /// Other commands refuse the key. Their runs record its default all the same.
  Commands applies_to = kAllCommands;
  KeyChange change = {};  ///< Of an identity key.
  /// Values that compute what earlier versions without the key did: the identity leaves them out.
  std::vector<std::string> same_results = {};
  /// Path of a key that, once set, leaves this one without effect: both together are refused.
  std::string unless = {};

  [[nodiscard]] std::string path() const { return section + "." + key; }

  /// Adds to `same_results` these names of an enumeration, or a number, or "not set".
  void same_as_before(std::initializer_list<const char*> names);
  void same_as_before(double value);
  void unset_as_before() { same_results.emplace_back(); }
};

/// Names of an enumeration's values, in the order of the table.
template <class Enum>
struct EnumName {
  Enum value;
  const char* name;
};

// Readers and writers by type. `read_value` returns the expected form, or nothing on success.
std::optional<std::string> read_value(const toml::node& node, bool& value);
std::optional<std::string> read_value(const toml::node& node, double& value);
std::optional<std::string> read_value(const toml::node& node, std::string& value);
std::optional<std::string> read_value(const toml::node& node, std::filesystem::path& value);
std::optional<std::string> read_value(const toml::node& node, std::vector<std::string>& value);
std::optional<std::string> read_value(const toml::node& node, TemplateArguments& value);
inline std::optional<std::string> read_value(const toml::node& node, float& value) {
  double wide = 0;
  auto problem = read_value(node, wide);
  if (!problem) {
    value = static_cast<float>(wide);
  }
  return problem;
}
/// Returns the complaint about a node that is not a whole number from `lowest` to `highest`.
std::string expected_whole_number(const toml::node& node, std::int64_t lowest,
                                  std::int64_t highest);
template <std::integral T>
requires(!std::same_as<T, bool>) std::optional<std::string> read_value(const toml::node& node,
                                                                       T& value) {
  const auto number = node.value_exact<std::int64_t>();
  if (!number || !std::in_range<T>(*number)) {
    using Limits = std::numeric_limits<T>;
    // TOML has no whole numbers beyond 64 bits with a sign.
    constexpr auto kHighest = std::in_range<std::int64_t>(Limits::max())
                                  ? static_cast<std::int64_t>(Limits::max())
                                  : std::numeric_limits<std::int64_t>::max();
    return expected_whole_number(node, Limits::min(), kHighest);
  }
  value = static_cast<T>(*number);
  return std::nullopt;
}
/// A value of the type that `value` holds.
template <class... T>
std::optional<std::string> read_value(const toml::node& node, std::variant<T...>& value) {
  return std::visit([&](auto& held) { return read_value(node, held); }, value);
}
template <class T>
std::optional<std::string> read_value(const toml::node& node, std::optional<T>& value) {
  T inner{};
  auto problem = read_value(node, inner);
  if (!problem) {
    value = std::move(inner);
  }
  return problem;
}

// JSON schema by type; the value itself does not matter.
std::string value_schema(bool);
std::string value_schema(double);
std::string value_schema(const std::string&);
std::string value_schema(const std::filesystem::path&);
std::string value_schema(const std::vector<std::string>&);
std::string value_schema(const TemplateArguments&);
inline std::string value_schema(float value) { return value_schema(double{value}); }
template <std::integral T>
requires(!std::same_as<T, bool>) std::string value_schema(T) {
  return std::is_unsigned_v<T> ? R"({"type": "integer", "minimum": 0})" : R"({"type": "integer"})";
}
template <class... T>
std::string value_schema(const std::variant<T...>& value) {
  return std::visit([](const auto& held) { return value_schema(held); }, value);
}
template <class T>
std::string value_schema(const std::optional<T>&) {
  return value_schema(T{});
}

std::optional<std::string> write_value(bool value);
std::optional<std::string> write_value(double value);
std::optional<std::string> write_value(float value);
std::optional<std::string> write_value(const std::string& value);
std::optional<std::string> write_value(const std::filesystem::path& value);
std::optional<std::string> write_value(const std::vector<std::string>& value);
/// Nothing when there are none. Requires: every name is_template_argument().
std::optional<std::string> write_value(const TemplateArguments& value);
template <std::integral T>
requires(!std::same_as<T, bool>) std::optional<std::string> write_value(T value) {
  return fmt::format("{}", value);
}
template <class... T>
std::optional<std::string> write_value(const std::variant<T...>& value) {
  return std::visit([](const auto& held) { return write_value(held); }, value);
}
template <class T>
std::optional<std::string> write_value(const std::optional<T>& value) {
  return value ? write_value(*value) : std::nullopt;
}

/// Collects fields. `in()` sets the common properties of the fields that follow.
class FieldList {
 public:
  void in(std::string section, Commands applies_to = kAllCommands, KeyChange change = {}) {
    section_ = std::move(section);
    applies_to_ = std::move(applies_to);
    change_ = change;
  }

  template <class T>
  void add(const char* key, T& value, FieldKind kind, std::string meaning) {
    add(
        key, kind, std::move(meaning), value_schema(value),
        [&value](const toml::node& node) { return read_value(node, value); },
        [&value] { return write_value(value); });
  }

  /// For a value with forms of its own.
  void add(const char* key, FieldKind kind, std::string meaning, std::string schema,
           std::function<std::optional<std::string>(const toml::node&)> read,
           std::function<std::optional<std::string>()> write);

  template <class Enum, std::size_t N>
  void add_enum(const char* key, Enum& value, FieldKind kind, const EnumName<Enum> (&names)[N],
                std::string meaning) {
    const std::span<const EnumName<Enum>> table(names);
    std::string schema = R"({"enum": [)";
    for (const auto& entry : table) {
      schema += std::string(schema.ends_with('[') ? "\"" : ", \"") + entry.name + "\"";
    }
    add(
        key, kind, std::move(meaning), schema + "]}",
        [&value, table](const toml::node& node) -> std::optional<std::string> {
          const auto text = node.value_exact<std::string>();
          std::string expected = "one of";
          for (const auto& entry : table) {
            if (text && *text == entry.name) {
              value = entry.value;
              return std::nullopt;
            }
            expected += std::string(" \"") + entry.name + "\"";
          }
          return expected;
        },
        [&value, table]() -> std::optional<std::string> {
          for (const auto& entry : table) {
            if (entry.value == value) {
              return toml_quoted(entry.name);
            }
          }
          throw InternalError("an enumeration value has no name in the configuration");
        });
  }

  /// The field added last, to say more about it.
  [[nodiscard]] ConfigField& last() { return fields_.back(); }
  [[nodiscard]] std::vector<ConfigField> take() { return std::move(fields_); }

 private:
  std::string section_;
  Commands applies_to_ = kAllCommands;
  KeyChange change_ = {};
  std::vector<ConfigField> fields_;
};

}  // namespace jforge
