#pragma once

/// The Jinja of chat templates: jinja2 3.1 in transformers' sandbox (trim_blocks, lstrip_blocks,
/// loop controls, `generation`), as far as published templates use it. Unsupported statements fail
/// in parsing, other features when reached.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer/jinja/value.h"

namespace jforge::jinja {

struct Syntax;

struct Variable {
  std::string_view name;
  Value value;
};

/// Immutable and thread-safe.
class Template {
 public:
  /// Throws TemplateError if it is not Jinja or unsupported, DataError for invalid UTF-8.
  explicit Template(std::string_view source);

  /// Throws TemplateError on errors, on raise_exception and if steps or memory run out. Values may
  /// live in `runtime`.
  [[nodiscard]] std::string render(std::span<const Variable> variables, Runtime& runtime) const;

 private:
  std::shared_ptr<const Syntax> syntax_;
};

/// Accepts YYYY-MM-DD from year 1000 on.
[[nodiscard]] bool is_day(std::string_view text);
/// Returns transformers' strftime_now() at midnight of `day`, without time zones. Requires:
/// is_day(day); `day` outlives the value.
[[nodiscard]] Value strftime_on(Runtime& runtime, std::string_view day);

}  // namespace jforge::jinja
