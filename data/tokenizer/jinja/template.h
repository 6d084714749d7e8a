#pragma once

/// The Jinja of chat templates: what jinja2 3.1 renders in transformers' sandbox (trim_blocks,
/// lstrip_blocks, loop controls, `generation`), as far as published templates use it. Other
/// statements are errors when they are read, other functions, filters, tests, methods, operators
/// and numbers when they are reached; what jinja2 renders otherwise is a mistake here.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer/jinja/value.h"

namespace jforge::jinja {

struct Syntax;

/// A variable that the caller gives a template.
struct Variable {
  std::string_view name;
  Value value;
};

/// A parsed template. Immutable; safe to use from many threads.
class Template {
 public:
  /// Throws TemplateError for what is no Jinja or not supported, DataError for invalid UTF-8.
  explicit Template(std::string_view source);

  /// What the template prints. TemplateError for what cannot be evaluated, takes too many steps or
  /// too much memory, or is refused by raise_exception. What the values of `variables` point at
  /// may be in `runtime`.
  [[nodiscard]] std::string render(std::span<const Variable> variables, Runtime& runtime) const;

 private:
  std::shared_ptr<const Syntax> syntax_;
};

/// Whether `text` is a day as YYYY-MM-DD, from the year 1000 on.
[[nodiscard]] bool is_day(std::string_view text);
/// transformers' strftime_now() at midnight of that `day`, which outlives the value. It knows what
/// glibc prints of a day and a time without a zone. Requires: is_day(day).
[[nodiscard]] Value strftime_on(Runtime& runtime, std::string_view day);

}  // namespace jforge::jinja
