#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// A JSON value as seen by filters.
struct RecordValue {
  std::string text;              ///< A string's content; numbers, true, false and null as written.
  std::optional<double> number;  ///< Set for numbers and strings that hold one.
  bool is_array = false;
};

/// Returns the number that `text` holds, ignoring surrounding blanks, or nullopt.
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

/// One condition "PATH OP VALUE", separated by blanks; OP is >=, <=, >, <, = or !=. If either side
/// is a number, compares numbers, to which anything else is unequal; otherwise compares bytes. A
/// record without the path never matches; an array only matches !=.
class RecordFilter {
 public:
  /// Throws ConfigError quoting a malformed rule.
  explicit RecordFilter(std::string_view rule);

  [[nodiscard]] const std::string& rule() const { return rule_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Returns true if a record with `value` at the path (nullopt: no such path) is kept.
  [[nodiscard]] bool matches(const std::optional<RecordValue>& value) const;

 private:
  /// Results that match; `unordered` is a number against a text, or an array.
  struct Operation {
    bool less, equal, greater, unordered;
  };
  std::string rule_, path_;
  Operation operation_ = {};
  RecordValue operand_;
};

/// Sort key of a record: numbers first, then texts, then records without the path.
struct OrderKey {
  enum class Kind : std::uint8_t { number, text, missing };
  Kind kind = Kind::missing;
  double number = 0;
  std::string text;
};

[[nodiscard]] OrderKey order_key(const std::optional<RecordValue>& value);
/// Returns true if `a` comes before `b`. `descending` reverses the order, but missing keys stay
/// last.
[[nodiscard]] bool order_before(const OrderKey& a, const OrderKey& b, bool descending);

}  // namespace jforge
