#include "data/prompts/record_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <compare>
#include <utility>

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

std::string_view take_word(std::string_view& text) {
  text = trim(text);
  const std::string_view word = text.substr(0, text.find_first_of(" \t"));
  text = trim(text.substr(word.size()));
  return word;
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  text = trim(text);
  if (text.starts_with('+')) {
    text.remove_prefix(1);
  }
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  // "nan" and "inf" count as text.
  if (text.empty() || result.ec != std::errc{} || result.ptr != text.data() + text.size() ||
      !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

RecordFilter::RecordFilter(std::string_view rule) : rule_(trim(rule)) {
  static constexpr std::array<std::pair<std::string_view, Operation>, 6> kOperations{{
      {">=", {false, true, true, false}},
      {"<=", {true, true, false, false}},
      {">", {false, false, true, false}},
      {"<", {true, false, false, false}},
      {"=", {false, true, false, false}},
      {"!=", {true, false, true, true}},
  }};
  std::string_view rest = rule_;
  path_ = take_word(rest);
  const std::string_view operation = take_word(rest);
  const auto* const found =
      std::ranges::find(kOperations, operation, &std::pair<std::string_view, Operation>::first);
  if (path_.empty() || found == kOperations.end() || rest.empty()) {
    throw ConfigError(fmt::format(
        "prompts.keep_if '{}': write PATH OP VALUE with blanks between, OP one of >= <= > < = !=; "
        "for other conditions filter the files before, for example with jq",
        rule_));
  }
  operation_ = found->second;
  operand_ = {.text = std::string(rest), .number = parse_number(rest)};
}

bool RecordFilter::matches(const std::optional<RecordValue>& value) const {
  if (!value) {
    return false;
  }
  const bool numbers = value->number.has_value() && operand_.number.has_value();
  if (value->is_array || (!numbers && (value->number || operand_.number))) {
    return operation_.unordered;
  }
  const auto order = numbers ? *value->number <=> *operand_.number
                             : std::partial_ordering(value->text <=> operand_.text);
  return order < 0 ? operation_.less : (order > 0 ? operation_.greater : operation_.equal);
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
