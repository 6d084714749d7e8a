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
  std::optional<double> number;  ///< Set if it is a number or a string that holds one.
  bool is_array = false;
};

/// Returns the number that `text` holds, ignoring blanks around it; nothing for anything else.
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

/// One condition, "PATH OP VALUE" separated by blanks: OP is >=, <=, >, <, = or !=. If either side
/// is a number, both are compared as numbers (and are unequal if the other is not one); otherwise
/// as text, byte by byte. A record without the path never matches, and an array only !=.
class RecordFilter {
 public:
  /// Throws ConfigError quoting the rule if it cannot be understood.
  explicit RecordFilter(std::string_view rule);

  [[nodiscard]] const std::string& rule() const { return rule_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Whether a record with `value` at the path (nothing: no such path) is kept.
  [[nodiscard]] bool matches(const std::optional<RecordValue>& value) const;

 private:
  /// Whether values that compare so are kept; `unordered`: a number and a text, or an array.
  struct Operation {
    bool less, equal, greater, unordered;
  };
  std::string rule_, path_;
  Operation operation_ = {};
  RecordValue operand_;
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
