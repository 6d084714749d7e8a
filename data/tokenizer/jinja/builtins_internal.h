#pragma once

/// What templates can call without defining it: operators, methods, filters, tests and functions,
/// each as Python and jinja2 have it, as far as published chat templates use it. What fails, or is
/// not supported, throws a Failure.

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

/// How a builtin takes its arguments.
enum class Takes {
  plain,
  any,   ///< It looks at its arguments itself.
  safe,  ///< As a filter, also text marked safe.
};
/// A function, method, filter or test.
struct Builtin {
  std::string_view name;
  Value (*call)(Runtime&, const Value& self, const Parameters& given);  ///< Null: not supported.
  std::array<std::string_view, 3> parameters = {};
  std::size_t required = 0;  ///< So many of the parameters must be given.
  Takes takes = Takes::plain;
};
struct Method {
  Value receiver;
  const Builtin* method;
};
/// Fails for an argument too many, given twice or with another name, or fewer than are required.
Value call(Runtime& runtime, const Builtin& builtin, const Value& self, const Arguments& arguments);

/// Arguments under the names of a builtin's parameters.
class Parameters {
 public:
  Parameters(const Arguments& given, const Builtin& builtin);
  [[nodiscard]] const Arguments& all() const { return all_; }
  /// Null if it was not given.
  [[nodiscard]] const Value* operator[](std::size_t i) const { return values_[i]; }
  /// Returns whether it was given and is not none.
  [[nodiscard]] bool has(std::size_t i) const {
    return values_[i] != nullptr && !values_[i]->is(Kind::none);
  }
  /// Returns `fallback` if it was not given; fails if it has another type.
  [[nodiscard]] std::int64_t whole(std::size_t i, std::int64_t fallback) const;
  /// The same for a number of blanks: at most 1000, and none for a negative number.
  [[nodiscard]] std::size_t blanks(std::size_t i, std::int64_t fallback) const;
  [[nodiscard]] bool flag(std::size_t i, bool fallback) const;
  /// Fails if it is not a string. Requires: it was given.
  [[nodiscard]] std::string_view text(std::size_t i) const;

 private:
  const Arguments& all_;
  std::array<const Value*, 3> values_{};
};

// operators.cpp. A sign is an operator as templates write it.

/// Fails with what jinja2 says if `value` is undefined.
void expect_defined(const Value& value);
/// Fails if `value` is marked safe: what becomes of it depends on what it is joined with.
void expect_plain(const Value& value);
/// Returns an undefined value that says `reason` where a value is needed.
Value undefined_because(Runtime& runtime, std::string_view reason);
/// What a loop goes through; of a generator what is left.
std::span<const Value> items_of(Runtime& runtime, const Value& value);
Value attribute(Runtime& runtime, const Value& object, std::string_view name);
Value element(Runtime& runtime, const Value& object, const Value& key);
/// A part that is not given is missing or none.
Value slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step);
bool contains(Runtime& runtime, const Value& container, const Value& item);
/// Returns whether `left` comes before `right`; `sign` is for the message.
bool less(Runtime& runtime, const Value& left, const Value& right, std::string_view sign);
bool holds(Runtime& runtime, std::string_view sign, const Value& left, const Value& right);
Value calculate(Runtime& runtime, std::string_view sign, const Value& left, const Value& right);
/// str() of a value; a string itself.
std::string_view text_of(Runtime& runtime, const Value& value);

// print.cpp

/// Appends Python's str(). Fails for what has no text that is the same on every run.
void append_text(Runtime& runtime, std::string& out, const Value& value);
/// json.dumps with transformers' parameters.
Value to_json(Runtime& runtime, const Value& value, const Parameters& given);

// methods.cpp

/// A method of a value of that kind; null if Python has none of that name. Fails for those that are
/// not supported.
const Builtin* find_method(Kind kind, std::string_view name);

// filters.cpp and functions.cpp

Value call_filter(Runtime& runtime, std::string_view name, const Value& value,
                  const Arguments& arguments);
bool call_test(Runtime& runtime, std::string_view name, const Value& value,
               const Arguments& arguments);
/// Fails if `value` is not a string.
std::string_view expect_text(const Value& value);
/// A global function, null if there is none.
const Builtin* find_function(std::string_view name);
/// The entries as dict() takes them: a later one replaces one of the same key.
const Mapping* make_mapping(Runtime& runtime, std::span<const Entry> entries);

}  // namespace jforge::jinja
