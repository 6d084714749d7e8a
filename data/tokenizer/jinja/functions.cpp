#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/tokenizer/jinja/builtins_internal.h"

namespace jforge::jinja {
namespace {

constexpr std::int64_t kLongestRange = 100'000;  // The sandbox's.

Value range(Runtime& runtime, const Arguments& arguments) {
  const Parameters given(arguments, {"", "", ""}, 1);
  std::array<std::int64_t, 3> bounds = {0, 0, 1};
  const bool one = given[1] == nullptr;
  for (std::size_t i = 0; i < 3 && given[i] != nullptr; ++i) {
    bounds[one ? 1 : i] = given.whole(i, 0);
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) fail("range() arg 3 must not be zero");
  std::int64_t distance = 0;
  if (__builtin_sub_overflow(end, begin, &distance) || distance == INT64_MIN || step == INT64_MIN) {
    fail("a range too big");
  }
  const bool empty = step > 0 ? distance <= 0 : distance >= 0;
  const std::int64_t count = empty ? 0 : (distance - (step > 0 ? 1 : -1)) / step + 1;
  if (count > kLongestRange) fail(fmt::format("a range of more than {} numbers", kLongestRange));
  runtime.charge(static_cast<std::size_t>(count));
  const auto items = runtime.array<Value>(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = Value::of(begin + static_cast<std::int64_t>(i) * step);
  }
  return runtime.sequence(Kind::range, items);
}

/// The entries that dict(…) takes: a mapping or pairs, then keywords.
const Mapping* mapping_of(Runtime& runtime, const Arguments& arguments) {
  std::vector<Entry> entries;
  if (arguments.positional.size() > 1) fail("at most one argument without a name is taken");
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (given.is(Kind::mapping)) {
      entries.assign(given.mapping->entries.begin(), given.mapping->entries.end());
    } else {
      for (const Value& pair : items_of(runtime, given)) {
        const auto parts = items_of(runtime, pair);
        if (parts.size() != 2) fail("pairs of key and value are needed");
        entries.push_back({parts[0], parts[1]});
      }
    }
  }
  for (const Argument& argument : arguments.named) {
    entries.push_back({Value::of(argument.name), argument.value});
  }
  return make_mapping(runtime, entries);
}

Value dict(Runtime& runtime, const Arguments& arguments) {
  return Value::of(mapping_of(runtime, arguments));
}

Value name_space(Runtime& runtime, const Arguments& arguments) {
  auto* made = runtime.make(Namespace{});
  Namespace::Attribute** end = &made->first;
  for (const Entry& entry : mapping_of(runtime, arguments)->entries) {
    if (!entry.key.is(Kind::string)) fail("a namespace takes names");
    if (entry.key.text.starts_with('_')) fail("a namespace takes no name that begins with '_'");
    *end = runtime.make(Namespace::Attribute{.name = entry.key.text, .value = entry.value});
    end = &(*end)->next;
    ++made->size;
  }
  Value result;
  result.kind = Kind::name_space;
  result.name_space = made;
  return result;
}

Value raise_exception(Runtime& runtime, const Arguments& arguments) {
  const Parameters given(arguments, {"message"}, 1);
  throw Failure{.reason = std::string(text_of(runtime, *given[0])), .raised = true};
}

constexpr auto kFunctions = std::to_array<Function>({
    {"cycler", nullptr},
    {"dict", dict},
    {"joiner", nullptr},
    {"lipsum", nullptr},
    {"namespace", name_space},
    {"raise_exception", raise_exception},
    {"range", range},
});

}  // namespace

Parameters::Parameters(const Arguments& given, std::initializer_list<std::string_view> names,
                       std::size_t required) {
  std::ranges::copy(names, names_.begin());
  if (given.positional.size() > names.size()) {
    fail(fmt::format("at most {} arguments are taken", names.size()));
  }
  for (std::size_t i = 0; i < given.positional.size(); ++i) values_[i] = &given.positional[i];
  for (const Argument& argument : given.named) {
    const auto name = std::ranges::find(names, argument.name);
    if (name == names.end()) fail(fmt::format("no argument '{}' is taken", argument.name));
    const Value*& value = values_[static_cast<std::size_t>(name - names.begin())];
    if (value != nullptr) fail(fmt::format("the argument '{}' is given twice", argument.name));
    value = &argument.value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) fail(fmt::format("argument {} is missing", i + 1));
  }
}

std::int64_t Parameters::whole(std::size_t i, std::int64_t fallback) const {
  if (values_[i] == nullptr) return fallback;
  expect_defined(*values_[i]);
  if (!values_[i]->is_whole()) fail(fmt::format("argument {} must be a whole number", i + 1));
  return values_[i]->whole();
}

bool Parameters::flag(std::size_t i, bool fallback) const {
  return values_[i] == nullptr ? fallback : truth(*values_[i]);
}

std::string_view Parameters::text(std::size_t i, std::string_view fallback) const {
  if (values_[i] == nullptr) return fallback;
  expect_defined(*values_[i]);
  expect_plain(*values_[i]);
  if (!values_[i]->is(Kind::string)) fail(fmt::format("argument {} must be a string", i + 1));
  return values_[i]->text;
}

const Function* find_function(std::string_view name) {
  const auto found = std::ranges::find(kFunctions, name, &Function::name);
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

}  // namespace jforge::jinja
