#include "launch/config/field.h"

#include <sstream>

namespace jforge {

std::string toml_quoted(std::string_view text) {
  std::ostringstream stream;
  stream << toml::value<std::string>(std::string(text));
  return stream.str();
}

std::string to_string(ConfigFor command) {
  switch (command) {
    case ConfigFor::run:
      return "jforge run";
    case ConfigFor::pretrain:
      return "jforge pretrain";
    case ConfigFor::finetune:
      return "jforge finetune";
  }
  throw InternalError("a command without configuration");
}

void ConfigField::same_as_before(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    same_results.push_back(toml_quoted(name));
  }
}

void ConfigField::same_as_before(double value) {
  same_results.push_back(write_value(value).value());
}

void FieldList::add(const char* key, FieldKind kind, std::string meaning, std::string schema,
                    std::function<std::optional<std::string>(const toml::node&)> read,
                    std::function<std::optional<std::string>()> write) {
  fields_.push_back({section_, key, kind, std::move(meaning), std::move(schema), std::move(read),
                     std::move(write), applies_to_, change_});
}

std::string expected_whole_number(const toml::node& node, std::int64_t lowest,
                                  std::int64_t highest) {
  // --set takes what TOML cannot read, more than 64 bits too, for a text.
  const std::string text = node.value_exact<std::string>().value_or("");
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  const bool beyond = text.size() >= sign + std::numeric_limits<std::int64_t>::digits10 + 1 &&
                      text.find_first_not_of("0123456789", sign) == std::string::npos;
  if (node.is_integer() || beyond) {
    return fmt::format("a whole number from {} to {}", lowest, highest);
  }
  return lowest == 0 ? "a whole number that is not negative" : "a whole number";
}

std::optional<std::string> read_value(const toml::node& node, bool& value) {
  const auto flag = node.value_exact<bool>();
  if (!flag) {
    return "true or false";
  }
  value = *flag;
  return std::nullopt;
}

std::optional<std::string> read_value(const toml::node& node, double& value) {
  if (!node.is_number()) {
    return "a number";
  }
  value = *node.value<double>();
  return std::nullopt;
}

std::optional<std::string> read_value(const toml::node& node, std::string& value) {
  const auto text = node.value_exact<std::string>();
  if (!text) {
    return "a text in quotes";
  }
  value = *text;
  return std::nullopt;
}

std::optional<std::string> read_value(const toml::node& node, std::filesystem::path& value) {
  std::string text;
  auto problem = read_value(node, text);
  if (!problem) {
    value = text;
  }
  return problem;
}

std::optional<std::string> read_value(const toml::node& node, std::vector<std::string>& value) {
  constexpr const char* kExpected = "an array of texts";
  const toml::array* array = node.as_array();
  if (array == nullptr) {
    return kExpected;
  }
  std::vector<std::string> texts;
  for (const toml::node& element : *array) {
    const auto text = element.value_exact<std::string>();
    if (!text) {
      return kExpected;
    }
    texts.push_back(*text);
  }
  value = std::move(texts);
  return std::nullopt;
}

std::optional<std::string> read_value(const toml::node& node, TemplateArguments& value) {
  constexpr const char* kExpected =
      "a table of the template's variables, each true, false, a whole number or a text in quotes";
  const toml::table* table = node.as_table();
  if (table == nullptr) {
    return kExpected;
  }
  TemplateArguments arguments;
  for (const auto& [key, element] : *table) {
    const std::string name(key.str());
    TemplateArguments::mapped_type& argument = arguments[name];
    if (const auto flag = element.value_exact<bool>()) {
      argument = *flag;
    } else if (const auto number = element.value_exact<std::int64_t>()) {
      argument = *number;
    } else if (const auto text = element.value_exact<std::string>()) {
      argument = *text;
    } else {
      return kExpected;
    }
    if (!is_template_argument(name)) {
      return fmt::format("{}; \"{}\" names none", kExpected, name);
    }
  }
  value = std::move(arguments);
  return std::nullopt;
}

std::string value_schema(bool) { return R"({"type": "boolean"})"; }
std::string value_schema(double) { return R"({"type": "number"})"; }
std::string value_schema(const std::string&) { return R"({"type": "string"})"; }
std::string value_schema(const std::filesystem::path&) { return R"({"type": "string"})"; }
std::string value_schema(const std::vector<std::string>&) {
  return R"({"type": "array", "items": {"type": "string"}})";
}

std::string value_schema(const TemplateArguments&) {
  return R"({"type": "object", "additionalProperties": {"type": ["boolean", "integer", "string"]}})";
}

std::optional<std::string> write_value(bool value) { return value ? "true" : "false"; }

std::optional<std::string> write_value(double value) {
  std::string text = fmt::format("{}", value);
  // TOML tells floats from integers by their spelling.
  if (text.find_first_of(".en") == std::string::npos) {
    text += ".0";
  }
  return text;
}

// Through the shortest decimal form of the float, so that 0.95F is written as 0.95.
std::optional<std::string> write_value(float value) {
  return write_value(std::stod(fmt::format("{}", value)));
}

std::optional<std::string> write_value(const std::string& value) { return toml_quoted(value); }

std::optional<std::string> write_value(const std::filesystem::path& value) {
  return toml_quoted(value.string());
}

std::optional<std::string> write_value(const std::vector<std::string>& value) {
  std::string text = "[";
  for (std::size_t i = 0; i < value.size(); ++i) {
    text += (i == 0 ? "" : ", ") + toml_quoted(value[i]);
  }
  return text + "]";
}

std::optional<std::string> write_value(const TemplateArguments& value) {
  if (value.empty()) {
    return std::nullopt;
  }
  std::string text;
  for (const auto& [name, argument] : value) {
    const auto shown =
        std::visit([](const auto& given) { return write_value(given).value(); }, argument);
    text += fmt::format("{}{} = {}", text.empty() ? "{ " : ", ", name, shown);
  }
  return text + " }";
}

}  // namespace jforge
