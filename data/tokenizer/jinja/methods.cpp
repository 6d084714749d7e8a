#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/text_internal.h"
#include "data/tokenizer/unicode.h"

namespace jforge::jinja {
namespace {

template <Side side>
Value str_strip(Runtime& runtime, const Value& self, const Parameters& given) {
  runtime.charge_bytes(self.text.size());
  if (!given.has(0)) return Value(strip(self.text, side));
  const std::string_view characters = given.text(0);
  runtime.charge(self.text.size() * characters.size() / 64);
  return Value(strip(self.text, side, characters));
}

template <bool from_right>
Value str_split(Runtime& runtime, const Value& self, const Parameters& given) {
  const std::int64_t most = given.whole(1, -1);
  runtime.charge_bytes(self.text.size());
  if (!given.has(0)) fail("a split at blanks is not supported");
  const std::string_view separator = given.text(0);
  if (separator.empty()) fail("empty separator");
  return runtime.texts(Kind::list, split(self.text, separator, most, from_right));
}

Value str_find(Runtime& runtime, const Value& self, const Parameters& given) {
  runtime.charge_bytes(self.text.size());
  const std::size_t at = find_text(self.text, given.text(0));
  if (at != std::string_view::npos) return Value(length(self.text.substr(0, at)));
  return Value(std::int64_t{-1});
}

template <bool at_end>
Value str_edge(Runtime& runtime, const Value& self, const Parameters& given) {
  const std::string_view edge = given.text(0);
  runtime.charge_bytes(std::min(edge.size(), self.text.size()));
  return Value(at_end ? self.text.ends_with(edge) : self.text.starts_with(edge));
}

Value str_replace(Runtime& runtime, const Value& self, const Parameters& given) {
  const std::string_view old = given.text(0);
  const std::string_view by = given.text(1);
  if (old.empty()) fail("replacing an empty text is not supported");
  runtime.charge_bytes(self.text.size());
  // Checked first, because the result may be much longer.
  if (by.size() > 0 && self.text.size() / old.size() > kMaxBytes / by.size()) {
    fail("a text is too long");
  }
  return runtime.text(replaced(self.text, old, by));
}

/// Supports only `{}` fields.
Value str_format(Runtime& runtime, const Value& self, const Parameters& given) {
  std::string out;
  std::size_t next = 0;
  const std::string_view text = self.text;
  runtime.charge_bytes(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{' && text[at] != '}') {
      out += text[at];
      continue;
    }
    if (!text.substr(at).starts_with("{}") || next == given.all().positional.size()) {
      fail("a format with more than '{}' for each argument is not supported");
    }
    append_text(runtime, out, given.all().positional[next++]);
    runtime.charge_bytes(out.size());
    ++at;
  }
  return runtime.text(out);
}

template <std::string (*change)(std::string_view)>
Value str_changed(Runtime& runtime, const Value& self, const Parameters& /*given*/) {
  runtime.charge_bytes(self.text.size());
  return runtime.text(change(self.text));
}

Value dict_get(Runtime& runtime, const Value& self, const Parameters& given) {
  const Value* found = find(runtime, *self.mapping, *given[0]);
  if (found != nullptr) return *found;
  return given[1] != nullptr ? *given[1] : Value(Kind::none);
}

enum class EntryPart { key, value, both };
template <EntryPart part>
Value dict_view(Runtime& runtime, const Value& self, const Parameters& /*given*/) {
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

constexpr auto kStringMethods = std::to_array<Builtin>({
    {"capitalize", str_changed<capitalized>},
    {"endswith", str_edge<true>, {"suffix"}, 1},
    {"find", str_find, {"sub"}, 1},
    {"format", str_format, {}, 0, Takes::any},
    {"lower", str_changed<lower>},
    {"lstrip", str_strip<Side::left>, {"chars"}},
    {"replace", str_replace, {"old", "new"}, 2},
    {"rsplit", str_split<true>, {"sep", "maxsplit"}},
    {"rstrip", str_strip<Side::right>, {"chars"}},
    {"split", str_split<false>, {"sep", "maxsplit"}},
    {"startswith", str_edge<false>, {"prefix"}, 1},
    {"strip", str_strip<Side::both>, {"chars"}},
    {"title", str_changed<titled>},
    {"upper", str_changed<upper>},
});
constexpr auto kMappingMethods = std::to_array<Builtin>({
    {"get", dict_get, {"key", "default"}, 1},
    {"items", dict_view<EntryPart::both>},
    {"keys", dict_view<EntryPart::key>},
    {"values", dict_view<EntryPart::value>},
});

}  // namespace

const Builtin* find_method(Kind kind, std::string_view name) {
  std::span<const Builtin> methods;
  if (kind == Kind::string) methods = kStringMethods;
  if (kind == Kind::mapping) methods = kMappingMethods;
  const auto found = std::ranges::find(methods, name, &Builtin::name);
  if (found != methods.end()) return &*found;
  const bool unknown = kind >= Kind::view && kind != Kind::mapping;
  if (unknown) {
    fail(fmt::format("'{}' of a {} is not supported", name, type_name(kind)));
  }
  return nullptr;
}

}  // namespace jforge::jinja
