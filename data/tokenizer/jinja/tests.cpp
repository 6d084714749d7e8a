#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/text_internal.h"

/// jinja2's tests: what stands behind `is`.

namespace jforge::jinja {
namespace {

using Test = bool (*)(Runtime&, const Value&, const Arguments&);

template <bool (*holds)(const Value&)>
bool plain(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  return holds(value);
}

template <Kind kind>
bool is_kind(const Value& value) {
  return value.is(kind);
}

bool is_defined(const Value& value) { return !value.is(Kind::undefined); }
bool is_true(const Value& value) { return value.is(Kind::boolean) && value.boolean; }
bool is_false(const Value& value) { return value.is(Kind::boolean) && !value.boolean; }
bool is_number(const Value& value) { return value.is_number(); }
bool is_iterable(const Value& value) {
  return value.is(Kind::undefined) || value.is(Kind::string) || value.is(Kind::mapping) ||
         value.is(Kind::loop) || value.is_sequence();
}
/// What has a length and elements, as jinja2's undefined values have.
bool is_sequence(const Value& value) {
  return is_iterable(value) && !value.is(Kind::view) && !value.is(Kind::generator) &&
         !value.is(Kind::loop);
}
bool is_callable(const Value& value) {
  return value.is(Kind::undefined) || value.kind >= Kind::loop;
}

/// Whether the remainder of a division by `divisor` is `rest`.
bool leaves(Runtime& runtime, const Value& value, const Value& divisor, std::int64_t rest) {
  return equal(runtime, calculate(runtime, Operator::modulo, value, divisor), Value::of(rest));
}

template <std::int64_t rest>
bool halves_to(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  return leaves(runtime, value, Value::of(std::int64_t{2}), rest);
}

bool divisible(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"num"}, 1);
  return leaves(runtime, value, *given[0], 0);
}

/// Whether letters that have a case all have that of `change`, and there is one.
template <std::string (*change)(std::string_view), std::string (*other)(std::string_view)>
bool has_case(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  const std::string_view text = text_of(runtime, value);
  runtime.charge_bytes(text.size());
  return change(text) == text && other(text) != text;
}

template <Comparison comparison>
bool compares(Runtime& runtime, const Value& left, const Arguments& arguments) {
  const Parameters given(arguments, {"other"}, 1);
  return holds(runtime, comparison, left, *given[0]);
}

bool is_in(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"seq"}, 1);
  return contains(runtime, *given[0], value);
}

bool is_same(Runtime& runtime, const Value& left, const Arguments& arguments) {
  const Parameters given(arguments, {"other"}, 1);
  const Value& right = *given[0];
  if (left.kind != right.kind) return false;
  if (!left.is(Kind::none) && !left.is(Kind::boolean)) {
    fail("the test 'sameas' of other values than true, false and none is not supported");
  }
  return equal(runtime, left, right);
}

/// What jinja2 has beside the filters and tests that are supported.
constexpr auto kOtherFilters = std::to_array<std::string_view>(
    {"attr", "batch", "center", "e", "escape", "filesizeformat", "forceescape", "format", "groupby",
     "pprint", "random", "slice", "striptags", "truncate", "urlencode", "urlize", "wordcount",
     "wordwrap", "xmlattr"});
constexpr auto kOtherTests = std::to_array<std::string_view>({"escaped"});

/// Whether `value` is a name that `find_name` knows; fails for one of `others`, which jinja2 knows.
bool is_known(const Value& value, int (*find_name)(std::string_view),
              std::span<const std::string_view> others) {
  if (!value.is(Kind::string)) return false;
  if (std::ranges::find(others, value.text) != others.end()) {
    fail(fmt::format("whether there is '{}', which jinja2 has, is not supported", value.text));
  }
  return find_name(value.text) >= 0;
}
bool is_filter(Runtime& /*runtime*/, const Value& value, const Arguments& /*arguments*/) {
  return is_known(value, find_filter, kOtherFilters);
}
bool is_test(Runtime& /*runtime*/, const Value& value, const Arguments& /*arguments*/) {
  return is_known(value, find_test, kOtherTests);
}

constexpr auto kTests = std::to_array<std::pair<std::string_view, Test>>({
    {"boolean", plain<is_kind<Kind::boolean>>},
    {"callable", plain<is_callable>},
    {"defined", plain<is_defined>},
    {"divisibleby", divisible},
    {"eq", compares<Comparison::equal>},
    {"equalto", compares<Comparison::equal>},
    {"==", compares<Comparison::equal>},
    {"even", halves_to<0>},
    {"false", plain<is_false>},
    {"filter", is_filter},
    {"float", plain<is_kind<Kind::real>>},
    {"ge", compares<Comparison::greater_equal>},
    {">=", compares<Comparison::greater_equal>},
    {"greaterthan", compares<Comparison::greater>},
    {"gt", compares<Comparison::greater>},
    {">", compares<Comparison::greater>},
    {"in", is_in},
    {"integer", plain<is_kind<Kind::integer>>},
    {"iterable", plain<is_iterable>},
    {"le", compares<Comparison::less_equal>},
    {"<=", compares<Comparison::less_equal>},
    {"lessthan", compares<Comparison::less>},
    {"lower", has_case<lower, upper>},
    {"lt", compares<Comparison::less>},
    {"<", compares<Comparison::less>},
    {"mapping", plain<is_kind<Kind::mapping>>},
    {"ne", compares<Comparison::unequal>},
    {"!=", compares<Comparison::unequal>},
    {"none", plain<is_kind<Kind::none>>},
    {"number", plain<is_number>},
    {"odd", halves_to<1>},
    {"sameas", is_same},
    {"sequence", plain<is_sequence>},
    {"string", plain<is_kind<Kind::string>>},
    {"test", is_test},
    {"true", plain<is_true>},
    {"undefined", plain<is_kind<Kind::undefined>>},
    {"upper", has_case<upper, lower>},
});

}  // namespace

int find_test(std::string_view name) {
  const auto found = std::ranges::find(kTests, name, &std::pair<std::string_view, Test>::first);
  return found == kTests.end() ? -1 : static_cast<int>(found - kTests.begin());
}

bool call_test(Runtime& runtime, int test, const Value& value, const Arguments& arguments) {
  runtime.charge(1);
  return kTests.at(static_cast<std::size_t>(test)).second(runtime, value, arguments);
}

}  // namespace jforge::jinja
