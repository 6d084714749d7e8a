#include <fmt/format.h>

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/evalplus_grader.h"
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

/// HumanEval (Chen et al., "Evaluating large language models trained on code", 2021; 164 problems)
/// and HumanEval+ (Liu et al., EvalPlus, 2023: the same problems, many more inputs).
///
/// Prompt styles, greedy, 1024 new tokens unless stated:
///  - evalchemy (default): a user turn that asks to complete the function in a code block.
///  - lm-eval: the problem as raw prompt, ended by a line that begins with class, def, #, if or
///    print.
///  - evalplus: evalplus_prompt() and evalplus_stops(); 768 new tokens.
///
/// Rule extract-3 (evalchemy), after thoughts (</think>): the first Python block that defines the
/// entry point, else any block that does, else the first Python block, else the whole text; an
/// unclosed block reaches to the end. The prompt's lines above its last top-level def precede the
/// program, or the whole prompt if the program does not define the entry point. (evalchemy itself
/// also drops everything before the entry point in the block, and cuts replies with text before the
/// fence arbitrarily.) lm-eval: prompt + completion. Rule sanitize-0.3.1 (evalplus):
/// evalplus_sanitize() without the prompt.
///
/// Grading: humaneval runs the program, `test` and check(entry point) in 3.0 s, as OpenAI's
/// harness; only evalchemy adds with_import_preamble() ("bare" means without). With evalplus the
/// tests have their own namespace ("apart"): they, not the program, may call the prompt's
/// definitions above the function (HumanEval/32, 38 and 50). humaneval_plus compares values of the
/// bare program (evalplus_grader.h).
class HumanevalTask final : public Task {
 public:
  /// Throws ConfigError naming the styles if `options.prompt_style` is unknown.
  HumanevalTask(bool plus_tests, const TaskOptions& options)
      : plus_tests_(plus_tests),
        style_(parse_code_style(name(), options.prompt_style)),
        plus_(EvalPlusSuite::humaneval, EvalPlusRules::v0_3_1) {}

  [[nodiscard]] std::string name() const override {
    return plus_tests_ ? "humaneval_plus" : "humaneval";
  }

  [[nodiscard]] std::string version() const override {
    const bool sanitized = style_ == CodeStyle::evalplus;
    const char* check = style_ == CodeStyle::evalchemy ? "check-3s"
                        : style_ == CodeStyle::lm_eval ? "bare-check-3s"
                                                       : "apart-check-3s";
    return fmt::format("{}/{}/{}/{}", name(), to_string(style_),
                       sanitized ? kEvalPlusSanitizer : "extract-3",
                       plus_tests_ ? plus_.version() : check);
  }

  /// Reads HumanEval.jsonl(.gz) or HumanEvalPlus.jsonl(.gz), with or without the folder humaneval,
  /// or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override {
    const std::string file = plus_tests_ ? "HumanEvalPlus.jsonl" : "HumanEval.jsonl";
    std::vector<CodeField> fields{
        {"task_id"}, {"prompt"}, {"entry_point"}, {"canonical_solution"}, {"test"}};
    if (plus_tests_) {
      fields.push_back({"base_input", JsonNode::Kind::array});
      fields.push_back({"plus_input", JsonNode::Kind::array});
      fields.push_back({"atol", JsonNode::Kind::number});
    }
    return load_code_records(data, name(),
                             {"humaneval/" + file, "humaneval/" + file + ".gz", file, file + ".gz"},
                             fields);
  }

  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override {
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

  [[nodiscard]] std::int64_t default_max_new_tokens() const override {
    return style_ == CodeStyle::evalplus ? 768 : 1024;
  }

  [[nodiscard]] std::vector<std::string> stop_texts() const override {
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

  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override {
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
        "{}{}", defines_function(code, entry_point) ? lines_above_function(problem) : problem,
        code);
  }

  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override {
    if (!answer) {
      return no_program(plus_tests_);
    }
    expect(runner != nullptr, "a task that runs code was given a runner");
    if (style_ != CodeStyle::evalplus) {
      return grade_program(*answer, record, *runner);
    }
    SanitizedProgram sanitized =
        evalplus_sanitize(*answer, record.fields.at("entry_point"), *runner);
    if (sanitized.status != CodeRunStatus::completed) {
      return not_sanitized(sanitized, *answer, plus_tests_);
    }
    return grade_program(sanitized.program, record, *runner);
  }

  [[nodiscard]] bool runs_code() const override { return true; }

 private:
  [[nodiscard]] Verdict grade_program(const std::string& program, const TaskRecord& record,
                                      CodeRunner& runner) const {
    if (plus_tests_) {
      return plus_.grade(program, record, runner);
    }
    return run_checked(style_ == CodeStyle::evalchemy ? with_import_preamble(program) : program,
                       style_ == CodeStyle::evalplus ? check_apart(record) : check_of(record),
                       kHumanEvalSeconds, program, runner);
  }

  bool plus_tests_;
  CodeStyle style_;
  EvalPlusGrader plus_;
};

}  // namespace

std::unique_ptr<Task> make_humaneval(bool plus_tests, const TaskOptions& options) {
  return std::make_unique<HumanevalTask>(plus_tests, options);
}

}  // namespace jforge
