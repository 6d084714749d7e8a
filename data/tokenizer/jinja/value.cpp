#include "data/tokenizer/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/tokenizer/jinja/text_internal.h"

namespace jforge::jinja {
namespace {

constexpr int kDeepestValue = 100;  // Lists in lists.

void append_real(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    return;
  }
  const std::string text = fmt::format("{}", value);
  out += text;
  if (text.find_first_of(".e") == std::string::npos) out += ".0";
}

class Printer {
 public:
  explicit Printer(std::string& out) : out_(out) {}

  void represent(const Value& value) {
    if (++depth_ > kDeepestValue) fail("a value is nested too deeply");
    // A list may hold another twice, and that a third.
    if (out_.size() > kMostBytes) fail("a value is too long");
    switch (value.kind) {
      case Kind::undefined:
        out_ += "Undefined";
        break;
      case Kind::string:
        if (value.safe) fail("what is printed of text marked safe is not supported");
        append_quoted(out_, value.text);
        break;
      case Kind::list:
        represent_items("[", value.sequence->items, "]");
        break;
      case Kind::tuple:
        represent_items("(", value.sequence->items, value.sequence->items.size() == 1 ? ",)" : ")");
        break;
      case Kind::mapping:
        represent_entries(value.mapping->entries);
        break;
      default:
        print(value);
    }
    --depth_;
  }

  void print(const Value& value) {
    switch (value.kind) {
      case Kind::undefined:
        break;
      case Kind::none:
        out_ += "None";
        break;
      case Kind::boolean:
        out_ += value.boolean ? "True" : "False";
        break;
      case Kind::integer:
        fmt::format_to(std::back_inserter(out_), "{}", value.integer);
        break;
      case Kind::real:
        append_real(out_, value.real);
        break;
      case Kind::string:
        out_ += value.text;
        break;
      case Kind::list:
      case Kind::tuple:
      case Kind::mapping:
        represent(value);
        break;
      default:
        fail(fmt::format("printing a {} is not supported", type_name(value.kind)));
    }
  }

 private:
  void represent_items(std::string_view open, std::span<const Value> items,
                       std::string_view close) {
    out_ += open;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ", ";
      represent(items[i]);
    }
    out_ += close;
  }

  void represent_entries(std::span<const Entry> entries) {
    out_ += '{';
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += ", ";
      represent(entries[i].key);
      out_ += ": ";
      represent(entries[i].value);
    }
    out_ += '}';
  }

  std::string& out_;
  int depth_ = 0;
};

bool same_text(Runtime& runtime, std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  runtime.charge(left.size() / 16);
  return left == right;
}

bool equal_within(Runtime& runtime, const Value& left, const Value& right, int depth) {
  runtime.charge(1);
  if (depth > kDeepestValue) fail("a value is nested too deeply");
  if (left.is_number() && right.is_number()) {
    if (left.is_whole() && right.is_whole()) return left.whole() == right.whole();
    return left.number() == right.number();
  }
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
      fail("comparing the views of mappings is not supported");
    case Kind::method:
      fail("comparing methods is not supported");
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

Value Value::none() {
  Value result;
  result.kind = Kind::none;
  return result;
}

Value Value::of(bool value) {
  Value result;
  result.kind = Kind::boolean;
  result.boolean = value;
  return result;
}

Value Value::of(std::int64_t value) {
  Value result;
  result.kind = Kind::integer;
  result.integer = value;
  return result;
}

Value Value::of(double value) {
  Value result;
  result.kind = Kind::real;
  result.real = value;
  return result;
}

Value Value::of(std::string_view text) {
  Value result;
  result.kind = Kind::string;
  result.text = text;
  return result;
}

Value Value::of(const Mapping* mapping) {
  Value result;
  result.kind = Kind::mapping;
  result.mapping = mapping;
  return result;
}

Value Value::of(const Function* function) {
  Value result;
  result.kind = Kind::function;
  result.function = function;
  return result;
}

Namespace::Attribute* Namespace::find(Runtime& runtime, std::string_view name) const {
  runtime.charge(size / 8);
  Attribute* at = first;
  while (at != nullptr && !same_text(runtime, at->name, name)) at = at->next;
  return at;
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
  std::ranges::transform(parts, items.begin(),
                         [](std::string_view part) { return Value::of(part); });
  return sequence(kind, items);
}

Value Runtime::sequence(Kind kind, std::span<const Value> items) {
  const auto copy = array<Value>(items.size());
  std::ranges::copy(items, copy.begin());
  Value result;
  result.kind = kind;
  result.sequence = make(Sequence{.items = copy});
  return result;
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
    case Kind::real:
      return value.real != 0;
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
      return true;  // Also a generator that is empty.
  }
}

bool equal(Runtime& runtime, const Value& left, const Value& right) {
  return equal_within(runtime, left, right, 0);
}

void append_text(std::string& out, const Value& value) { Printer(out).print(value); }

void append_representation(std::string& out, const Value& value) { Printer(out).represent(value); }

std::string_view type_name(Kind kind) {
  switch (kind) {
    case Kind::missing:
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "bool object";
    case Kind::integer:
      return "int object";
    case Kind::real:
      return "float object";
    case Kind::string:
      return "str object";
    case Kind::list:
      return "list object";
    case Kind::tuple:
      return "tuple object";
    case Kind::range:
      return "range object";
    case Kind::view:
      return "dict view object";
    case Kind::generator:
      return "generator object";
    case Kind::mapping:
      return "dict object";
    case Kind::name_space:
      return "namespace object";
    case Kind::loop:
      return "loop object";
    case Kind::macro:
      return "macro object";
    case Kind::method:
      return "method object";
    case Kind::function:
      return "function object";
  }
  throw InternalError("unknown kind of value");
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

const Value* find(Runtime& runtime, const Mapping& mapping, std::string_view key) {
  runtime.charge(mapping.entries.size() / 8);
  for (const Entry& entry : mapping.entries) {
    if (entry.key.is(Kind::string) && same_text(runtime, entry.key.text, key)) return &entry.value;
  }
  return nullptr;
}

}  // namespace jforge::jinja
