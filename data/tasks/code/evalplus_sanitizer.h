#pragma once

#include <optional>
#include <string>

#include "data/tasks/code_runner.h"
#include "data/tasks/task.h"

namespace jforge {

inline constexpr const char* kEvalPlusSanitizer = "sanitize-0.3.1";  ///< Part of a task's version.

struct SanitizedProgram {
  CodeRunStatus status = CodeRunStatus::completed;
  std::string reason;   ///< One line; empty if completed.
  std::string program;  ///< Empty unless completed.
};

/// Extracts the program in `text` as EvalPlus 0.3.1 does:
///  1. Of the spans of at least two lines that parse as Python, takes the first with the most
///     non-blank lines; the first line if none parses.
///  2. Of its top-level statements keeps the imports (except "from __future__"), then the
///     definitions that `entry_point` needs: itself and, transitively, all names mentioned
///     (attributes and arguments too); all definitions without `entry_point`. Definitions are
///     classes, functions with a return statement and non-augmented assignments, the first of each
///     name, never decorated ones. An assignment to anything but a name is known by its value if
///     that is one. If nothing is left, keeps the span.
///
/// EvalPlus uses tree-sitter for step 2; here Python's parser does both, in the sandbox. So
/// trailing comments of definitions are dropped, and text on which EvalPlus would crash (a NUL,
/// operators nested thousands deep) does not parse. Invalid UTF-8 counts as U+FFFD. Times out after
/// 30 s.
[[nodiscard]] SanitizedProgram evalplus_sanitize(const std::string& text,
                                                 const std::optional<std::string>& entry_point,
                                                 CodeRunner& runner);

/// Makes a verdict; `has_base` is as in not_run().
[[nodiscard]] Verdict not_sanitized(const SanitizedProgram& sanitized, const std::string& answer,
                                    bool has_base);

}  // namespace jforge
