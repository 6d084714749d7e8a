#pragma once

/// Conditions on records, and the key by which records are ordered.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// A JSON value as far as conditions look at it.
struct RecordValue {
  std::string text;              ///< A string's content; numbers, true, false, null as written.
  std::optional<double> number;  ///< Set when it is a number or a string that holds one.
  std::vector<RecordValue> elements;  ///< Of an array.
  bool is_array = false;
};

/// The number that `text` holds, blanks around it aside; nothing when it holds anything else.
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

/// One condition, "PATH OP VALUE" separated by blanks: OP is >=, <=, >, <, =, ==, !=, in or
/// contains; VALUE is bare text, a JSON string, or for `in` a list "[a, b]". When either side is a
/// number both are compared as numbers (and unequal when the other is none); otherwise as text,
/// byte by byte. `contains` looks for text in a string, or an element in an array. A record without
/// the path never matches.
class RecordFilter {
 public:
  /// ConfigError quoting the rule when it cannot be understood.
  explicit RecordFilter(std::string_view rule);

  [[nodiscard]] const std::string& rule() const { return rule_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Whether a record with `value` at the path (nothing: no such path) is kept.
  [[nodiscard]] bool matches(const std::optional<RecordValue>& value) const;

 private:
  enum class Operation : std::uint8_t {
    greater_equal,
    less_equal,
    greater,
    less,
    equal,
    not_equal,
    in,
    contains
  };
  std::string rule_, path_;
  Operation operation_ = Operation::equal;
  std::vector<RecordValue> operands_;  ///< One; any number for `in`.
};

/// Sort key of a record: numbers first, then text, records without the path last.
struct OrderKey {
  enum class Kind : std::uint8_t { number, text, missing };
  Kind kind = Kind::missing;
  double number = 0;
  std::string text;
};

[[nodiscard]] OrderKey order_key(const std::optional<RecordValue>& value);
/// Whether `a` comes before `b`; with `descending` the greater key first, missing ones last all the
/// same.
[[nodiscard]] bool order_before(const OrderKey& a, const OrderKey& b, bool descending);

}  // namespace jforge
