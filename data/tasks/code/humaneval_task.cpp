#include "data/tasks/code/humaneval_task.h"

#include <fmt/format.h>

#include "data/tasks/code/evalplus_sanitizer.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr double kHumanEvalSeconds = 3.0;

constexpr std::string_view kEvalchemyRequest =
    "Please continue to complete the function. You are not allowed to modify the given code and do "
    "the completion only. Please return all completed function in a codeblock. Here is the given "
    "code to do completion:";

/// Returns the imports and helpers above the prompt's last top-level def.
std::string_view lines_above_function(std::string_view prompt) {
  const std::size_t line = prompt.rfind("\ndef ");
  return line == std::string_view::npos ? std::string_view() : prompt.substr(0, line + 1);
}

std::string answered_code(std::string_view completion, std::string_view entry_point) {
  const auto blocks = code_blocks(completion);
  for (const bool python_only : {true, false}) {
    for (const CodeBlock& block : blocks) {
      if ((!python_only || is_python(block)) && defines_function(block.text, entry_point)) {
        return block.text;
      }
    }
  }
  for (const CodeBlock& block : blocks) {
    if (is_python(block)) {
      return block.text;
    }
  }
  return std::string(completion);
}

std::string check_of(const TaskRecord& record) {
  return fmt::format("{}\ncheck({})\n", record.fields.at("test"), record.fields.at("entry_point"));
}

/// Runs the tests in a separate namespace with the prompt's definitions above the function, which
/// the program may not call. HumanEval/33 calls the function by name.
std::string check_apart(const TaskRecord& record) {
  const std::string source = fmt::format("{}{}\n", lines_above_function(record.fields.at("prompt")),
                                         record.fields.at("test"));
  return fmt::format(
      "import builtins as _builtins\n_tests = {{'{0}': {0}}}\n_builtins.exec({1}, _tests)\n"
      "_tests['check']({0})\n",
      record.fields.at("entry_point"), python_text_literal(source));
}

}  // namespace

HumanevalTask::HumanevalTask(Variant variant, const TaskOptions& options)
    : variant_(variant),
      style_(parse_code_style(name(), options.prompt_style)),
      plus_(EvalPlusSuite::humaneval, EvalPlusRules::v0_3_1) {}

std::string HumanevalTask::name() const {
  return variant_ == Variant::base ? "humaneval" : "humaneval_plus";
}

std::string HumanevalTask::version() const {
  const bool sanitized = style_ == CodeStyle::evalplus;
  const char* check = style_ == CodeStyle::evalchemy ? "check-3s"
                      : style_ == CodeStyle::lm_eval ? "bare-check-3s"
                                                     : "apart-check-3s";
  return fmt::format("{}/{}/{}/{}", name(), to_string(style_),
                     sanitized ? kEvalPlusSanitizer : "extract-3",
                     variant_ == Variant::base ? check : plus_.version());
}

std::vector<TaskRecord> HumanevalTask::load(const std::filesystem::path& data) const {
  const std::string file = variant_ == Variant::base ? "HumanEval.jsonl" : "HumanEvalPlus.jsonl";
  std::vector<CodeField> fields{
      {"task_id"}, {"prompt"}, {"entry_point"}, {"canonical_solution"}, {"test"}};
  if (variant_ == Variant::plus) {
    fields.push_back({"base_input", JsonNode::Kind::array});
    fields.push_back({"plus_input", JsonNode::Kind::array});
    fields.push_back({"atol", JsonNode::Kind::number});
  }
  return load_code_records(
      data, name(), {"humaneval/" + file, "humaneval/" + file + ".gz", file, file + ".gz"}, fields);
}

TaskPrompt HumanevalTask::prompt(const TaskRecord& record) const {
  const std::string& problem = record.fields.at("prompt");
  switch (style_) {
    case CodeStyle::evalchemy:
      return {.messages = {{"user", fmt::format("{}\n```python\n{}\n```", kEvalchemyRequest,
                                                stripped(problem))}}};
    case CodeStyle::lm_eval:
      return {.messages = {}, .prefix = problem};
    case CodeStyle::evalplus:
      return evalplus_prompt(problem);
  }
  throw InternalError("unknown prompt style");
}

std::int64_t HumanevalTask::default_max_new_tokens() const {
  return style_ == CodeStyle::evalplus ? 768 : 1024;
}

std::vector<std::string> HumanevalTask::stop_texts() const {
  switch (style_) {
    case CodeStyle::evalchemy:
      return {};
    case CodeStyle::lm_eval:
      return {"\nclass", "\ndef", "\n#", "\nif", "\nprint"};
    case CodeStyle::evalplus:
      return evalplus_stops();
  }
  throw InternalError("unknown prompt style");
}

std::optional<std::string> HumanevalTask::extract(std::string_view completion,
                                                  const TaskRecord& record) const {
  completion = cut_at(completion, stop_texts());
  if (is_blank(completion)) {
    return std::nullopt;
  }
  const std::string& problem = record.fields.at("prompt");
  if (style_ == CodeStyle::lm_eval) {
    return problem + std::string(completion);
  }
  if (style_ == CodeStyle::evalplus) {
    return evalplus_completion(completion);
  }
  const std::string& entry_point = record.fields.at("entry_point");
  const std::string code = answered_code(behind_thoughts(completion), entry_point);
  return fmt::format(
      "{}{}", defines_function(code, entry_point) ? lines_above_function(problem) : problem, code);
}

Verdict HumanevalTask::grade(const std::optional<std::string>& answer, const TaskRecord& record,
                             CodeRunner* runner) const {
  if (!answer) {
    return no_program(variant_ == Variant::plus);
  }
  expect(runner != nullptr, "a task that runs code was given a runner");
  if (style_ != CodeStyle::evalplus) {
    return grade_program(*answer, record, *runner);
  }
  SanitizedProgram sanitized = evalplus_sanitize(*answer, record.fields.at("entry_point"), *runner);
  if (sanitized.status != CodeRunStatus::completed) {
    return not_sanitized(sanitized, *answer, variant_ == Variant::plus);
  }
  return grade_program(sanitized.program, record, *runner);
}

Verdict HumanevalTask::grade_program(const std::string& program, const TaskRecord& record,
                                     CodeRunner& runner) const {
  if (variant_ == Variant::plus) {
    return plus_.grade(program, record, runner);
  }
  return run_checked(style_ == CodeStyle::evalchemy ? with_import_preamble(program) : program,
                     style_ == CodeStyle::evalplus ? check_apart(record) : check_of(record),
                     kHumanEvalSeconds, program, runner);
}

}  // namespace jforge
