#pragma once

/// What templates can call without defining it: operators, methods, filters, tests and functions,
/// each as Python and jinja2 have it. What fails throws a Failure.

#include <cstdint>
#include <initializer_list>
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

/// Arguments under the names of a function's parameters.
class Parameters {
 public:
  /// Fails for an argument too many, given twice or with another name, or fewer than `required`.
  Parameters(const Arguments& given, std::initializer_list<std::string_view> names,
             std::size_t required = 0);
  /// Null if it was not given.
  [[nodiscard]] const Value* operator[](std::size_t i) const { return values_[i]; }
  /// `fallback` if it was not given; fails if it has another type.
  [[nodiscard]] std::int64_t whole(std::size_t i, std::int64_t fallback) const;
  [[nodiscard]] bool flag(std::size_t i, bool fallback) const;
  [[nodiscard]] std::string_view text(std::size_t i, std::string_view fallback = {}) const;

 private:
  std::array<const Value*, 6> values_{};
  std::array<std::string_view, 6> names_{};
};

struct MethodEntry {
  std::string_view name;
  Value (*call)(Runtime&, const Value&, const Arguments&);  ///< Null: not supported.
};
struct Method {
  Value receiver;
  const MethodEntry* entry;
};
struct Function {
  std::string_view name;
  Value (*call)(Runtime&, const Arguments&);  ///< Null: not supported.
};

// operators.cpp

/// Fails with what jinja2 says if `value` is undefined.
void expect_defined(const Value& value);
/// Fails if `value` is marked safe: what becomes of it depends on what it is joined with.
void expect_plain(const Value& value);
Value undefined_because(Runtime& runtime, std::string_view reason);
/// What a loop goes through; of a generator what is left.
std::span<const Value> items_of(Runtime& runtime, const Value& value);
Value attribute(Runtime& runtime, const Value& object, std::string_view name);
Value element(Runtime& runtime, const Value& object, const Value& key);
/// Null where a part is not given.
Value slice(Runtime& runtime, const Value& object, const Value* begin, const Value* end,
            const Value* step);
bool contains(Runtime& runtime, const Value& container, const Value& item);
/// Whether `left` comes before `right`; `sign` is for the message.
bool less(Runtime& runtime, const Value& left, const Value& right, std::string_view sign);
enum class Comparison { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };
bool holds(Runtime& runtime, Comparison comparison, const Value& left, const Value& right);
enum class Operator { add, subtract, multiply, divide, divide_whole, modulo, power };
Value calculate(Runtime& runtime, Operator sign, const Value& left, const Value& right);
Value negative(const Value& value);
/// str() of a value; a string itself.
std::string_view text_of(Runtime& runtime, const Value& value);

// methods.cpp

/// A method of a value of that kind; null if Python has none of that name. Fails for those that are
/// not supported.
const MethodEntry* find_method(Kind kind, std::string_view name);
/// Whether jinja2's immutable sandbox keeps that method of Python's from templates.
bool is_forbidden_method(Kind kind, std::string_view name);

// filters.cpp, tests.cpp and functions.cpp

/// The number of the filter, -1 if there is none. Names of jinja2 that are not supported count as
/// none.
int find_filter(std::string_view name);
Value call_filter(Runtime& runtime, int filter, const Value& value, const Arguments& arguments);
int find_test(std::string_view name);
bool call_test(Runtime& runtime, int test, const Value& value, const Arguments& arguments);
/// A global function, null if there is none.
const Function* find_function(std::string_view name);
/// dict(…): what is given, the entries that come later over those before them.
const Mapping* make_mapping(Runtime& runtime, std::span<const Entry> entries);

/// json.dumps with transformers' parameters.
Value to_json(Runtime& runtime, const Value& value, const Arguments& arguments);

}  // namespace jforge::jinja
