#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/text_internal.h"

namespace jforge::jinja {
namespace {

using Filter = Value (*)(Runtime&, const Value&, const Arguments&);

// Texts.

template <std::string (*change)(std::string_view)>
Value changed(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  const std::string_view text = text_of(runtime, value);
  runtime.charge_bytes(text.size());
  return runtime.text(change(text));
}

/// A filter that is a method of what str() makes of the value.
Value method_of_text(Runtime& runtime, std::string_view method, const Value& value,
                     const Arguments& arguments) {
  return find_method(Kind::string, method)
      ->call(runtime, Value::of(text_of(runtime, value)), arguments);
}

Value trim(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"chars"});
  const std::span<const Value> chars(given[0], given[0] == nullptr ? 0 : 1);
  return method_of_text(runtime, "strip", value, {.positional = chars, .named = {}});
}

Value replace(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"old", "new", "count"}, 2);
  std::vector<Value> values = {*given[0], *given[1]};
  if (given[2] != nullptr && !given[2]->is(Kind::none)) values.push_back(*given[2]);
  for (Value& part : std::span(values).first(2)) part = Value::of(text_of(runtime, part));
  return method_of_text(runtime, "replace", value, {.positional = values, .named = {}});
}

Value string(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  return value.is(Kind::string) ? value : Value::of(text_of(runtime, value));
}

Value safe(Runtime& runtime, const Value& value, const Arguments& arguments) {
  Value text = string(runtime, value, arguments);
  text.safe = true;
  return text;
}

Value indent(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"width", "first", "blank"});
  expect_defined(value);
  if (!value.is(Kind::string)) fail("the filter 'indent' takes a string");
  std::string blanks;
  if (given[0] != nullptr && given[0]->is(Kind::string)) {
    blanks = given.text(0);
  } else {
    const std::int64_t width = std::max<std::int64_t>(given.whole(0, 4), 0);
    if (width > 1000) fail("an indent of more than 1000 blanks");
    blanks.assign(static_cast<std::size_t>(width), ' ');
  }
  const std::string text = std::string(value.text) + "\n";
  const auto lines = split_lines(text, false);
  runtime.charge_bytes(text.size() + lines.size() * blanks.size());
  std::string out = given.flag(1, false) ? blanks : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (given.flag(2, false) || !lines[i].empty())) out += blanks;
    out += lines[i];
  }
  return runtime.text(out);
}

// Numbers.

Value absolute(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  expect_defined(value);
  if (value.is(Kind::real)) return Value::of(std::fabs(value.real));
  if (!value.is_whole()) fail("the filter 'abs' takes a number");
  return value.whole() < 0 ? negative(value) : Value::of(value.whole());
}

/// A number written in ASCII as Python's float() reads it.
std::optional<double> parsed_real(std::string_view text) {
  text = strip(text, Side::both);
  for (const char c : text) {
    if (c == '_' || static_cast<unsigned char>(c) >= 0x80) {
      fail("numbers of other than ASCII digits are not supported");
    }
  }
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec == std::errc::invalid_argument || parsed.ptr != text.data() + text.size() ||
      text.ends_with(')')) {  // Python knows no nan(…).
    return std::nullopt;
  }
  if (parsed.ec == std::errc::result_out_of_range) fail("a number beyond a double's range");
  return value;
}

Value whole_of_real(double value) {
  if (!(std::fabs(value) < 9e18)) fail("a whole number beyond 64 bits is not supported");
  return Value::of(static_cast<std::int64_t>(value));
}

Value to_whole(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"default", "base"});
  expect_defined(value);
  if (given.whole(1, 10) != 10) fail("another base than 10 is not supported");
  if (value.is(Kind::real)) return whole_of_real(value.real);
  if (value.is_whole()) return Value::of(value.whole());
  if (value.is(Kind::string)) {
    runtime.charge_bytes(value.text.size());
    std::string_view text = strip(value.text, Side::both);
    if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
    std::int64_t whole = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), whole);
    if (parsed.ec == std::errc() && !text.empty() && parsed.ptr == text.data() + text.size()) {
      return Value::of(whole);
    }
    if (const auto real = parsed_real(text); real && std::isfinite(*real)) {
      return whole_of_real(*real);
    }
  }
  return given[0] != nullptr ? *given[0] : Value::of(std::int64_t{0});
}

Value to_real(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"default"});
  expect_defined(value);
  if (value.is_number()) return Value::of(value.number());
  if (value.is(Kind::string)) {
    runtime.charge_bytes(value.text.size());
    if (const auto real = parsed_real(value.text)) return Value::of(*real);
  }
  return given[0] != nullptr ? *given[0] : Value::of(0.0);
}

Value round(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"precision", "method"});
  const std::int64_t precision = given.whole(0, 0);
  const std::string_view method = given.text(1, "common");
  expect_defined(value);
  if (!value.is_number()) fail("the filter 'round' takes a number");
  if (precision < 0 || precision > 100) fail("that precision is not supported");
  if (method == "common") {
    if (value.is_whole()) return Value::of(value.whole());
    // Printed with so many places it is rounded as Python does, half to even of the exact value.
    const std::string text = fmt::format("{:.{}f}", value.real, precision);
    return Value::of(std::strtod(text.c_str(), nullptr));
  }
  if (method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  const Value scale =
      calculate(runtime, Operator::power, Value::of(std::int64_t{10}), Value::of(precision));
  const double scaled = calculate(runtime, Operator::multiply, value, scale).number();
  return Value::of((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale.number());
}

// Containers.

Value length_of(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  switch (value.kind) {
    case Kind::undefined:
      return Value::of(std::int64_t{0});
    case Kind::string:
      runtime.charge_bytes(value.text.size());
      return Value::of(length(value.text));
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
      return Value::of(std::ssize(value.sequence->items));
    case Kind::mapping:
      return Value::of(std::ssize(value.mapping->entries));
    default:
      fail(fmt::format("a {} has no length", type_name(value.kind)));
  }
}

Value default_of(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"default_value", "boolean"});
  if (!value.is(Kind::undefined) && (!given.flag(1, false) || truth(value))) return value;
  return given[0] != nullptr ? *given[0] : runtime.text("");
}

Value first(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  if (value.is(Kind::generator)) {
    auto& [items, next] = *value.sequence;
    if (next < items.size()) return items[next++];
  } else if (value.is(Kind::string) && !value.text.empty()) {
    return element(runtime, value, Value::of(std::int64_t{0}));
  } else if (const auto items = items_of(runtime, value); !items.empty()) {
    return items.front();
  }
  return undefined_because(runtime, "No first item, sequence was empty.");
}

Value last(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  if (value.is(Kind::generator)) fail("a generator has no last item");
  if (const auto items = items_of(runtime, value); !items.empty()) return items.back();
  return undefined_because(runtime, "No last item, sequence was empty.");
}

Value list(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  const auto items = items_of(runtime, value);
  runtime.charge(items.size());
  return runtime.sequence(Kind::list, items);
}

Value items(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  if (value.is(Kind::undefined)) return runtime.sequence(Kind::generator, {});
  if (!value.is(Kind::mapping)) fail("the filter 'items' takes a mapping");
  Value view = find_method(Kind::mapping, "items")->call(runtime, value, {});
  view.kind = Kind::generator;
  return view;
}

Value reverse(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {});
  if (value.is(Kind::string)) {
    const Value back = Value::of(std::int64_t{-1});
    return slice(runtime, value, nullptr, nullptr, &back);
  }
  const auto forward = items_of(runtime, value);
  runtime.charge(forward.size());
  const Value result = runtime.sequence(Kind::generator, forward);
  const auto backward = runtime.array<Value>(forward.size());
  std::ranges::reverse_copy(forward, backward.begin());
  result.sequence->items = backward;
  return result;
}

/// What `attribute` means to filters: a path of names and numbers, nothing where it is not given.
Value follow(Runtime& runtime, Value item, const Value* path, const Value* otherwise = nullptr) {
  runtime.charge(1);
  if (path == nullptr || path->is(Kind::none)) return item;
  const auto step = [&](const Value& key) {
    item = element(runtime, item, key);
    const bool replaced = otherwise != nullptr && !otherwise->is(Kind::none);
    if (replaced && item.is(Kind::undefined)) item = *otherwise;
  };
  if (!path->is(Kind::string)) {
    step(*path);
    return item;
  }
  runtime.charge_bytes(path->text.size());
  for (const std::string_view part : split(path->text, ".", -1, false)) {
    std::int64_t number = 0;
    const bool digits =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (digits &&
        std::from_chars(part.data(), part.data() + part.size(), number).ec == std::errc()) {
      step(Value::of(number));
    } else {
      step(Value::of(part));
    }
  }
  return item;
}

Value join(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"d", "attribute"});
  const std::string_view between = given[0] == nullptr ? "" : text_of(runtime, *given[0]);
  std::string out;
  bool begun = false;
  for (const Value& item : items_of(runtime, value)) {
    const Value part = follow(runtime, item, given[1]);
    expect_plain(part);
    if (begun) out += between;
    begun = true;
    const std::size_t before = out.size();
    append_text(out, part);
    runtime.charge_bytes(out.size() - before + between.size());
  }
  return runtime.text(out);
}

/// What map, select and their kin go through: nothing also where the value is false, such as none.
std::span<const Value> items_if_any(Runtime& runtime, const Value& value) {
  return truth(value) ? items_of(runtime, value) : std::span<const Value>();
}

Value map(Runtime& runtime, const Value& value, const Arguments& arguments) {
  std::vector<Value> made;
  if (arguments.positional.empty()) {
    const Parameters given(arguments, {"attribute", "default"}, 1);
    for (const Value& item : items_if_any(runtime, value)) {
      made.push_back(follow(runtime, item, given[0], given[1]));
    }
  } else {
    const Value& name = arguments.positional[0];
    if (!name.is(Kind::string)) fail("the filter 'map' takes the name of a filter");
    const int filter = find_filter(name.text);
    if (filter < 0) fail(fmt::format("the filter '{}' is not supported", name.text));
    const Arguments rest{arguments.positional.subspan(1), arguments.named};
    for (const Value& item : items_if_any(runtime, value)) {
      made.push_back(call_filter(runtime, filter, item, rest));
    }
  }
  return runtime.sequence(Kind::generator, made);
}

/// select, reject, selectattr and rejectattr.
template <bool by_attribute, bool keeps>
Value select(Runtime& runtime, const Value& value, const Arguments& arguments) {
  constexpr std::size_t kSkipped = by_attribute ? 1 : 0;
  if (arguments.positional.size() < kSkipped) fail("the attribute is missing");
  const Value* path = by_attribute ? arguments.positional.data() : nullptr;
  Arguments rest{arguments.positional.subspan(kSkipped), arguments.named};
  int test = -1;
  if (!rest.positional.empty()) {
    const Value& name = rest.positional[0];
    if (!name.is(Kind::string)) fail("the name of a test must be a string");
    test = find_test(name.text);
    if (test < 0) fail(fmt::format("the test '{}' is not supported", name.text));
    rest.positional = rest.positional.subspan(1);
  }
  std::vector<Value> kept;
  for (const Value& item : items_if_any(runtime, value)) {
    runtime.charge(1);
    const Value tested = follow(runtime, item, path);
    if ((test < 0 ? truth(tested) : call_test(runtime, test, tested, rest)) == keeps) {
      kept.push_back(item);
    }
  }
  return runtime.sequence(Kind::generator, kept);
}

// What orders or compares items.

Value without_case(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::string)) return value;
  expect_plain(value);
  runtime.charge_bytes(value.text.size());
  return runtime.text(lower(value.text));
}

struct Keyed {
  Value key;
  Value item;
};
std::vector<Keyed> keyed(Runtime& runtime, std::span<const Value> items, const Value* path,
                         bool case_sensitive) {
  std::vector<Keyed> result;
  for (const Value& item : items) {
    const Value key = follow(runtime, item, path);
    result.push_back({without_case(runtime, key, case_sensitive), item});
  }
  return result;
}

Value sorted(Runtime& runtime, std::vector<Keyed> keys, bool backward) {
  std::ranges::stable_sort(keys, [&runtime, backward](const Keyed& left, const Keyed& right) {
    return backward ? less(runtime, right.key, left.key, "<")
                    : less(runtime, left.key, right.key, "<");
  });
  const auto items = runtime.array<Value>(keys.size());
  std::ranges::transform(keys, items.begin(), &Keyed::item);
  return runtime.sequence(Kind::list, items);
}

Value sort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"reverse", "case_sensitive", "attribute"});
  if (given[2] != nullptr && given[2]->is(Kind::string) &&
      given[2]->text.find(',') != std::string_view::npos) {
    fail("sorting by more than one attribute is not supported");
  }
  return sorted(runtime, keyed(runtime, items_of(runtime, value), given[2], given.flag(1, false)),
                given.flag(0, false));
}

Value dictsort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"case_sensitive", "by", "reverse"});
  const std::string_view by = given.text(1, "key");
  if (by != "key" && by != "value") fail("by must be 'key' or 'value'");
  expect_defined(value);
  if (!value.is(Kind::mapping)) fail("the filter 'dictsort' takes a mapping");
  const Value pairs = find_method(Kind::mapping, "items")->call(runtime, value, {});
  const Value place = Value::of(std::int64_t{by == "key" ? 0 : 1});
  return sorted(runtime, keyed(runtime, pairs.sequence->items, &place, given.flag(0, false)),
                given.flag(2, false));
}

template <bool greatest>
Value extreme(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"case_sensitive", "attribute"});
  const auto keys = keyed(runtime, items_of(runtime, value), given[1], given.flag(0, false));
  if (keys.empty()) return undefined_because(runtime, "No aggregated item, sequence was empty.");
  const Keyed* best = keys.data();
  for (const Keyed& key : std::span(keys).subspan(1)) {
    if (greatest ? less(runtime, best->key, key.key, ">") : less(runtime, key.key, best->key, "<"))
      best = &key;
  }
  return best->item;
}

Value unique(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"case_sensitive", "attribute"});
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const auto& [key, item] :
       keyed(runtime, items_of(runtime, value), given[1], given.flag(0, false))) {
    if (std::ranges::any_of(
            seen, [&, &key = key](const Value& other) { return equal(runtime, other, key); }))
      continue;
    seen.push_back(key);
    kept.push_back(item);
  }
  return runtime.sequence(Kind::generator, kept);
}

Value sum(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"attribute", "start"});
  Value total = given[1] != nullptr ? *given[1] : Value::of(std::int64_t{0});
  for (const Value& item : items_of(runtime, value)) {
    const Value part = follow(runtime, item, given[0]);
    if (total.is(Kind::string)) fail("strings have no sum");
    total = calculate(runtime, Operator::add, total, part);
  }
  return total;
}

struct FilterEntry {
  std::string_view name;
  Filter call;
  bool takes_safe = false;  ///< Right for text marked safe, too.
};
constexpr auto kFilters = std::to_array<FilterEntry>({
    {"abs", absolute},
    {"capitalize", changed<capitalized>},
    {"count", length_of, true},
    {"d", default_of, true},
    {"default", default_of, true},
    {"dictsort", dictsort},
    {"first", first},
    {"float", to_real},
    {"indent", indent},
    {"int", to_whole},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length_of, true},
    {"list", list},
    {"lower", changed<lower>},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", select<false, false>},
    {"rejectattr", select<true, false>},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round},
    {"safe", safe, true},
    {"select", select<false, true>},
    {"selectattr", select<true, true>},
    {"sort", sort},
    {"string", string, true},
    {"sum", sum},
    {"title", changed<titled_by_filter>},
    {"tojson", to_json, true},
    {"trim", trim},
    {"unique", unique},
    {"upper", changed<upper>},
});

}  // namespace

int find_filter(std::string_view name) {
  const auto found = std::ranges::find(kFilters, name, &FilterEntry::name);
  return found == kFilters.end() ? -1 : static_cast<int>(found - kFilters.begin());
}

Value call_filter(Runtime& runtime, int filter, const Value& value, const Arguments& arguments) {
  runtime.charge(1);
  const FilterEntry& entry = kFilters.at(static_cast<std::size_t>(filter));
  if (!entry.takes_safe) {
    expect_plain(value);
    for (const Value& argument : arguments.positional) expect_plain(argument);
  }
  return entry.call(runtime, value, arguments);
}

}  // namespace jforge::jinja
