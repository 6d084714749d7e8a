#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <optional>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/template.h"

/// Global functions and tests (after `is`).

namespace jforge::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // jinja2's sandbox limit.

Value range(Runtime& runtime, const Value& /*self*/, const Parameters& given) {
  std::array<std::int64_t, 3> bounds = {0, 0, 1};
  const bool one = given[1] == nullptr;
  for (std::size_t i = 0; i < 3 && given[i] != nullptr; ++i) {
    bounds[one ? 1 : i] = given.whole(i, 0);
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) fail("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    if (std::ssize(items) == kMaxRange) {
      fail(fmt::format("a range of more than {} numbers", kMaxRange));
    }
    items.push_back(Value(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  runtime.charge(items.size());
  return runtime.sequence(Kind::range, items);
}

const Mapping* mapping_of(Runtime& runtime, const Arguments& arguments) {
  std::vector<Entry> entries;
  if (arguments.positional.size() > 1) fail("at most one argument without a name is taken");
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (!given.is(Kind::mapping)) fail("a mapping of something else is not supported");
    entries.assign(given.mapping->entries.begin(), given.mapping->entries.end());
  }
  for (const Argument& argument : arguments.named) {
    entries.push_back({Value(argument.name), argument.value});
  }
  return make_mapping(runtime, entries);
}

Value dict(Runtime& runtime, const Value& /*self*/, const Parameters& given) {
  return Value(mapping_of(runtime, given.all()));
}

Value name_space(Runtime& runtime, const Value& /*self*/, const Parameters& given) {
  Namespace* const made = runtime.make(Namespace{});
  for (const Entry& entry : mapping_of(runtime, given.all())->entries) {
    if (!entry.key.is(Kind::string)) fail("a namespace takes names");
    if (entry.key.text.starts_with('_')) fail("a namespace takes no name that begins with '_'");
    made->set(runtime, entry.key.text, entry.value);
  }
  return Value(made);
}

Value raise_exception(Runtime& runtime, const Value& /*self*/, const Parameters& given) {
  throw Failure{.reason = std::string(text_of(runtime, *given[0])), .raised = true};
}

constexpr auto kFunctions = std::to_array<Builtin>({
    {"dict", dict, {}, 0, Takes::any},
    {"namespace", name_space, {}, 0, Takes::any},
    {"raise_exception", raise_exception, {"message"}, 1},
    {"range", range, {"start", "stop", "step"}, 1},
});

/// strftime conversions that depend only on the day (times print midnight).
constexpr std::string_view kConversions = "aAbBcCdDeFgGhHIjmMnprRStTuUVwWxXyY%";

/// Parses YYYY-MM-DD; nullopt if there is no such day.
std::optional<std::tm> parse_day(std::string_view text) {
  constexpr std::string_view kPattern = "0000-00-00";
  const auto fits = [](char given, char pattern) {
    return pattern == '0' ? given >= '0' && given <= '9' : given == pattern;
  };
  if (!std::ranges::equal(text, kPattern, fits) || text.front() == '0') return std::nullopt;
  std::tm day{};
  std::from_chars(text.data(), text.data() + 4, day.tm_year);
  std::from_chars(text.data() + 5, text.data() + 7, day.tm_mon);
  std::from_chars(text.data() + 8, text.data() + 10, day.tm_mday);
  day.tm_year -= 1900;
  day.tm_mon -= 1;
  std::tm normal = day;
  timegm(&normal);  // Normalises days that do not exist.
  if (normal.tm_mon != day.tm_mon || normal.tm_mday != day.tm_mday) return std::nullopt;
  return normal;
}

/// Prints one conversion at a time, which has a known maximum length.
Value print_day(Runtime& runtime, const Value& self, const Parameters& given) {
  const std::string_view format = given.text(0);
  runtime.charge(format.size());
  const std::tm time = parse_day(self.text).value();
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const std::size_t begin = i++;
    if (i < format.size() && format[i] == '-') ++i;  // glibc: no padding.
    if (i >= format.size() || kConversions.find(format[i]) == std::string_view::npos) {
      fail(fmt::format("strftime_now does not support '{}'", format.substr(begin, i + 1 - begin)));
    }
    const std::string conversion(format.substr(begin, i + 1 - begin));
    std::array<char, 128> text{};
    out.append(text.data(), std::strftime(text.data(), text.size(), conversion.c_str(), &time));
  }
  return runtime.text(out);
}

constexpr Builtin kPrintDay = {"strftime_now", print_day, {"format"}, 1};

template <bool (*holds)(const Value&)>
Value plain(Runtime& /*runtime*/, const Value& value, const Parameters& /*given*/) {
  return Value(holds(value));
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
/// Returns true for undefined values, too: jinja2's have length and elements.
bool is_sequence(const Value& value) {
  return is_iterable(value) && !value.is(Kind::view) && !value.is(Kind::generator) &&
         !value.is(Kind::loop);
}

template <bool negated>
Value equals(Runtime& runtime, const Value& left, const Parameters& given) {
  return Value(equal(runtime, left, *given[0]) != negated);
}

Value is_in(Runtime& runtime, const Value& value, const Parameters& given) {
  return Value(contains(runtime, *given[0], value));
}

constexpr auto kTests = std::to_array<Builtin>({
    {"boolean", plain<is_kind<Kind::boolean>>},
    {"defined", plain<is_defined>},
    {"eq", equals<false>, {"other"}, 1},
    {"equalto", equals<false>, {"other"}, 1},
    {"==", equals<false>, {"other"}, 1},
    {"false", plain<is_false>},
    {"in", is_in, {"seq"}, 1},
    {"integer", plain<is_kind<Kind::integer>>},
    {"iterable", plain<is_iterable>},
    {"mapping", plain<is_kind<Kind::mapping>>},
    {"ne", equals<true>, {"other"}, 1},
    {"!=", equals<true>, {"other"}, 1},
    {"none", plain<is_kind<Kind::none>>},
    {"number", plain<is_number>},
    {"sequence", plain<is_sequence>},
    {"string", plain<is_kind<Kind::string>>},
    {"true", plain<is_true>},
    {"undefined", plain<is_kind<Kind::undefined>>},
});

}  // namespace

Value call(Runtime& runtime, const Builtin& builtin, const Value& self,
           const Arguments& arguments) {
  return builtin.call(runtime, self, Parameters(arguments, builtin));
}

Parameters::Parameters(const Arguments& given, const Builtin& builtin) : all_(given) {
  if (builtin.takes == Takes::any) return;
  const auto& names = builtin.parameters;
  const auto count = static_cast<std::size_t>(std::ranges::find(names, "") - names.begin());
  if (given.positional.size() > count) {
    fail(fmt::format("more than {} arguments of '{}' are not supported", count, builtin.name));
  }
  for (std::size_t i = 0; i < given.positional.size(); ++i) values_[i] = &given.positional[i];
  for (const Argument& argument : given.named) {
    const auto i =
        static_cast<std::size_t>(std::ranges::find(names, argument.name) - names.begin());
    if (i >= count) {
      fail(fmt::format("the argument '{}' of '{}' is not supported", argument.name, builtin.name));
    }
    if (values_[i] != nullptr) fail(fmt::format("the argument '{}' is given twice", argument.name));
    values_[i] = &argument.value;
  }
  for (std::size_t i = 0; i < builtin.required; ++i) {
    if (values_[i] == nullptr) fail(fmt::format("argument {} is missing", i + 1));
  }
}

std::int64_t Parameters::whole(std::size_t i, std::int64_t fallback) const {
  if (values_[i] == nullptr) return fallback;
  expect_defined(*values_[i]);
  if (!values_[i]->is_number()) fail(fmt::format("argument {} must be a whole number", i + 1));
  return values_[i]->number();
}

bool Parameters::flag(std::size_t i, bool fallback) const {
  return values_[i] == nullptr ? fallback : truth(*values_[i]);
}

std::string_view Parameters::text(std::size_t i) const { return expect_text(*values_[i]); }

std::string_view expect_text(const Value& value) {
  expect_defined(value);
  expect_plain(value);
  if (!value.is(Kind::string)) {
    fail(fmt::format("a string is needed, not a {}", type_name(value.kind)));
  }
  return value.text;
}

const Builtin* find_function(std::string_view name) {
  const auto found = std::ranges::find(kFunctions, name, &Builtin::name);
  return found == kFunctions.end() ? nullptr : &*found;
}

const Mapping* make_mapping(Runtime& runtime, std::span<const Entry> entries) {
  const auto kept = runtime.array<Entry>(entries.size());
  std::size_t count = 0;
  for (const Entry& entry : entries) {
    const Kind kind = entry.key.kind;
    if (kind == Kind::list || kind == Kind::mapping) {
      fail(fmt::format("a {} is no key of a mapping", type_name(kind)));
    }
    const auto same = std::ranges::find_if(kept.first(count), [&](const Entry& other) {
      return equal(runtime, other.key, entry.key);
    });
    if (same != kept.begin() + static_cast<std::ptrdiff_t>(count)) {
      same->value = entry.value;
    } else {
      kept[count++] = entry;
    }
  }
  return runtime.make(Mapping{.entries = kept.first(count)});
}

bool call_test(Runtime& runtime, std::string_view name, const Value& value,
               const Arguments& arguments) {
  runtime.charge(1);
  const auto test = std::ranges::find(kTests, name, &Builtin::name);
  if (test == kTests.end()) fail(fmt::format("the test '{}' is not supported", name));
  return truth(call(runtime, *test, value, arguments));
}

bool is_day(std::string_view text) { return parse_day(text).has_value(); }

Value strftime_on(Runtime& runtime, std::string_view day) {
  return Value(runtime.make(Method{.receiver = Value(day), .method = &kPrintDay}));
}

}  // namespace jforge::jinja
