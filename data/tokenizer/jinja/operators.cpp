#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

/// What getattr() finds, missing if it is nothing.
Value python_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  Value found;
  found.kind = Kind::missing;
  if (object.is(Kind::name_space)) {
    if (const auto* attribute = object.name_space->find(runtime, name)) return attribute->value;
    return found;
  }
  if (name.starts_with('_')) return found;
  if (is_forbidden_method(object.kind, name)) {
    return undefined_because(runtime, fmt::format("access to attribute '{}' of a {} is unsafe",
                                                  name, type_name(object.kind)));
  }
  if (const MethodEntry* entry = find_method(object.kind, name)) {
    found.kind = Kind::method;
    found.method = runtime.make(Method{.receiver = object, .entry = entry});
  }
  return found;
}

/// The place that an index means, `size` where there is none.
std::size_t place_of(std::int64_t index, std::int64_t size) {
  if (index < 0) index += size;
  return static_cast<std::size_t>(index < 0 || index >= size ? size : index);
}

/// One character, missing if there is none.
Value character(std::string_view text, std::int64_t index) {
  Value found;
  found.kind = Kind::missing;
  if (index == -1 && !text.empty()) {  // Often asked for.
    std::size_t at = text.size() - 1;
    while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    return Value::of(text.substr(at));
  }
  std::size_t at = 0;
  std::size_t left = place_of(index, length(text));
  while (left > 0 && at < text.size()) {
    at += code_point_at(text, at).length;
    --left;
  }
  if (at == text.size()) return found;
  return Value::of(text.substr(at, code_point_at(text, at).length));
}

std::int64_t index_of(const Value* value, std::int64_t fallback) {
  if (value == nullptr || value->is(Kind::none)) return fallback;
  expect_defined(*value);
  if (!value->is_whole()) fail("slice indices must be integers or None");
  return value->whole();
}

/// The places of a slice of so many items.
std::vector<std::size_t> slice_places(std::int64_t size, std::int64_t begin, std::int64_t end,
                                      std::int64_t step) {
  std::vector<std::size_t> places;
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    places.push_back(static_cast<std::size_t>(at));
    if (step > size || step < -size) break;
    at += step;
  }
  return places;
}

[[noreturn]] void fail_operands(std::string_view sign, const Value& left, const Value& right) {
  fail(fmt::format("unsupported operand types for {}: {} and {}", sign, type_name(left.kind),
                   type_name(right.kind)));
}

[[noreturn]] void fail_range() { fail("a whole number beyond 64 bits is not supported"); }

constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

Value whole_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("zero to a negative power");
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_range();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_range();
  }
  return Value::of(result);
}

Value calculate_whole(Operator sign, std::int64_t left, std::int64_t right) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  std::int64_t result = 0;
  switch (sign) {
    case Operator::add:
      if (__builtin_add_overflow(left, right, &result)) fail_range();
      return Value::of(result);
    case Operator::subtract:
      if (__builtin_sub_overflow(left, right, &result)) fail_range();
      return Value::of(result);
    case Operator::multiply:
      if (__builtin_mul_overflow(left, right, &result)) fail_range();
      return Value::of(result);
    case Operator::power:
      return whole_power(left, right);
    case Operator::divide:
    case Operator::divide_whole:
    case Operator::modulo:
      break;
  }
  if (right == 0) fail("division by zero");
  if (sign == Operator::divide) {
    return Value::of(static_cast<double>(left) / static_cast<double>(right));
  }
  if (left == kLeast && right == -1) fail_range();
  const bool down = left % right != 0 && (left < 0) != (right < 0);  // Python rounds downward.
  if (sign == Operator::divide_whole) return Value::of(left / right - (down ? 1 : 0));
  return Value::of(left % right + (down ? right : 0));
}

Value calculate_real(Operator sign, double left, double right) {
  switch (sign) {
    case Operator::add:
      return Value::of(left + right);
    case Operator::subtract:
      return Value::of(left - right);
    case Operator::multiply:
      return Value::of(left * right);
    case Operator::power:
      if (left < 0 && right != std::floor(right)) fail("a complex number is not supported");
      if (left == 0 && right < 0) fail("zero to a negative power");
      return Value::of(std::pow(left, right));
    case Operator::divide:
    case Operator::divide_whole:
    case Operator::modulo:
      break;
  }
  if (right == 0) fail("division by zero");
  if (sign == Operator::divide) return Value::of(left / right);
  double rest = std::fmod(left, right);
  double whole = (left - rest) / right;
  if (rest != 0 && (right < 0) != (rest < 0)) {
    rest += right;
    whole -= 1;
  }
  if (sign == Operator::modulo) return Value::of(rest == 0 ? std::copysign(0.0, right) : rest);
  const double floor = std::floor(whole);
  return Value::of(whole == 0 ? std::copysign(0.0, left / right)
                              : floor + (whole - floor > 0.5 ? 1 : 0));
}

Value repeated(Runtime& runtime, const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  const bool text = value.is(Kind::string);
  const std::size_t size = text ? value.text.size() : value.sequence->items.size();
  if (size == 0 || times == 0) {
    return text ? Value::of(std::string_view()) : runtime.sequence(value.kind, {});
  }
  if (times > std::numeric_limits<std::size_t>::max() / size) fail("a text too long");
  if (text) {
    const auto copies = runtime.array<char>(size * times);
    for (std::size_t i = 0; i < times; ++i) {
      std::ranges::copy(value.text, copies.begin() + static_cast<std::ptrdiff_t>(i * size));
    }
    return Value::of(std::string_view(copies.data(), copies.size()));
  }
  const auto copies = runtime.array<Value>(size * times);
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i] = value.sequence->items[i % size];
  return runtime.sequence(value.kind, copies);
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
        item = Value::of(value.text.substr(at, code_point_at(value.text, at).length));
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
    if (const Value* value = find(runtime, *object.mapping, name)) return *value;
  }
  return no_attribute(object, name);
}

Value element(Runtime& runtime, const Value& object, const Value& key) {
  expect_defined(object);
  if (object.is(Kind::mapping)) {
    const Value* value = key.is(Kind::string) ? find(runtime, *object.mapping, key.text)
                                              : find(runtime, *object.mapping, key);
    if (value != nullptr) return *value;
  } else if (key.is_whole() &&
             (object.is(Kind::list) || object.is(Kind::tuple) || object.is(Kind::range))) {
    const auto& items = object.sequence->items;
    const std::size_t at = place_of(key.whole(), std::ssize(items));
    if (at < items.size()) return items[at];
  } else if (key.is_whole() && object.is(Kind::string)) {
    expect_plain(object);
    runtime.charge_bytes(object.text.size());
    const Value found = character(object.text, key.whole());
    if (!found.is(Kind::missing)) return found;
  }
  if (key.is(Kind::string)) {
    const Value found = python_attribute(runtime, object, key.text);
    return found.is(Kind::missing) ? no_attribute(object, key.text) : found;
  }
  std::string shown;
  if (key.is_number() || key.is(Kind::none)) append_text(shown, key);
  return undefined_because(runtime,
                           fmt::format("{} has no element {}", type_name(object.kind), shown));
}

Value slice(Runtime& runtime, const Value& object, const Value* begin, const Value* end,
            const Value* step) {
  expect_defined(object);
  expect_plain(object);
  const bool text = object.is(Kind::string);
  if (!text && !object.is(Kind::list) && !object.is(Kind::tuple) && !object.is(Kind::range)) {
    fail(fmt::format("{} cannot be sliced", type_name(object.kind)));
  }
  const std::int64_t stride = index_of(step, 1);
  if (stride == 0) fail("slice step cannot be zero");
  const std::int64_t size = text ? length(object.text) : std::ssize(object.sequence->items);
  runtime.charge_bytes(text ? object.text.size() : 0);
  const std::int64_t lowest = stride > 0 ? 0 : -1;
  const auto bound = [&](const Value* part, std::int64_t fallback) {
    if (part == nullptr || part->is(Kind::none)) return fallback;
    std::int64_t at = index_of(part, 0);
    if (at < 0) at += size;
    return std::clamp(at, lowest, stride > 0 ? size : size - 1);
  };
  const std::int64_t from = bound(begin, stride > 0 ? 0 : size - 1);
  const std::int64_t to = bound(end, stride > 0 ? size : -1);
  if (text && stride == 1) {
    if (from >= to) return Value::of(std::string_view());
    std::size_t first = 0;
    for (std::int64_t i = 0; i < from; ++i) first += code_point_at(object.text, first).length;
    std::size_t last = object.text.size();
    if (to < size) {
      last = first;
      for (std::int64_t i = from; i < to; ++i) last += code_point_at(object.text, last).length;
    }
    return Value::of(object.text.substr(first, last - first));
  }
  const std::vector<std::size_t> places = slice_places(size, from, to, stride);
  runtime.charge(places.size() + (text ? object.text.size() : 0));
  if (text) {
    const std::vector<std::size_t> at = offsets(object.text);
    std::string out;
    for (const std::size_t place : places) {
      out += object.text.substr(at[place], at[place + 1] - at[place]);
    }
    return runtime.text(out);
  }
  const auto items = runtime.array<Value>(places.size());
  std::ranges::transform(places, items.begin(),
                         [&](std::size_t place) { return object.sequence->items[place]; });
  return runtime.sequence(object.kind, items);
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
  if (left.is_number() && right.is_number()) {
    if (left.is_whole() && right.is_whole()) return left.whole() < right.whole();
    return left.number() < right.number();
  }
  // The order of UTF-8 is that of the code points.
  if (left.is(Kind::string) && right.is(Kind::string)) {
    runtime.charge(std::min(left.text.size(), right.text.size()) / 16);
    return left.text < right.text;
  }
  if (left.kind != right.kind || (!left.is(Kind::list) && !left.is(Kind::tuple))) {
    fail_operands(sign, left, right);
  }
  const auto& a = left.sequence->items;
  const auto& b = right.sequence->items;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (equal(runtime, a[i], b[i])) continue;
    if (a[i].is_sequence() || b[i].is_sequence()) {
      fail("comparing lists of lists is not supported");
    }
    return less(runtime, a[i], b[i], sign);
  }
  return a.size() < b.size();
}

bool holds(Runtime& runtime, Comparison comparison, const Value& left, const Value& right) {
  switch (comparison) {
    case Comparison::equal:
      return equal(runtime, left, right);
    case Comparison::unequal:
      return !equal(runtime, left, right);
    case Comparison::less:
      return less(runtime, left, right, "<");
    case Comparison::less_equal:
      return less(runtime, left, right, "<=") || equal(runtime, left, right);
    case Comparison::greater:
      return less(runtime, right, left, ">");
    case Comparison::greater_equal:
      return less(runtime, right, left, ">=") || equal(runtime, left, right);
    case Comparison::in:
      return contains(runtime, right, left);
    case Comparison::not_in:
      return !contains(runtime, right, left);
  }
  throw InternalError("unknown comparison");
}

Value calculate(Runtime& runtime, Operator sign, const Value& left, const Value& right) {
  expect_defined(left);
  expect_defined(right);
  expect_plain(left);
  expect_plain(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_whole() && right.is_whole()) {
      return calculate_whole(sign, left.whole(), right.whole());
    }
    return calculate_real(sign, left.number(), right.number());
  }
  const auto is_series = [](const Value& value) {
    return value.is(Kind::string) || value.is(Kind::list) || value.is(Kind::tuple);
  };
  if (sign == Operator::add && left.kind == right.kind && is_series(left)) {
    if (left.is(Kind::string)) {
      runtime.charge_bytes(left.text.size() + right.text.size());
      return Value::of(runtime.joined(left.text, right.text));
    }
    std::vector<Value> items(left.sequence->items.begin(), left.sequence->items.end());
    items.insert(items.end(), right.sequence->items.begin(), right.sequence->items.end());
    runtime.charge(items.size());
    return runtime.sequence(left.kind, items);
  }
  if (sign == Operator::multiply && is_series(left) && right.is_whole()) {
    return repeated(runtime, left, right.whole());
  }
  if (sign == Operator::multiply && left.is_whole() && is_series(right)) {
    return repeated(runtime, right, left.whole());
  }
  if (sign == Operator::modulo && left.is(Kind::string)) {
    fail("formatting with '%' is not supported");
  }
  fail_operands(kSigns[static_cast<int>(sign)], left, right);
}

Value negative(const Value& value) {
  expect_defined(value);
  if (value.is(Kind::real)) return Value::of(-value.real);
  if (!value.is_whole()) fail(fmt::format("a {} has no negative", type_name(value.kind)));
  return calculate_whole(Operator::subtract, 0, value.whole());
}

std::string_view text_of(Runtime& runtime, const Value& value) {
  if (value.is(Kind::string)) return value.text;
  std::string text;
  append_text(text, value);
  runtime.charge_bytes(text.size());
  return runtime.copied(text);
}

}  // namespace jforge::jinja
