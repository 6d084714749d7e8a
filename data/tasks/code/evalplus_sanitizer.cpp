#include <fmt/format.h>

#include <utility>

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/evalplus_grader.h"
#include "data/tasks/code/json_tree.h"
#include "data/tokenizer/unicode.h"
#include "runtime/error.h"

namespace jforge {

const char* evalplus_sanitizer_source();  // Text of evalplus_sanitizer.py.

namespace {

constexpr double kSanitizerLoadSeconds = 10.0;
constexpr double kSanitizeSeconds = 30.0;

}  // namespace

SanitizedProgram evalplus_sanitize(const std::string& text,
                                   const std::optional<std::string>& entry_point,
                                   CodeRunner& runner) {
  CodeRunRequest request;
  request.candidate = evalplus_sanitizer_source();
  request.entry_point = "sanitize";
  request.calls = {fmt::format("[{}, {}]", python_text_literal(replaced_utf8(text)),
                               entry_point ? python_text_literal(*entry_point) : "None")};
  request.check_seconds = kSanitizerLoadSeconds;
  request.call_seconds = {kSanitizeSeconds};
  request.total_seconds = kSanitizerLoadSeconds + kSanitizeSeconds;
  SanitizedProgram sanitized;
  CodeRunResult result = runner.run(request, [&](std::int64_t, std::string_view json) {
    auto value = parse_json(json);
    expect(value && value->kind == JsonNode::Kind::text, "the sanitizer returns a text");
    sanitized.program = std::move(value->text);
    return true;
  });
  sanitized.status = result.status;
  if (result.status != CodeRunStatus::completed) {
    sanitized.reason = fmt::format("sanitizing: {}", result.reason);
  }
  return sanitized;
}

Verdict not_sanitized(const SanitizedProgram& sanitized, const std::string& answer, bool has_base) {
  return not_run(verdict_status(sanitized.status), sanitized.reason, answer, has_base);
}

}  // namespace jforge
