#pragma once

/// Extracts the program from a model's answer as EvalPlus 0.3.1 does.

#include <optional>
#include <string>

#include "data/tasks/code_runner.h"
#include "data/tasks/task.h"

namespace jforge {

/// Part of a task's version.
inline constexpr const char* kEvalPlusSanitizer = "sanitize-0.3.1";

struct SanitizedProgram {
  CodeRunStatus status = CodeRunStatus::completed;
  std::string reason;   ///< One line; empty if completed.
  std::string program;  ///< Empty unless completed.
};

/// Extracts the program in `text` in two steps:
///  1. Of all spans of at least two lines that parse as Python, takes the one with the most
///  non-blank
///     lines (the first of equals); the first line if none parses.
///  2. Of its top-level statements keeps the imports (except "from __future__"), then the
///  definitions
///     that `entry_point` needs: itself and, transitively, all names that they mention (attributes
///     and arguments too); without `entry_point` all definitions. Definitions are classes,
///     functions with a return statement and non-augmented assignments, the first of each name,
///     never decorated ones. An assignment to anything but a name is known by its value if that is
///     a name. If nothing is left, keeps the span.
///
/// EvalPlus uses tree-sitter for step 2; here Python's own parser does both, in the sandbox.
/// Trailing comments of definitions are dropped, and text on which EvalPlus itself would crash (a
/// NUL, operators nested thousands deep) does not parse. Invalid UTF-8 counts as U+FFFD. Times out
/// after 30 s; failures of the sandbox are passed on.
[[nodiscard]] SanitizedProgram evalplus_sanitize(const std::string& text,
                                                 const std::optional<std::string>& entry_point,
                                                 CodeRunner& runner);

/// Verdict on an answer that was not sanitized; `has_base`: as in not_run().
[[nodiscard]] Verdict not_sanitized(const SanitizedProgram& sanitized, const std::string& answer,
                                    bool has_base);

}  // namespace jforge
