#include "data/tokenizer/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>

namespace jforge::jinja {
namespace {

bool same_text(Runtime& runtime, std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  runtime.charge(left.size() / 16);
  return left == right;
}

bool equal_within(Runtime& runtime, const Value& left, const Value& right, int depth) {
  runtime.charge(1);
  if (depth > kMaxValueDepth) fail("a value is nested too deeply");
  if (left.is_number() && right.is_number()) return left.number() == right.number();
  if (left.kind != right.kind) return false;
  const auto same = [&runtime, depth](const Value& a, const Value& b) {
    return equal_within(runtime, a, b, depth + 1);
  };
  switch (left.kind) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::string:
      return same_text(runtime, left.text, right.text);
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
      return std::ranges::equal(left.sequence->items, right.sequence->items, same);
    case Kind::mapping:
      return left.mapping->entries.size() == right.mapping->entries.size() &&
             std::ranges::all_of(left.mapping->entries, [&](const Entry& entry) {
               const Value* other = find(runtime, *right.mapping, entry.key);
               return other != nullptr && same(entry.value, *other);
             });
    case Kind::view:
    case Kind::method:
      fail(fmt::format("comparing a {} is not supported", type_name(left.kind)));
    default:
      return left.sequence == right.sequence;
  }
}

}  // namespace

TemplateError::TemplateError(int line, const std::string& reason, bool raised)
    : DataError(fmt::format("line {} of the chat template: {}", line, reason)),
      line_(line),
      reason_(reason),
      raised_(raised) {}

void fail(std::string reason) { throw Failure{std::move(reason)}; }

Namespace::Attribute* Namespace::find(Runtime& runtime, std::string_view name) const {
  runtime.charge(size / 8);
  Attribute* at = first;
  while (at != nullptr && !same_text(runtime, at->name, name)) at = at->next;
  return at;
}

void Namespace::set(Runtime& runtime, std::string_view name, const Value& value) {
  if (Attribute* const attribute = find(runtime, name)) {
    attribute->value = value;
  } else {
    first = runtime.make(Attribute{.name = name, .value = value, .next = first});
    ++size;
  }
}

void* Runtime::allocate(std::size_t count, std::size_t size, std::size_t alignment) {
  if (count > bytes_left_ / size) fail("it needs too much memory");
  bytes_left_ -= count * size;
  return memory_.allocate(count * size, alignment);
}

std::string_view Runtime::copied(std::string_view text) { return joined(text, {}); }

std::string_view Runtime::joined(std::string_view first, std::string_view second) {
  const std::size_t size = first.size() + second.size();
  if (size == 0) return {};
  char* const at = static_cast<char*>(allocate(size, 1, 1));
  std::ranges::copy(first, at);
  std::ranges::copy(second, at + first.size());
  return {at, size};
}

Value Runtime::texts(Kind kind, const std::vector<std::string_view>& parts) {
  charge(parts.size());
  const auto items = array<Value>(parts.size());
  std::ranges::transform(parts, items.begin(), [](std::string_view part) { return Value(part); });
  return sequence(kind, items);
}

Value Runtime::sequence(Kind kind, std::span<const Value> items) {
  const auto copy = array<Value>(items.size());
  std::ranges::copy(items, copy.begin());
  return {kind, make(Sequence{.items = copy})};
}

bool truth(const Value& value) {
  switch (value.kind) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.boolean;
    case Kind::integer:
      return value.integer != 0;
    case Kind::string:
      return !value.text.empty();
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
      return !value.sequence->items.empty();
    case Kind::mapping:
      return !value.mapping->entries.empty();
    default:
      return true;  // Even an empty generator.
  }
}

bool equal(Runtime& runtime, const Value& left, const Value& right) {
  return equal_within(runtime, left, right, 0);
}

std::string_view type_name(Kind kind) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"Undefined", "Undefined", "None", "bool object", "int object", "str object", "list object",
       "tuple object", "range object", "dict view object", "generator object", "dict object",
       "namespace object", "loop object", "macro object", "method object", "function object"});
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string undefined_message(const Value& value) {
  if (value.owner == Kind::missing) return fmt::format("'{}' is undefined", value.text);
  if (value.owner == Kind::undefined) return std::string(value.text);
  return fmt::format("'{}' has no attribute '{}'", type_name(value.owner), value.text);
}

const Value* find(Runtime& runtime, const Mapping& mapping, const Value& key) {
  for (const Entry& entry : mapping.entries) {
    if (equal(runtime, entry.key, key)) return &entry.value;
  }
  return nullptr;
}

}  // namespace jforge::jinja
