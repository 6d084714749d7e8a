#pragma once

/// Picks the program out of a model's answer as EvalPlus 0.3.1 does.

#include <optional>
#include <string>

#include "data/tasks/code_runner.h"
#include "data/tasks/task.h"

namespace jforge {

/// Version of the rule in a task's version.
inline constexpr const char* kEvalPlusSanitizer = "sanitize-0.3.1";

/// What became of an answer.
struct SanitizedProgram {
  CodeRunStatus status = CodeRunStatus::completed;
  std::string reason;   ///< One line; empty when completed.
  std::string program;  ///< Only when completed.
};

/// The program in `text`, found in two steps:
///
/// 1. Of all spans of two or more whole lines that parse as Python the one with the most lines that
///    are not blank, the first of equals; where none parses, the first line.
/// 2. Of that span's top-level statements the imports (but "from __future__"), then those that
///    define what `entry_point` needs: it, the names that its definition mentions (attributes and
///    arguments too), the names that those mention. Definitions are classes, functions that have a
///    return statement, and assignments, not augmented ones; the first of each name counts, a
///    decorated one never. An assignment to anything but a plain name is known by its value where
///    that is one. Without `entry_point` all definitions stay. Where nothing is left: the span.
///
/// EvalPlus reads step 2 with tree-sitter; here Python's own parser does both, in the sandbox. A
/// definition's trailing comment is not kept, and text that EvalPlus' parser cannot read without
/// ending the whole evaluation (a NUL, operators nested thousands deep) does not parse.
///
/// Bytes that are no UTF-8 count as U+FFFD. Timed out: more than 30 s were needed. The sandbox's
/// failures are passed on.
[[nodiscard]] SanitizedProgram evalplus_sanitize(const std::string& text,
                                                 const std::optional<std::string>& entry_point,
                                                 CodeRunner& runner);

/// The verdict on an answer that could not be sanitized; `has_base`: the task judges base tests
/// apart.
[[nodiscard]] Verdict not_sanitized(const SanitizedProgram& sanitized, const std::string& answer,
                                    bool has_base);

}  // namespace jforge
