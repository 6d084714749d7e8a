#pragma once

/// The values of templates, with Python's semantics.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/error.h"

namespace jforge::jinja {

/// Also thrown by raise_exception.
class TemplateError : public DataError {
 public:
  TemplateError(int line, const std::string& reason, bool raised = false);
  [[nodiscard]] int line() const { return line_; }  ///< From 1.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] bool raised() const { return raised_; }  ///< By raise_exception.

 private:
  int line_;
  std::string reason_;
  bool raised_;
};

/// An error without its line; becomes a TemplateError.
struct Failure {
  std::string reason;
  bool raised = false;
};
[[noreturn]] void fail(std::string reason);

/// Fails beyond `max_depth`.
class Nesting {
 public:
  Nesting(int& depth, int max_depth) : depth_(depth) {
    if (++depth_ > max_depth) fail("it is nested too deeply");
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

enum class Kind : std::uint8_t {
  missing,  ///< Never an expression's value.
  undefined,
  none,
  boolean,
  integer,
  string,
  list,
  tuple,
  range,
  view,       ///< Result of keys(), values() or items().
  generator,  ///< Can be iterated once.
  mapping,
  name_space,
  loop,
  macro,
  method,
  function,
};

class Runtime;
struct Sequence;
struct Mapping;
struct Namespace;
struct Loop;
struct Macro;
struct Method;
struct Builtin;

/// Freely copied: texts and containers belong to the Runtime, the template or the caller, which
/// outlive it.
struct Value {
  Kind kind = Kind::undefined;
  /// Explains an undefined value. `missing`: there is no variable `text`; `undefined`: `text` is
  /// the reason; else the kind that has no attribute `text`.
  Kind owner = Kind::missing;
  bool safe = false;  ///< jinja2's Markup.
  union {
    std::string_view text = {};
    bool boolean;
    std::int64_t integer;
    Sequence* sequence;
    const Mapping* mapping;
    Namespace* name_space;
    Loop* loop;
    const Macro* macro;
    const Method* method;
    const Builtin* function;
  };

  Value() = default;
  explicit Value(Kind given) : kind(given) {}
  template <std::same_as<bool> Bool>  // Keeps pointers from converting to bool.
  explicit Value(Bool given) : kind(Kind::boolean), boolean(given) {}
  explicit Value(std::int64_t given) : kind(Kind::integer), integer(given) {}
  explicit Value(std::string_view given) : kind(Kind::string), text(given) {}
  Value(Kind container, Sequence* given) : kind(container), sequence(given) {}
  explicit Value(const Mapping* given) : kind(Kind::mapping), mapping(given) {}
  explicit Value(Namespace* given) : kind(Kind::name_space), name_space(given) {}
  explicit Value(Loop* given) : kind(Kind::loop), loop(given) {}
  explicit Value(const Macro* given) : kind(Kind::macro), macro(given) {}
  explicit Value(const Method* given) : kind(Kind::method), method(given) {}
  explicit Value(const Builtin* given) : kind(Kind::function), function(given) {}

  [[nodiscard]] bool is(Kind other) const { return kind == other; }
  [[nodiscard]] bool is_sequence() const { return kind >= Kind::list && kind <= Kind::generator; }
  /// Returns true for booleans, too, as in Python.
  [[nodiscard]] bool is_number() const { return kind == Kind::boolean || kind == Kind::integer; }
  [[nodiscard]] std::int64_t number() const { return is(Kind::boolean) ? boolean : integer; }
};
static_assert(std::is_trivially_copyable_v<Value>);

struct Sequence {
  std::span<const Value> items;
  std::size_t next = 0;  ///< A generator's first remaining item.
};

struct Entry {
  Value key;
  Value value;
};

struct Mapping {
  std::span<const Entry> entries;  ///< Unique keys in insertion order.
};

struct Namespace {
  struct Attribute {
    std::string_view name;
    Value value;
    Attribute* next = nullptr;
  };
  Attribute* first = nullptr;
  std::size_t size = 0;
  [[nodiscard]] Attribute* find(Runtime& runtime, std::string_view name) const;
  void set(Runtime& runtime, std::string_view name, const Value& value);
};

/// Limit for a rendering's memory, for a text and for all output.
inline constexpr std::size_t kMaxBytes = std::size_t{128} << 20;

/// A rendering's memory, which holds its values, and steps. Both are bounded, because templates are
/// untrusted.
class Runtime {
 public:
  Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Counts steps of about 10 ns.
  void charge(std::size_t steps) {
    if (steps > steps_left_) fail("it takes too many steps");
    steps_left_ -= steps;
  }
  /// Counts a pass over `bytes`.
  void charge_bytes(std::size_t bytes) { charge(1 + bytes / 16); }

  std::string_view copied(std::string_view text);
  Value text(std::string_view text) { return Value(copied(text)); }
  /// Makes a container without copying the texts.
  Value texts(Kind kind, const std::vector<std::string_view>& parts);
  std::string_view joined(std::string_view first, std::string_view second);
  /// Default-constructed.
  template <typename T>
  std::span<T> array(std::size_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    T* const first = static_cast<T*>(allocate(count, sizeof(T), alignof(T)));
    std::uninitialized_value_construct_n(first, count);
    return {first, count};
  }
  template <typename T>
  T* make(T value) {
    return &(array<T>(1).front() = value);
  }
  /// Copies `items`.
  Value sequence(Kind kind, std::span<const Value> items);

 private:
  void* allocate(std::size_t count, std::size_t size, std::size_t alignment);

  std::array<std::byte, 16384> first_block_;
  std::pmr::monotonic_buffer_resource memory_{first_block_.data(), first_block_.size()};
  std::size_t bytes_left_ = kMaxBytes;
  std::size_t steps_left_ = 20'000'000;
};

/// Limit for nested lists and mappings where a value is compared or printed.
inline constexpr int kMaxValueDepth = 100;

bool truth(const Value& value);
bool equal(Runtime& runtime, const Value& left, const Value& right);
/// Returns the name in jinja2's messages.
std::string_view type_name(Kind kind);
/// Returns jinja2's "'x' is undefined".
std::string undefined_message(const Value& value);
/// Returns null if there is none.
const Value* find(Runtime& runtime, const Mapping& mapping, const Value& key);

}  // namespace jforge::jinja
