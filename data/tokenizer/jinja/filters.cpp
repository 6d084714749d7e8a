#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/text_internal.h"

namespace jforge::jinja {
namespace {

template <std::string (*change)(std::string_view)>
Value changed(Runtime& runtime, const Value& value, const Parameters& /*given*/) {
  const std::string_view text = text_of(runtime, value);
  runtime.charge_bytes(text.size());
  return runtime.text(change(text));
}

Value trim(Runtime& runtime, const Value& value, const Parameters& given) {
  const std::string_view text = text_of(runtime, value);
  runtime.charge_bytes(text.size());
  if (!given.has(0)) return Value(strip(text, Side::both));
  runtime.charge(text.size() * given.text(0).size() / 64);
  return Value(strip(text, Side::both, given.text(0)));
}

Value replace(Runtime& runtime, const Value& value, const Parameters& given) {
  const std::array parts = {Value(text_of(runtime, *given[0])), Value(text_of(runtime, *given[1]))};
  return call(runtime, *find_method(Kind::string, "replace"), Value(text_of(runtime, value)),
              {.positional = parts, .named = {}});
}

Value string(Runtime& runtime, const Value& value, const Parameters& /*given*/) {
  return value.is(Kind::string) ? value : Value(text_of(runtime, value));
}

Value safe(Runtime& runtime, const Value& value, const Parameters& given) {
  Value text = string(runtime, value, given);
  text.safe = true;
  return text;
}

Value to_whole(Runtime& runtime, const Value& value, const Parameters& given) {
  expect_defined(value);
  if (value.is_number()) return Value(value.number());
  if (value.is(Kind::string)) {
    runtime.charge_bytes(value.text.size());
    std::string_view text = strip(value.text, Side::both);
    if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
    std::int64_t whole = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), whole);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return Value(whole);
    // Python accepts more numbers.
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c & 0x80) != 0; };
    if (std::ranges::any_of(text, is_digit)) {
      fail("the filter 'int' of other texts than whole numbers in 64 bits is not supported");
    }
  }
  return given[0] != nullptr ? *given[0] : Value(std::int64_t{0});
}

Value length_of(Runtime& runtime, const Value& value, const Parameters& /*given*/) {
  switch (value.kind) {
    case Kind::undefined:
      return Value(std::int64_t{0});
    case Kind::string:
      runtime.charge_bytes(value.text.size());
      return Value(length(value.text));
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
      return Value(std::ssize(value.sequence->items));
    case Kind::mapping:
      return Value(std::ssize(value.mapping->entries));
    default:
      fail(fmt::format("a {} has no length", type_name(value.kind)));
  }
}

Value default_of(Runtime& runtime, const Value& value, const Parameters& given) {
  if (!value.is(Kind::undefined) && (!given.flag(1, false) || truth(value))) return value;
  return given[0] != nullptr ? *given[0] : runtime.text("");
}

Value first(Runtime& runtime, const Value& value, const Parameters& /*given*/) {
  if (value.is(Kind::generator)) {
    auto& [items, next] = *value.sequence;
    if (next < items.size()) return items[next++];
  } else if (const auto items = items_of(runtime, value); !items.empty()) {
    return items.front();
  }
  return undefined_because(runtime, "No first item, sequence was empty.");
}

Value last(Runtime& runtime, const Value& value, const Parameters& /*given*/) {
  if (value.is(Kind::generator)) fail("a generator has no last item");
  if (const auto items = items_of(runtime, value); !items.empty()) return items.back();
  return undefined_because(runtime, "No last item, sequence was empty.");
}

Value list(Runtime& runtime, const Value& value, const Parameters& /*given*/) {
  const auto items = items_of(runtime, value);
  runtime.charge(items.size());
  return runtime.sequence(Kind::list, items);
}

Value items(Runtime& runtime, const Value& value, const Parameters& /*given*/) {
  if (value.is(Kind::undefined)) return runtime.sequence(Kind::generator, {});
  if (!value.is(Kind::mapping)) fail("the filter 'items' takes a mapping");
  Value view = call(runtime, *find_method(Kind::mapping, "items"), value, {});
  view.kind = Kind::generator;
  return view;
}

/// Follows the dotted attribute names in `path`.
Value follow(Runtime& runtime, Value item, const Value* path) {
  runtime.charge(1);
  if (path == nullptr || path->is(Kind::none)) return item;
  if (!path->is(Kind::string)) fail("an attribute that is no string is not supported");
  runtime.charge_bytes(path->text.size());
  for (const std::string_view name : split(path->text, ".", -1, false)) {
    if (!name.empty() && name.front() >= '0' && name.front() <= '9') {
      fail("a number in the path of an attribute is not supported");
    }
    item = element(runtime, item, Value(name));
  }
  return item;
}

Value join(Runtime& runtime, const Value& value, const Parameters& given) {
  const std::string_view between = given[0] == nullptr ? "" : text_of(runtime, *given[0]);
  std::string out;
  bool begun = false;
  for (const Value& item : items_of(runtime, value)) {
    expect_plain(item);
    if (begun) out += between;
    begun = true;
    const std::size_t before = out.size();
    append_text(runtime, out, item);
    runtime.charge_bytes(out.size() - before + between.size());
  }
  return runtime.text(out);
}

/// Returns no items for false values, as map and select do.
std::span<const Value> items_if_any(Runtime& runtime, const Value& value) {
  return truth(value) ? items_of(runtime, value) : std::span<const Value>();
}

Value map(Runtime& runtime, const Value& value, const Parameters& given) {
  const auto& [positional, named] = given.all();
  const bool by_attribute = positional.empty();
  if (by_attribute && (named.size() != 1 || named[0].name != "attribute")) {
    fail("the filter 'map' takes a filter, or attribute= alone");
  }
  std::vector<Value> made;
  for (const Value& item : items_if_any(runtime, value)) {
    made.push_back(by_attribute ? follow(runtime, item, &named[0].value)
                                : call_filter(runtime, expect_text(positional[0]), item,
                                              {positional.subspan(1), named}));
  }
  return runtime.sequence(Kind::generator, made);
}

template <bool by_attribute, bool keeps>
Value select(Runtime& runtime, const Value& value, const Parameters& given) {
  auto rest = given.all().positional;
  const Value* path = nullptr;
  if (by_attribute) {
    if (rest.empty()) fail("the attribute is missing");
    path = &rest.front();
    rest = rest.subspan(1);
  }
  std::vector<Value> kept;
  for (const Value& item : items_if_any(runtime, value)) {
    runtime.charge(1);
    const Value tested = follow(runtime, item, path);
    bool passes = false;
    if (rest.empty()) {
      passes = truth(tested);
    } else {
      passes =
          call_test(runtime, expect_text(rest[0]), tested, {rest.subspan(1), given.all().named});
    }
    if (passes == keeps) kept.push_back(item);
  }
  return runtime.sequence(Kind::generator, kept);
}

/// Sorts by the keys, ignoring case.
Value dictsort(Runtime& runtime, const Value& value, const Parameters& /*given*/) {
  expect_defined(value);
  if (!value.is(Kind::mapping)) fail("the filter 'dictsort' takes a mapping");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, held] : value.mapping->entries) {
    Value folded = key;
    if (key.is(Kind::string)) {
      expect_plain(key);
      runtime.charge_bytes(key.text.size());
      folded = runtime.text(lower(key.text));
    }
    keyed.emplace_back(folded, runtime.sequence(Kind::tuple, std::array{key, held}));
  }
  std::ranges::stable_sort(keyed, [&](const auto& left, const auto& right) {
    return less(runtime, left.first, right.first, "<");
  });
  std::vector<Value> items;
  for (const auto& [key, pair] : keyed) items.push_back(pair);
  return runtime.sequence(Kind::list, items);
}

constexpr auto kFilters = std::to_array<Builtin>({
    {"capitalize", changed<capitalized>},
    {"count", length_of, {}, 0, Takes::safe},
    {"d", default_of, {"default_value", "boolean"}, 0, Takes::safe},
    {"default", default_of, {"default_value", "boolean"}, 0, Takes::safe},
    {"dictsort", dictsort},
    {"first", first},
    {"int", to_whole, {"default"}},
    {"items", items},
    {"join", join, {"d"}},
    {"last", last},
    {"length", length_of, {}, 0, Takes::safe},
    {"list", list},
    {"lower", changed<lower>},
    {"map", map, {}, 0, Takes::any},
    {"reject", select<false, false>, {}, 0, Takes::any},
    {"rejectattr", select<true, false>, {}, 0, Takes::any},
    {"replace", replace, {"old", "new"}, 2},
    {"safe", safe, {}, 0, Takes::safe},
    {"select", select<false, true>, {}, 0, Takes::any},
    {"selectattr", select<true, true>, {}, 0, Takes::any},
    {"string", string, {}, 0, Takes::safe},
    {"tojson", to_json, {"ensure_ascii"}, 0, Takes::safe},
    {"trim", trim, {"chars"}},
    {"upper", changed<upper>},
});

}  // namespace

Value call_filter(Runtime& runtime, std::string_view name, const Value& value,
                  const Arguments& arguments) {
  runtime.charge(1);
  const auto filter = std::ranges::find(kFilters, name, &Builtin::name);
  if (filter == kFilters.end()) fail(fmt::format("the filter '{}' is not supported", name));
  if (filter->takes != Takes::safe) {
    expect_plain(value);
    for (const Value& argument : arguments.positional) expect_plain(argument);
  }
  return call(runtime, *filter, value, arguments);
}

}  // namespace jforge::jinja
