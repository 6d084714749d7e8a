#pragma once

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/evalplus_grader.h"
#include "data/tasks/task.h"

namespace jforge {

/// HumanEval (Chen et al., "Evaluating large language models trained on code", 2021; 164 problems)
/// and HumanEval+ (Liu et al., EvalPlus, 2023: the same problems, many more inputs).
///
/// Prompt styles, each greedy with 1024 new tokens unless said otherwise:
/// - evalchemy (default): one user turn that asks to complete the function in a code block.
/// - lm-eval: the problem's text as raw prompt; the completion ends before a line that begins with
///   class, def, #, if or print.
/// - evalplus: a user turn that asks for a script, the answer begun with an opened code block; 768
///   new tokens, ended by evalplus_stops().
///
/// Rule extract-3. evalchemy, behind a model's thoughts (</think>): the first Python block that
/// defines the entry point, else the first block that does, else the first Python block, else the
/// whole text; a block without a closing fence reaches to the end of the text. Before it stand the
/// prompt's lines above its last top-level def (imports, helpers); what does not define the entry
/// point stands behind the whole prompt. (evalchemy's own rule also drops everything before the
/// entry point within the block, and cuts replies with text before the fence at an arbitrary place;
/// neither is done here.) lm-eval: prompt + completion. Rule sanitize-0.3.1, evalplus: what
/// evalplus_sanitize() makes of the text, nothing of the prompt before it.
///
/// Grading: humaneval runs the program, then `test` and check(entry point), 3.0 s in all, as
/// OpenAI's harness. Imports stand before the program with evalchemy alone
/// (with_import_preamble()); "bare" is without. With evalplus the test has a namespace of its own
/// ("apart"): it may call what the prompt defines above the function (HumanEval/32, 38 and 50), the
/// program may not. humaneval_plus compares returned values of the bare program
/// (evalplus_grader.h).
class HumanevalTask final : public Task {
 public:
  enum class Variant : std::uint8_t { base, plus };
  /// ConfigError naming the styles when `options.prompt_style` is unknown.
  HumanevalTask(Variant variant, const TaskOptions& options);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string version() const override;
  /// humaneval/HumanEval.jsonl(.gz) or HumanEvalPlus.jsonl(.gz), with or without the folder, or a
  /// file of that form.
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
