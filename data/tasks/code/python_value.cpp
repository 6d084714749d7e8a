#include "data/tasks/code/python_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "data/tokenizer/unicode.h"
#include "runtime/error.h"

namespace jforge {
namespace {

using Kind = PythonValue::Kind;

/// "-007" to "-7"; nothing when it is no decimal integer.
std::optional<std::string> canonical_integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  text.remove_prefix(negative ? 1 : 0);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size() - 1));
  return negative && text != "0" ? fmt::format("-{}", text) : std::string(text);
}

/// A float as Python's repr writes it, or "inf", "-inf", "nan".
std::optional<double> parse_real(const std::string& text) {
  if (text.empty() || text.front() == ' ') {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size() ? std::optional(value) : std::nullopt;
}

/// Big-endian UTF-16 in hex to UTF-8, unpaired surrogates in their three-byte form.
std::optional<std::string> text_of_utf16(const std::string& hex) {
  if (hex.size() % 4 != 0 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  std::string escaped = "\"";
  for (std::size_t i = 0; i < hex.size(); i += 4) {
    escaped += "\\u" + hex.substr(i, 4);
  }
  const auto node = parse_json(escaped + '"');
  return node ? std::optional(node->text) : std::nullopt;
}

PythonValue make_integer(std::string decimal) {
  return {.kind = Kind::integer, .text = std::move(decimal)};
}
PythonValue make_real(double value) { return {.kind = Kind::real, .real = value}; }

std::optional<PythonValue> decode(const JsonNode& node);

bool decode_items(const JsonNode& array, std::vector<PythonValue>& items) {
  if (array.kind != JsonNode::Kind::array) {
    return false;
  }
  items.reserve(array.items.size());
  for (const JsonNode& item : array.items) {
    auto value = decode(item);
    if (!value) {
      return false;
    }
    items.push_back(std::move(*value));
  }
  return true;
}

std::optional<PythonValue> decode_container(Kind kind, const JsonNode& content) {
  PythonValue value{.kind = kind};
  if (!decode_items(content, value.items)) {
    return std::nullopt;
  }
  return value;
}

std::optional<PythonValue> decode_dict(const JsonNode& content) {
  PythonValue value{.kind = Kind::dict};
  if (content.kind != JsonNode::Kind::array) {
    return std::nullopt;
  }
  for (const JsonNode& pair : content.items) {
    if (pair.items.size() != 2 || !decode_items(pair, value.items)) {
      return std::nullopt;
    }
  }
  return value;
}

std::optional<PythonValue> decode_complex(const JsonNode& content) {
  if (content.kind != JsonNode::Kind::array || content.items.size() != 2) {
    return std::nullopt;
  }
  const auto real = parse_real(content.items[0].text);
  const auto imaginary = parse_real(content.items[1].text);
  if (!real || !imaginary) {
    return std::nullopt;
  }
  return PythonValue{.kind = Kind::complex, .real = *real, .imaginary = *imaginary};
}

/// A value that is written as the text of a JSON member.
std::optional<PythonValue> decode_scalar(const std::string& type, const std::string& text) {
  if (type == "int") {
    auto decimal = canonical_integer(text);
    return decimal ? std::optional(make_integer(std::move(*decimal))) : std::nullopt;
  }
  if (type == "float") {
    const auto value = parse_real(text);
    return value ? std::optional(make_real(*value)) : std::nullopt;
  }
  if (type == "str_utf16") {
    auto decoded = text_of_utf16(text);
    return decoded ? std::optional(PythonValue{.kind = Kind::text, .text = std::move(*decoded)})
                   : std::nullopt;
  }
  if (type == "bytes") {
    return PythonValue{.kind = Kind::bytes, .text = text};
  }
  if (type == "other") {
    return PythonValue{.kind = Kind::other, .text = text};
  }
  return std::nullopt;
}

std::optional<PythonValue> decode_tagged(const JsonNode& node) {
  if (node.keys.size() != 1) {
    return std::nullopt;
  }
  const std::string& type = node.keys[0];
  const JsonNode& content = node.items[0];
  if (content.kind == JsonNode::Kind::text) {
    return decode_scalar(type, content.text);
  }
  if (type == "tuple") {
    return decode_container(Kind::tuple, content);
  }
  if (type == "set") {
    return decode_container(Kind::set, content);
  }
  if (type == "array") {
    return decode_container(Kind::array, content);
  }
  if (type == "dict") {
    return decode_dict(content);
  }
  return type == "complex" ? decode_complex(content) : std::nullopt;
}

std::optional<PythonValue> decode(const JsonNode& node) {
  switch (node.kind) {
    case JsonNode::Kind::null:
      return PythonValue{};
    case JsonNode::Kind::boolean:
      return PythonValue{.kind = Kind::boolean, .truth = node.truth};
    case JsonNode::Kind::text:
      return PythonValue{.kind = Kind::text, .text = node.text};
    case JsonNode::Kind::array:
      return decode_container(Kind::list, node);
    case JsonNode::Kind::object:
      return decode_tagged(node);
    case JsonNode::Kind::number:
      return std::nullopt;
  }
  return std::nullopt;
}

double json_real(const std::string& number) {
  if (number == "NaN") {
    return std::nan("");
  }
  return std::strtod(number.c_str(), nullptr);
}
bool is_json_integer(const std::string& number) {
  return number.find_first_of(".eEIN") == std::string::npos;
}

/// One code point of UTF-8 in which surrogates are allowed, and its length. DataError where the
/// bytes are none.
CodePoint wide_code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned char {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  if (byte(0) == 0xED && byte(1) >= 0xA0 && byte(1) < 0xC0 && byte(2) >= 0x80 && byte(2) < 0xC0) {
    return {static_cast<char32_t>(0xD000 | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F)), 3};
  }
  if (first_invalid_utf8(text.substr(at, 4)) == 0) {
    throw DataError("a text of a benchmark or of a program's value is not valid UTF-8");
  }
  return code_point_at(text, at);
}

std::string number_literal(const std::string& number) {
  if (number == "NaN") {
    return "float('nan')";
  }
  if (number.ends_with("Infinity")) {
    return number.front() == '-' ? "float('-inf')" : "float('inf')";
  }
  return number;
}

bool is_whole_kind(Kind kind) { return kind == Kind::boolean || kind == Kind::integer; }
bool is_real_kind(Kind kind) { return is_whole_kind(kind) || kind == Kind::real; }
bool is_number_kind(Kind kind) { return is_real_kind(kind) || kind == Kind::complex; }

std::string whole_text(const PythonValue& value) {
  return value.kind == Kind::boolean ? (value.truth ? "1" : "0") : value.text;
}

/// Exact: no rounding of either side.
bool real_numbers_equal(const PythonValue& left, const PythonValue& right) {
  if (left.kind == Kind::real && right.kind == Kind::real) {
    return left.real == right.real;
  }
  if (left.kind == Kind::real) {
    return real_numbers_equal(right, left);
  }
  if (right.kind != Kind::real) {
    return whole_text(left) == whole_text(right);
  }
  if (!std::isfinite(right.real) || std::trunc(right.real) != right.real) {
    return false;
  }
  return canonical_integer(fmt::format("{:.0f}", right.real)) == whole_text(left);
}

bool numbers_equal(const PythonValue& left, const PythonValue& right) {
  if (left.kind != Kind::complex && right.kind != Kind::complex) {
    return real_numbers_equal(left, right);
  }
  if (left.kind != Kind::complex) {
    return numbers_equal(right, left);
  }
  if (right.kind == Kind::complex) {
    return left.real == right.real && left.imaginary == right.imaginary;
  }
  return left.imaginary == 0.0 && real_numbers_equal(make_real(left.real), right);
}

bool contains(const std::vector<PythonValue>& items, const PythonValue& wanted) {
  return std::any_of(items.begin(), items.end(),
                     [&](const PythonValue& item) { return python_equal(item, wanted); });
}

bool dicts_equal(const PythonValue& left, const PythonValue& right) {
  if (left.items.size() != right.items.size()) {
    return false;
  }
  for (std::size_t i = 0; i < left.items.size(); i += 2) {
    bool found = false;
    for (std::size_t j = 0; j < right.items.size() && !found; j += 2) {
      found = python_equal(left.items[i], right.items[j]) &&
              python_equal(left.items[i + 1], right.items[j + 1]);
    }
    if (!found) {
      return false;
    }
  }
  return true;
}

bool hashable(const PythonValue& value) {
  switch (value.kind) {
    case Kind::list:
    case Kind::set:
    case Kind::dict:
    case Kind::array:
      return false;
    case Kind::tuple:
      return std::all_of(value.items.begin(), value.items.end(), hashable);
    default:
      return true;
  }
}

}  // namespace

std::optional<PythonValue> parse_python_value(std::string_view json) {
  if (first_invalid_utf8(json)) {
    return std::nullopt;
  }
  const auto node = parse_json(json);
  return node ? decode(*node) : std::nullopt;
}

PythonValue python_value(const JsonNode& json) {
  switch (json.kind) {
    case JsonNode::Kind::null:
      return {};
    case JsonNode::Kind::boolean:
      return {.kind = Kind::boolean, .truth = json.truth};
    case JsonNode::Kind::text:
      return {.kind = Kind::text, .text = json.text};
    case JsonNode::Kind::number:
      return is_json_integer(json.text) ? make_integer(*canonical_integer(json.text))
                                        : make_real(json_real(json.text));
    case JsonNode::Kind::array:
    case JsonNode::Kind::object:
      break;
  }
  PythonValue value{.kind = json.kind == JsonNode::Kind::array ? Kind::list : Kind::dict};
  for (std::size_t i = 0; i < json.items.size(); ++i) {
    if (value.kind == Kind::dict) {
      value.items.push_back({.kind = Kind::text, .text = json.keys[i]});
    }
    value.items.push_back(python_value(json.items[i]));
  }
  return value;
}

std::string python_text_literal(const std::string& text) {
  std::string out = "'";
  for (std::size_t at = 0; at < text.size();) {
    const auto [value, length] = wide_code_point_at(text, at);
    at += length;
    if (value == '\'' || value == '\\') {
      out += '\\';
      out += static_cast<char>(value);
    } else if (value >= 0x20 && value < 0x7F) {
      out += static_cast<char>(value);
    } else {
      out += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(value));
    }
  }
  return out + "'";
}

std::string python_literal(const JsonNode& json) {
  switch (json.kind) {
    case JsonNode::Kind::null:
      return "None";
    case JsonNode::Kind::boolean:
      return json.truth ? "True" : "False";
    case JsonNode::Kind::text:
      return python_text_literal(json.text);
    case JsonNode::Kind::number:
      return number_literal(json.text);
    case JsonNode::Kind::array:
    case JsonNode::Kind::object:
      break;
  }
  const bool is_array = json.kind == JsonNode::Kind::array;
  std::string out = is_array ? "[" : "{";
  for (std::size_t i = 0; i < json.items.size(); ++i) {
    out += i == 0 ? "" : ", ";
    if (!is_array) {
      out += python_text_literal(json.keys[i]) + ": ";
    }
    out += python_literal(json.items[i]);
  }
  return out + (is_array ? "]" : "}");
}

bool python_equal(const PythonValue& left, const PythonValue& right) {
  if (is_number_kind(left.kind) && is_number_kind(right.kind)) {
    return numbers_equal(left, right);
  }
  if (left.kind != right.kind) {
    return false;
  }
  switch (left.kind) {
    case Kind::none:
      return true;
    case Kind::text:
    case Kind::bytes:
      return left.text == right.text;
    case Kind::list:
    case Kind::tuple:
      return left.items.size() == right.items.size() &&
             std::equal(left.items.begin(), left.items.end(), right.items.begin(), python_equal);
    case Kind::set:
      return left.items.size() == right.items.size() &&
             std::all_of(left.items.begin(), left.items.end(),
                         [&](const PythonValue& item) { return contains(right.items, item); });
    case Kind::dict:
      return dicts_equal(left, right);
    default:
      return false;
  }
}

std::optional<std::vector<PythonValue>> python_elements(const PythonValue& value) {
  std::vector<PythonValue> elements;
  switch (value.kind) {
    case Kind::list:
    case Kind::tuple:
    case Kind::set:
    case Kind::array:
      return value.items;
    case Kind::dict:
      for (std::size_t i = 0; i < value.items.size(); i += 2) {
        elements.push_back(value.items[i]);
      }
      return elements;
    case Kind::text:
      for (std::size_t at = 0; at < value.text.size();) {
        const std::size_t length = wide_code_point_at(value.text, at).length;
        elements.push_back({.kind = Kind::text, .text = value.text.substr(at, length)});
        at += length;
      }
      return elements;
    default:
      return std::nullopt;
  }
}

bool python_set_equal(const PythonValue& left, const PythonValue& right) {
  const auto first = python_elements(left);
  const auto second = python_elements(right);
  if (!first || !second || !std::all_of(first->begin(), first->end(), hashable) ||
      !std::all_of(second->begin(), second->end(), hashable)) {
    return false;
  }
  const auto within = [](const std::vector<PythonValue>& some,
                         const std::vector<PythonValue>& all) {
    return std::all_of(some.begin(), some.end(),
                       [&](const PythonValue& item) { return contains(all, item); });
  };
  return within(*first, *second) && within(*second, *first);
}

std::optional<double> python_real(const PythonValue& value) {
  if (!is_real_kind(value.kind)) {
    return std::nullopt;
  }
  if (value.kind == Kind::real) {
    return value.real;
  }
  const double number = std::strtod(whole_text(value).c_str(), nullptr);
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

}  // namespace jforge
