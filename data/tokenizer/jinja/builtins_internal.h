#pragma once

/// Functions that templates can call, as in Python and jinja2; those that published ones use.
/// Throws Failure on errors and unsupported uses.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer/jinja/value.h"

namespace jforge::jinja {

struct Argument {
  std::string_view name;
  Value value;
};
struct Arguments {
  std::span<const Value> positional;
  std::span<const Argument> named;
};

class Parameters;

enum class Takes {
  plain,
  any,   ///< Reads its arguments itself.
  safe,  ///< As a filter, also takes text marked safe.
};
struct Builtin {
  std::string_view name;
  Value (*call)(Runtime&, const Value& self, const Parameters& given);
  std::array<std::string_view, 3> parameters = {};
  std::size_t required = 0;  ///< Mandatory parameters.
  Takes takes = Takes::plain;
};
struct Method {
  Value receiver;
  const Builtin* method;
};
/// Fails for superfluous, duplicate, misnamed or missing arguments.
Value call(Runtime& runtime, const Builtin& builtin, const Value& self, const Arguments& arguments);

class Parameters {
 public:
  Parameters(const Arguments& given, const Builtin& builtin);
  [[nodiscard]] const Arguments& all() const { return all_; }
  /// Returns null if not given.
  [[nodiscard]] const Value* operator[](std::size_t i) const { return values_[i]; }
  /// Returns true if given and not none.
  [[nodiscard]] bool has(std::size_t i) const {
    return values_[i] != nullptr && !values_[i]->is(Kind::none);
  }
  /// Fails if it is not an integer.
  [[nodiscard]] std::int64_t whole(std::size_t i, std::int64_t fallback) const;
  [[nodiscard]] bool flag(std::size_t i, bool fallback) const;
  /// Fails if it is not a string. Requires: it was given.
  [[nodiscard]] std::string_view text(std::size_t i) const;

 private:
  const Arguments& all_;
  std::array<const Value*, 3> values_{};
};

// operators.cpp; signs are as in templates.

/// Fails if `value` is undefined.
void expect_defined(const Value& value);
/// Fails if `value` is marked safe: joining it would escape other text.
void expect_plain(const Value& value);
/// Returns an undefined value that reports `reason` when used.
Value undefined_because(Runtime& runtime, std::string_view reason);
/// Returns the items to iterate over; consumes a generator.
std::span<const Value> items_of(Runtime& runtime, const Value& value);
Value attribute(Runtime& runtime, const Value& object, std::string_view name);
Value element(Runtime& runtime, const Value& object, const Value& key);
/// Absent bounds are missing or none.
Value slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step);
bool contains(Runtime& runtime, const Value& container, const Value& item);
/// Compares; `sign` is for the message.
bool less(Runtime& runtime, const Value& left, const Value& right, std::string_view sign);
bool holds(Runtime& runtime, std::string_view sign, const Value& left, const Value& right);
Value calculate(Runtime& runtime, std::string_view sign, const Value& left, const Value& right);
/// Returns Python's str().
std::string_view text_of(Runtime& runtime, const Value& value);

// print.cpp

/// Appends Python's str(). Fails if the text would vary between runs.
void append_text(Runtime& runtime, std::string& out, const Value& value);
/// Applies json.dumps with transformers' parameters.
Value to_json(Runtime& runtime, const Value& value, const Parameters& given);

// methods.cpp

/// Returns null if Python has no such method; fails for unsupported ones.
const Builtin* find_method(Kind kind, std::string_view name);

// filters.cpp and functions.cpp

Value call_filter(Runtime& runtime, std::string_view name, const Value& value,
                  const Arguments& arguments);
bool call_test(Runtime& runtime, std::string_view name, const Value& value,
               const Arguments& arguments);
std::string_view expect_text(const Value& value);
/// Returns null if there is none.
const Builtin* find_function(std::string_view name);
/// Builds as dict(): the last of equal keys wins.
const Mapping* make_mapping(Runtime& runtime, std::span<const Entry> entries);

}  // namespace jforge::jinja
