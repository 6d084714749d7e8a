#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/text_internal.h"
#include "data/tokenizer/unicode.h"

namespace jforge::jinja {
namespace {

Value no_attribute(const Value& object, std::string_view name) {
  Value result;
  result.owner = object.kind;
  result.text = name;
  return result;
}

/// Returns getattr() or missing.
Value python_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is(Kind::name_space)) {
    const auto* attribute = object.name_space->find(runtime, name);
    return attribute == nullptr ? Value(Kind::missing) : attribute->value;
  }
  const Builtin* method = name.starts_with('_') ? nullptr : find_method(object.kind, name);
  if (method == nullptr) return Value(Kind::missing);
  return Value(runtime.make(Method{.receiver = object, .method = method}));
}

/// Returns the position of a Python index, or −1.
std::int64_t place_of(std::int64_t index, std::int64_t size) {
  if (index < 0) index += size;
  return index < size ? std::max<std::int64_t>(index, -1) : -1;
}

std::int64_t index_of(const Value& value, std::int64_t fallback) {
  if (value.is(Kind::missing) || value.is(Kind::none)) return fallback;
  expect_defined(value);
  if (!value.is_number()) fail("slice indices must be integers or None");
  return value.number();
}

[[noreturn]] void fail_operands(std::string_view sign, const Value& left, const Value& right) {
  fail(fmt::format("unsupported operand types for {}: {} and {}", sign, type_name(left.kind),
                   type_name(right.kind)));
}

Value calculate_whole(std::string_view sign, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  if (sign == "+"   ? __builtin_add_overflow(left, right, &result)
      : sign == "-" ? __builtin_sub_overflow(left, right, &result)
                    : sign == "*" && __builtin_mul_overflow(left, right, &result)) {
    fail("a whole number beyond 64 bits is not supported");
  }
  if (sign != "%") return Value(result);
  if (right == 0) fail("division by zero");
  if (right == -1) return Value(std::int64_t{0});  // INT64_MIN % −1 would overflow.
  const std::int64_t rest = left % right;
  return Value(rest != 0 && (left < 0) != (right < 0) ? rest + right : rest);  // As in Python.
}

Value joined(Runtime& runtime, std::string_view first, std::string_view second) {
  runtime.charge_bytes(first.size() + second.size());
  return Value(runtime.joined(first, second));
}

Value repeated(Runtime& runtime, std::string_view text, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (text.empty() || times == 0) return Value(std::string_view());
  if (times > kMaxBytes / text.size()) fail("a text is too long");
  const auto copies = runtime.array<char>(text.size() * times);
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i] = text[i % text.size()];
  return Value(std::string_view(copies.data(), copies.size()));
}

}  // namespace

void expect_defined(const Value& value) {
  if (value.is(Kind::undefined)) fail(undefined_message(value));
}

void expect_plain(const Value& value) {
  if (value.is(Kind::string) && value.safe) {
    fail("more than printing of what the filter 'safe' gives is not supported");
  }
}

Value undefined_because(Runtime& runtime, std::string_view reason) {
  Value result;
  result.owner = Kind::undefined;
  result.text = runtime.copied(reason);
  return result;
}

std::span<const Value> items_of(Runtime& runtime, const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      return {};
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
      return value.sequence->items;
    case Kind::generator:
      return value.sequence->items.subspan(
          std::exchange(value.sequence->next, value.sequence->items.size()));
    case Kind::mapping: {
      const auto& entries = value.mapping->entries;
      runtime.charge(entries.size());
      const auto keys = runtime.array<Value>(entries.size());
      std::ranges::transform(entries, keys.begin(), [](const Entry& entry) { return entry.key; });
      return keys;
    }
    case Kind::string: {
      expect_plain(value);
      runtime.charge(value.text.size());
      const auto items = runtime.array<Value>(static_cast<std::size_t>(length(value.text)));
      std::size_t at = 0;
      for (Value& item : items) {
        item = Value(value.text.substr(at, code_point_at(value.text, at).length));
        at += item.text.size();
      }
      return items;
    }
    default:
      fail(fmt::format("{} is not iterable", type_name(value.kind)));
  }
}

Value attribute(Runtime& runtime, const Value& object, std::string_view name) {
  expect_defined(object);
  const Value found = python_attribute(runtime, object, name);
  if (!found.is(Kind::missing)) return found;
  if (object.is(Kind::mapping)) {
    if (const Value* value = find(runtime, *object.mapping, Value(name))) return *value;
  }
  return no_attribute(object, name);
}

Value element(Runtime& runtime, const Value& object, const Value& key) {
  expect_defined(object);
  if (object.is(Kind::mapping)) {
    const Value* value = find(runtime, *object.mapping, key);
    if (value != nullptr) return *value;
  } else if (key.is_number() &&
             (object.is(Kind::list) || object.is(Kind::tuple) || object.is(Kind::range))) {
    const auto& items = object.sequence->items;
    const std::int64_t at = place_of(key.number(), std::ssize(items));
    if (at >= 0) return items[static_cast<std::size_t>(at)];
  } else if (key.is_number() && object.is(Kind::string)) {
    expect_plain(object);
    runtime.charge_bytes(object.text.size());
    const std::int64_t place = place_of(key.number(), length(object.text));
    if (place >= 0) {
      const std::size_t at = advanced(object.text, 0, place);
      return Value(object.text.substr(at, code_point_at(object.text, at).length));
    }
  }
  if (key.is(Kind::string)) {
    const Value found = python_attribute(runtime, object, key.text);
    return found.is(Kind::missing) ? no_attribute(object, key.text) : found;
  }
  std::string shown;
  if (key.is_number() || key.is(Kind::none)) append_text(runtime, shown, key);
  return undefined_because(runtime,
                           fmt::format("{} has no element {}", type_name(object.kind), shown));
}

Value slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step) {
  expect_defined(object);
  expect_plain(object);
  const bool text = object.is(Kind::string);
  if (!text && !object.is(Kind::list) && !object.is(Kind::tuple) && !object.is(Kind::range)) {
    fail(fmt::format("{} cannot be sliced", type_name(object.kind)));
  }
  const std::int64_t stride = index_of(step, 1);
  const bool backward = !text && stride == -1 && begin.is(Kind::missing) && end.is(Kind::missing);
  if (stride != 1 && !backward) {
    fail("a slice with a step is not supported, except [::-1] of a list");
  }
  const std::int64_t size = text ? length(object.text) : std::ssize(object.sequence->items);
  runtime.charge_bytes(text ? object.text.size() : static_cast<std::size_t>(size));
  const auto bound = [size](const Value& part, std::int64_t fallback) {
    const std::int64_t at = index_of(part, fallback);
    return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const std::int64_t from = bound(begin, 0);
  const std::int64_t count = std::max<std::int64_t>(bound(end, size) - from, 0);
  if (text) {
    const std::size_t first = advanced(object.text, 0, from);
    return Value(object.text.substr(first, advanced(object.text, first, count) - first));
  }
  const auto part = object.sequence->items.subspan(static_cast<std::size_t>(from),
                                                   static_cast<std::size_t>(count));
  const Value result = runtime.sequence(object.kind, part);
  if (backward) {
    const auto items = runtime.array<Value>(part.size());
    std::ranges::reverse_copy(part, items.begin());
    result.sequence->items = items;
  }
  return result;
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is(Kind::string)) {
    expect_defined(item);
    if (!item.is(Kind::string)) {
      fail(fmt::format("'in' a string takes a string, not a {}", type_name(item.kind)));
    }
    runtime.charge_bytes(container.text.size() + item.text.size());
    return find_text(container.text, item.text) != std::string_view::npos;
  }
  if (container.is(Kind::mapping)) {
    return find(runtime, *container.mapping, item) != nullptr;
  }
  if (container.is(Kind::generator)) fail("'in' what can be gone through once is not supported");
  const std::span<const Value> items = items_of(runtime, container);
  runtime.charge(items.size());
  return std::ranges::any_of(items,
                             [&](const Value& other) { return equal(runtime, other, item); });
}

bool less(Runtime& runtime, const Value& left, const Value& right, std::string_view sign) {
  runtime.charge(1);
  expect_defined(left);
  expect_defined(right);
  if (left.is_number() && right.is_number()) return left.number() < right.number();
  if (!left.is(Kind::string) || !right.is(Kind::string)) fail_operands(sign, left, right);
  // UTF-8 sorts like code points.
  runtime.charge(std::min(left.text.size(), right.text.size()) / 16);
  return left.text < right.text;
}

bool holds(Runtime& runtime, std::string_view sign, const Value& left, const Value& right) {
  if (sign == "==") return equal(runtime, left, right);
  if (sign == "!=") return !equal(runtime, left, right);
  if (sign == "in") return contains(runtime, right, left);
  if (sign == "not in") return !contains(runtime, right, left);
  const bool swapped = sign == ">" || sign == "<=";
  const bool result = swapped ? less(runtime, right, left, sign) : less(runtime, left, right, sign);
  return sign.ends_with('=') ? !result : result;
}

Value calculate(Runtime& runtime, std::string_view sign, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (sign != "~") expect_defined(*value);
    expect_plain(*value);
  }
  if (sign == "~") {
    const std::string_view first = text_of(runtime, left);
    return joined(runtime, first, text_of(runtime, right));
  }
  if (sign == "/" || sign == "//" || sign == "**") {
    fail(fmt::format("the operator '{}' is not supported", sign));
  }
  if (left.is_number() && right.is_number()) {
    return calculate_whole(sign, left.number(), right.number());
  }
  if (sign == "+" && left.is(Kind::string) && right.is(Kind::string)) {
    return joined(runtime, left.text, right.text);
  }
  if (sign == "+" && left.kind == right.kind && (left.is(Kind::list) || left.is(Kind::tuple))) {
    std::vector<Value> items(left.sequence->items.begin(), left.sequence->items.end());
    items.insert(items.end(), right.sequence->items.begin(), right.sequence->items.end());
    runtime.charge(items.size());
    return runtime.sequence(left.kind, items);
  }
  if (sign == "*" && left.is(Kind::string) && right.is_number()) {
    return repeated(runtime, left.text, right.number());
  }
  if (sign == "*" && left.is_number() && right.is(Kind::string)) {
    return repeated(runtime, right.text, left.number());
  }
  if (sign == "*" && (left.is_sequence() || right.is_sequence())) {
    fail("the operator '*' of lists is not supported");
  }
  if (sign == "%" && left.is(Kind::string)) fail("formatting with '%' is not supported");
  fail_operands(sign, left, right);
}

std::string_view text_of(Runtime& runtime, const Value& value) {
  if (value.is(Kind::string)) return value.text;
  std::string text;
  append_text(runtime, text, value);
  return runtime.copied(text);
}

}  // namespace jforge::jinja
