#include <fmt/format.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/text_internal.h"
#include "data/tokenizer/unicode.h"

namespace jforge::jinja {
namespace {

/// Text arguments are used by all methods of strings.
std::string_view text_argument(const Value& value) {
  expect_defined(value);
  expect_plain(value);
  if (!value.is(Kind::string)) {
    fail(fmt::format("a string is needed, not a {}", type_name(value.kind)));
  }
  return value.text;
}

// What strings have.

template <Side side>
Value str_strip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {""});
  runtime.charge_bytes(self.text.size());
  if (given[0] == nullptr || given[0]->is(Kind::none)) return Value::of(strip(self.text, side));
  const std::string_view characters = text_argument(*given[0]);
  runtime.charge(self.text.size() * characters.size() / 64);
  return Value::of(strip(self.text, side, characters));
}

template <bool from_right>
Value str_split(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {"sep", "maxsplit"});
  const std::int64_t most = given.whole(1, -1);
  runtime.charge_bytes(self.text.size());
  if (given[0] == nullptr || given[0]->is(Kind::none)) {
    return runtime.texts(Kind::list, split_at_spaces(self.text, most, from_right));
  }
  const std::string_view separator = text_argument(*given[0]);
  if (separator.empty()) fail("empty separator");
  return runtime.texts(Kind::list, split(self.text, separator, most, from_right));
}

Value str_splitlines(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {"keepends"});
  runtime.charge_bytes(self.text.size());
  return runtime.texts(Kind::list, split_lines(self.text, given.flag(0, false)));
}

template <bool from_right>
Value str_partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {""}, 1);
  const std::string_view separator = text_argument(*given[0]);
  if (separator.empty()) fail("empty separator");
  runtime.charge_bytes(self.text.size());
  const std::size_t at =
      from_right ? find_last_text(self.text, separator) : find_text(self.text, separator);
  if (at == std::string_view::npos) {
    return runtime.texts(
        Kind::tuple, from_right ? std::vector{std::string_view(), std::string_view(), self.text}
                                : std::vector{self.text, std::string_view(), std::string_view()});
  }
  return runtime.texts(
      Kind::tuple, {self.text.substr(0, at), separator, self.text.substr(at + separator.size())});
}

/// The part of a string between two optional arguments, and where it begins in characters.
struct Part {
  std::string_view text;
  std::int64_t begin = 0;
  bool empty_before_end = false;  ///< It begins behind the end: nothing is found in it.
};
Part part_of(Runtime& runtime, const Value& self, const Parameters& given) {
  runtime.charge_bytes(self.text.size());
  if (given[1] == nullptr && given[2] == nullptr) return {self.text};
  const std::int64_t size = length(self.text);
  std::int64_t begin = 0;
  if (given[1] != nullptr && !given[1]->is(Kind::none)) begin = given.whole(1, 0);
  if (begin < 0) begin = std::max<std::int64_t>(begin + size, 0);
  const Value part = slice(runtime, self, given[1], given[2], nullptr);
  return {.text = part.text, .begin = begin, .empty_before_end = begin > size};
}

template <bool from_right, bool must_be_there>
Value str_find(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {"", "", ""}, 1);
  const std::string_view sought = text_argument(*given[0]);
  const Part part = part_of(runtime, self, given);
  std::size_t at = from_right ? find_last_text(part.text, sought) : find_text(part.text, sought);
  if (part.empty_before_end) at = std::string_view::npos;
  if (at == std::string_view::npos) {
    if (must_be_there) fail("substring not found");
    return Value::of(std::int64_t{-1});
  }
  return Value::of(part.begin + length(part.text.substr(0, at)));
}

Value str_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {"", "", ""}, 1);
  const std::string_view sought = text_argument(*given[0]);
  const Part part = part_of(runtime, self, given);
  if (part.empty_before_end) return Value::of(std::int64_t{0});
  if (sought.empty()) return Value::of(length(part.text) + 1);
  return Value::of(std::ssize(split(part.text, sought, -1, false)) - 1);
}

template <bool at_end>
Value str_edge(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {"", "", ""}, 1);
  const Part part = part_of(runtime, self, given);
  const auto fits = [&](const Value& edge) {
    const std::string_view text = text_argument(edge);
    runtime.charge_bytes(std::min(text.size(), part.text.size()));
    return !part.empty_before_end &&
           (at_end ? part.text.ends_with(text) : part.text.starts_with(text));
  };
  if (given[0]->is(Kind::tuple)) {
    return Value::of(std::ranges::any_of(given[0]->sequence->items, fits));
  }
  return Value::of(fits(*given[0]));
}

template <bool at_end>
Value str_remove(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {""}, 1);
  const std::string_view edge = text_argument(*given[0]);
  std::string_view text = self.text;
  runtime.charge_bytes(std::min(text.size(), edge.size()));
  if (at_end ? !text.ends_with(edge) : !text.starts_with(edge)) return self;
  if (at_end) {
    text.remove_suffix(edge.size());
  } else {
    text.remove_prefix(edge.size());
  }
  return Value::of(text);
}

Value str_replace(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {"", "", ""}, 2);
  const std::string_view old = text_argument(*given[0]);
  const std::string_view by = text_argument(*given[1]);
  runtime.charge_bytes(self.text.size());
  // Looked at before it is made: it may be much longer.
  const std::size_t found = old.empty() ? self.text.size() + 1 : self.text.size() / old.size();
  if (by.size() > 0 && found > kMostBytes / by.size()) fail("a text is too long");
  if (old.empty()) runtime.charge(self.text.size());
  return runtime.text(replaced(self.text, old, by, given.whole(2, -1)));
}

Value str_join(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {""}, 1);
  std::string joined;
  bool first = true;
  expect_defined(*given[0]);
  for (const Value& item : items_of(runtime, *given[0])) {
    if (!first) joined += self.text;
    first = false;
    joined += text_argument(item);
    runtime.charge_bytes(self.text.size() + item.text.size());
  }
  return runtime.text(joined);
}

/// Only `{}`, `{0}` and `{name}`.
Value str_format(Runtime& runtime, const Value& self, const Arguments& arguments) {
  std::string out;
  std::size_t next = 0;
  const auto argument = [&](std::string_view field) {
    std::size_t at = next;
    if (field.empty()) ++next;
    runtime.charge(arguments.named.size() / 4);
    for (const Argument& named : arguments.named) {
      if (named.name == field) return named.value;
    }
    const auto parsed = std::from_chars(field.data(), field.data() + field.size(), at);
    if (parsed.ptr != field.data() + field.size() || at >= arguments.positional.size()) {
      fail(fmt::format("the field '{{{}}}' of a format is not supported", field));
    }
    return arguments.positional[at];
  };
  const std::string_view text = self.text;
  runtime.charge_bytes(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool twice = text.substr(at + 1).starts_with(text[at]);
    if (text[at] == '{' && !twice) {
      const std::size_t end = text.find('}', at);
      if (end == std::string_view::npos) fail("a field of a format without its end");
      append_text(out, argument(text.substr(at + 1, end - at - 1)));
      runtime.charge_bytes(out.size());
      at = end;
    } else {
      if (text[at] == '}' && !twice) fail("a single '}' in a format");
      out += text[at];
      if (text[at] == '{' || text[at] == '}') ++at;
    }
  }
  return runtime.text(out);
}

template <std::string (*change)(std::string_view)>
Value str_changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {});
  runtime.charge_bytes(self.text.size());
  return runtime.text(change(self.text));
}

template <bool (*is_so)(char32_t)>
Value str_all(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {});
  runtime.charge_bytes(self.text.size());
  for (std::size_t at = 0; at < self.text.size();) {
    const CodePoint point = code_point_at(self.text, at);
    if (!is_so(point.value)) return Value::of(false);
    at += point.length;
  }
  return Value::of(!self.text.empty());
}

UChar32 icu(char32_t c) { return static_cast<UChar32>(c); }
int numeric_type(char32_t c) { return u_getIntPropertyValue(icu(c), UCHAR_NUMERIC_TYPE); }
bool is_decimal(char32_t c) { return numeric_type(c) == U_NT_DECIMAL; }
bool is_digit(char32_t c) { return is_decimal(c) || numeric_type(c) == U_NT_DIGIT; }
bool is_numeric(char32_t c) { return numeric_type(c) != U_NT_NONE; }
bool is_letter(char32_t c) { return u_isalpha(icu(c)) != 0; }
bool is_alphanumeric(char32_t c) { return is_letter(c) || is_numeric(c); }

Value str_isascii(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {});
  runtime.charge_bytes(self.text.size());
  return Value::of(length(self.text) == std::ssize(self.text));
}

/// All letters that have a case have this one, and there is one.
template <UProperty property>
Value str_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {});
  runtime.charge_bytes(self.text.size());
  bool found = false;
  for (std::size_t at = 0; at < self.text.size();) {
    const CodePoint point = code_point_at(self.text, at);
    const bool cased = u_hasBinaryProperty(icu(point.value), property) != 0;
    const bool title = u_charType(icu(point.value)) == U_TITLECASE_LETTER;
    const bool other = u_hasBinaryProperty(
        icu(point.value), property == UCHAR_LOWERCASE ? UCHAR_UPPERCASE : UCHAR_LOWERCASE);
    if (title || other) return Value::of(false);
    found = found || cased;
    at += point.length;
  }
  return Value::of(found);
}

// What mappings have.

Value dict_get(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {"", ""}, 1);
  const Value* found = find(runtime, *self.mapping, *given[0]);
  if (found != nullptr) return *found;
  return given[1] != nullptr ? *given[1] : Value::none();
}

enum class EntryPart { key, value, both };
template <EntryPart part>
Value dict_view(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {});
  const auto& entries = self.mapping->entries;
  runtime.charge(entries.size());
  const auto items = runtime.array<Value>(entries.size());
  std::ranges::transform(entries, items.begin(), [&](const Entry& entry) {
    if (part == EntryPart::key) return entry.key;
    if (part == EntryPart::value) return entry.value;
    return runtime.sequence(Kind::tuple, std::array{entry.key, entry.value});
  });
  return runtime.sequence(Kind::view, items);
}

Value copy(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {});
  return self;  // Nothing changes it.
}

// What lists and tuples have.

Value list_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {""}, 1);
  runtime.charge(self.sequence->items.size());
  return Value::of(static_cast<std::int64_t>(std::ranges::count_if(
      self.sequence->items, [&](const Value& item) { return equal(runtime, item, *given[0]); })));
}

Value list_index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters given(arguments, {""}, 1);
  const auto& items = self.sequence->items;
  runtime.charge(items.size());
  const auto found = std::ranges::find_if(
      items, [&](const Value& item) { return equal(runtime, item, *given[0]); });
  if (found == items.end()) fail("the value is not in the list");
  return Value::of(static_cast<std::int64_t>(found - items.begin()));
}

// All that Python 3.12 has without an underscore, sorted by name.

constexpr auto kStringMethods = std::to_array<MethodEntry>({
    {"capitalize", str_changed<capitalized>},
    {"casefold", nullptr},
    {"center", nullptr},
    {"count", str_count},
    {"encode", nullptr},
    {"endswith", str_edge<true>},
    {"expandtabs", nullptr},
    {"find", str_find<false, false>},
    {"format", str_format},
    {"format_map", nullptr},
    {"index", str_find<false, true>},
    {"isalnum", str_all<is_alphanumeric>},
    {"isalpha", str_all<is_letter>},
    {"isascii", str_isascii},
    {"isdecimal", str_all<is_decimal>},
    {"isdigit", str_all<is_digit>},
    {"isidentifier", nullptr},
    {"islower", str_case<UCHAR_LOWERCASE>},
    {"isnumeric", str_all<is_numeric>},
    {"isprintable", nullptr},
    {"isspace", str_all<is_python_space>},
    {"istitle", nullptr},
    {"isupper", str_case<UCHAR_UPPERCASE>},
    {"join", str_join},
    {"ljust", nullptr},
    {"lower", str_changed<lower>},
    {"lstrip", str_strip<Side::left>},
    {"maketrans", nullptr},
    {"partition", str_partition<false>},
    {"removeprefix", str_remove<false>},
    {"removesuffix", str_remove<true>},
    {"replace", str_replace},
    {"rfind", str_find<true, false>},
    {"rindex", str_find<true, true>},
    {"rjust", nullptr},
    {"rpartition", str_partition<true>},
    {"rsplit", str_split<true>},
    {"rstrip", str_strip<Side::right>},
    {"split", str_split<false>},
    {"splitlines", str_splitlines},
    {"startswith", str_edge<false>},
    {"strip", str_strip<Side::both>},
    {"swapcase", nullptr},
    {"title", str_changed<titled>},
    {"translate", nullptr},
    {"upper", str_changed<upper>},
    {"zfill", nullptr},
});
constexpr auto kMappingMethods = std::to_array<MethodEntry>({
    {"copy", copy},
    {"fromkeys", nullptr},
    {"get", dict_get},
    {"items", dict_view<EntryPart::both>},
    {"keys", dict_view<EntryPart::key>},
    {"values", dict_view<EntryPart::value>},
});
constexpr auto kListMethods = std::to_array<MethodEntry>({
    {"copy", copy},
    {"count", list_count},
    {"index", list_index},
});
constexpr auto kTupleMethods = std::to_array<MethodEntry>({
    {"count", list_count},
    {"index", list_index},
});
constexpr auto kWholeMethods = std::to_array<MethodEntry>({
    {"as_integer_ratio", nullptr},
    {"bit_count", nullptr},
    {"bit_length", nullptr},
    {"conjugate", nullptr},
    {"denominator", nullptr},
    {"from_bytes", nullptr},
    {"imag", nullptr},
    {"is_integer", nullptr},
    {"numerator", nullptr},
    {"real", nullptr},
    {"to_bytes", nullptr},
});
constexpr auto kRealMethods = std::to_array<MethodEntry>({
    {"as_integer_ratio", nullptr},
    {"conjugate", nullptr},
    {"fromhex", nullptr},
    {"hex", nullptr},
    {"imag", nullptr},
    {"is_integer", nullptr},
    {"real", nullptr},
});
constexpr auto kRangeMethods = std::to_array<MethodEntry>({
    {"count", list_count},
    {"index", list_index},
    {"start", nullptr},
    {"step", nullptr},
    {"stop", nullptr},
});

std::span<const MethodEntry> methods_of(Kind kind) {
  switch (kind) {
    case Kind::string:
      return kStringMethods;
    case Kind::mapping:
      return kMappingMethods;
    case Kind::list:
      return kListMethods;
    case Kind::tuple:
      return kTupleMethods;
    case Kind::boolean:
    case Kind::integer:
      return kWholeMethods;
    case Kind::real:
      return kRealMethods;
    case Kind::range:
      return kRangeMethods;
    default:
      return {};
  }
}

}  // namespace

const MethodEntry* find_method(Kind kind, std::string_view name) {
  if (kind >= Kind::view && kind != Kind::mapping && kind != Kind::name_space) {
    fail(fmt::format("'{}' of a {} is not supported", name, type_name(kind)));
  }
  const auto methods = methods_of(kind);
  const auto found = std::ranges::lower_bound(methods, name, {}, &MethodEntry::name);
  if (found == methods.end() || found->name != name) return nullptr;
  if (found->call == nullptr) {
    fail(fmt::format("'{}' of a {} is not supported", name, type_name(kind)));
  }
  return &*found;
}

bool is_forbidden_method(Kind kind, std::string_view name) {
  using Names = std::span<const std::string_view>;
  static constexpr std::string_view kOfLists[] = {"append", "clear",  "extend",  "insert",
                                                  "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kOfMappings[] = {"clear", "pop", "popitem", "setdefault",
                                                     "update"};
  const auto has = [name](Names names) { return std::ranges::find(names, name) != names.end(); };
  return (kind == Kind::list && has(kOfLists)) || (kind == Kind::mapping && has(kOfMappings));
}

}  // namespace jforge::jinja
