#pragma once

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/evalplus_grader.h"
#include "data/tasks/task.h"

namespace jforge {

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
  enum class Variant : std::uint8_t { base, plus };
  /// Throws ConfigError naming the styles if `options.prompt_style` is unknown.
  HumanevalTask(Variant variant, const TaskOptions& options);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string version() const override;
  /// Reads HumanEval.jsonl(.gz) or HumanEvalPlus.jsonl(.gz), with or without the folder humaneval,
  /// or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override;
  [[nodiscard]] std::int64_t default_max_new_tokens() const override;
  [[nodiscard]] std::vector<std::string> stop_texts() const override;
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override;
  [[nodiscard]] bool runs_code() const override { return true; }
  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override;

 private:
  [[nodiscard]] Verdict grade_program(const std::string& program, const TaskRecord& record,
                                      CodeRunner& runner) const;

  Variant variant_;
  CodeStyle style_;
  EvalPlusGrader plus_;
};

}  // namespace jforge
