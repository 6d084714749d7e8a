#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

struct RecordValue {
  std::string text;              ///< String content; other values as written.
  std::optional<double> number;  ///< For numbers and strings that hold one.
  bool is_array = false;
};

/// Ignores surrounding blanks.
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

/// A condition "PATH OP VALUE"; OP is >=, <=, >, <, = or !=. If either side is a number, compares
/// numbers, to which other values are unequal, otherwise bytes. Records without the path never
/// match; arrays match only !=.
class RecordFilter {
 public:
  /// Throws ConfigError quoting a malformed rule.
  explicit RecordFilter(std::string_view rule);

  [[nodiscard]] const std::string& rule() const { return rule_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Returns true if the record is kept; `value` is nullopt if it lacks the path.
  [[nodiscard]] bool matches(const std::optional<RecordValue>& value) const;

 private:
  /// Results that match; `unordered`: number against text, or an array.
  struct Operation {
    bool less, equal, greater, unordered;
  };
  std::string rule_, path_;
  Operation operation_ = {};
  RecordValue operand_;
};

/// Sorts numbers, then texts, then records without the path.
struct OrderKey {
  enum class Kind : std::uint8_t { number, text, missing };
  Kind kind = Kind::missing;
  double number = 0;
  std::string text;
};

[[nodiscard]] OrderKey order_key(const std::optional<RecordValue>& value);
/// Compares in sort order; `descending` keeps missing keys last.
[[nodiscard]] bool order_before(const OrderKey& a, const OrderKey& b, bool descending);

}  // namespace jforge
