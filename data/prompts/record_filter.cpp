#include "data/prompts/record_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/bounded_json.h"
#include "runtime/error.h"

namespace jforge {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// Takes the first blank-separated word off `text`.
std::string_view take_word(std::string_view& text) {
  text = trim(text);
  const std::string_view word = text.substr(0, text.find_first_of(" \t"));
  text = trim(text.substr(word.size()));
  return word;
}

RecordValue operand(std::string_view text) {
  RecordValue value;
  if (text.size() >= 2 && text.front() == '"') {
    const auto parsed = try_bounded_json(text);
    if (parsed.is_string()) {
      value.text = parsed.get<std::string>();
      value.number = parse_number(value.text);
      return value;
    }
  }
  value.text = std::string(text);
  value.number = parse_number(text);
  return value;
}

std::vector<RecordValue> operand_list(std::string_view text) {
  std::vector<RecordValue> values;
  const auto parsed = try_bounded_json(text);
  if (parsed.is_array()) {
    for (const auto& item : parsed) {
      values.push_back(operand(item.is_string() ? item.get<std::string>() : item.dump()));
    }
    return values;
  }
  text = text.substr(1, text.size() - 2);
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    values.push_back(operand(trim(text.substr(0, comma))));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return values;
}

bool equal(const RecordValue& a, const RecordValue& b) {
  if (a.number || b.number) {
    return a.number && b.number && *a.number == *b.number;
  }
  return a.text == b.text;
}

/// −1, 0, 1; nothing when a number meets text.
std::optional<int> compare(const RecordValue& a, const RecordValue& b) {
  if (a.number || b.number) {
    if (!a.number || !b.number) {
      return std::nullopt;
    }
    return *a.number < *b.number ? -1 : (*a.number > *b.number ? 1 : 0);
  }
  const int order = a.text.compare(b.text);
  return order < 0 ? -1 : (order > 0 ? 1 : 0);
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  text = trim(text);
  if (text.starts_with('+')) {
    text.remove_prefix(1);
  }
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  // "nan" and "inf" are words here, not numbers.
  if (text.empty() || result.ec != std::errc{} || result.ptr != text.data() + text.size() ||
      !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

RecordFilter::RecordFilter(std::string_view rule) : rule_(trim(rule)) {
  static constexpr std::array<std::pair<std::string_view, Operation>, 9> kOperations{{
      {">=", Operation::greater_equal},
      {"<=", Operation::less_equal},
      {">", Operation::greater},
      {"<", Operation::less},
      {"=", Operation::equal},
      {"==", Operation::equal},
      {"!=", Operation::not_equal},
      {"in", Operation::in},
      {"contains", Operation::contains},
  }};
  std::string_view rest = rule_;
  path_ = take_word(rest);
  const std::string_view operation = take_word(rest);
  const auto found = std::find_if(kOperations.begin(), kOperations.end(),
                                  [&](const auto& entry) { return entry.first == operation; });
  if (path_.empty() || found == kOperations.end() || rest.empty()) {
    throw ConfigError(
        fmt::format("prompts.keep_if '{}': write PATH OP VALUE with blanks between, OP one of >= "
                    "<= > < = == != "
                    "in contains",
                    rule_));
  }
  operation_ = found->second;
  if (operation_ != Operation::in) {
    operands_ = {operand(rest)};
    return;
  }
  if (!rest.starts_with('[') || !rest.ends_with(']') || rest.size() < 2) {
    throw ConfigError(fmt::format("prompts.keep_if '{}': 'in' takes a list such as [a, b]", rule_));
  }
  operands_ = operand_list(rest);
}

bool RecordFilter::matches(const std::optional<RecordValue>& value) const {
  if (!value) {
    return false;
  }
  const auto equals_value = [&](const RecordValue& other) { return equal(*value, other); };
  switch (operation_) {
    case Operation::in:
      return std::any_of(operands_.begin(), operands_.end(), equals_value);
    case Operation::contains:
      if (value->is_array) {
        return std::any_of(value->elements.begin(), value->elements.end(),
                           [&](const RecordValue& item) { return equal(item, operands_[0]); });
      }
      return value->text.find(operands_[0].text) != std::string::npos;
    case Operation::equal:
      return !value->is_array && equals_value(operands_[0]);
    case Operation::not_equal:
      return value->is_array || !equals_value(operands_[0]);
    default:
      break;
  }
  const auto order = value->is_array ? std::nullopt : compare(*value, operands_[0]);
  if (!order) {
    return false;
  }
  switch (operation_) {
    case Operation::greater_equal:
      return *order >= 0;
    case Operation::less_equal:
      return *order <= 0;
    case Operation::greater:
      return *order > 0;
    default:
      return *order < 0;
  }
}

OrderKey order_key(const std::optional<RecordValue>& value) {
  if (!value || value->is_array) {
    return {};
  }
  if (value->number) {
    return {OrderKey::Kind::number, *value->number, {}};
  }
  return {OrderKey::Kind::text, 0, value->text};
}

bool order_before(const OrderKey& a, const OrderKey& b, bool descending) {
  if (a.kind != b.kind) {
    return a.kind < b.kind;
  }
  const OrderKey& low = descending ? b : a;
  const OrderKey& high = descending ? a : b;
  switch (a.kind) {
    case OrderKey::Kind::number:
      return low.number < high.number;
    case OrderKey::Kind::text:
      return low.text < high.text;
    default:
      return false;
  }
}

}  // namespace jforge
