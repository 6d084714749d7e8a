#pragma once

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/evalplus_grader.h"
#include "data/tasks/task.h"

namespace jforge {

/// MBPP (Austin et al., "Program synthesis with large language models", 2021): the 500 test
/// problems (11 to 510) of the full set, the 257 of them in the sanitized set, and MBPP+ (Liu et
/// al., EvalPlus) 0.2.0 (378 problems) and 0.1.0 (399).
///
/// Prompt styles, greedy:
///  - evalchemy (default): a user turn with solved examples (problems 2, 3 and 4) and the problem
///    with its tests; 512 new tokens, 1024 for MBPP+.
///  - lm-eval: the same examples as raw text between [BEGIN] and [DONE]; 256 new tokens.
///  - evalplus: evalplus_prompt() with the problem and its first test as a docstring, and
///    evalplus_stops(); 768 new tokens.
///
/// Rule extract-3 (evalchemy), after thoughts (</think>): the first Python block, else the first
/// block without a tag, else the whole text; an unclosed block reaches to the end. lm-eval: the
/// whole text. Rule sanitize-0.3.1 (evalplus): evalplus_sanitize(), without an entry point if the
/// problem names none.
///
/// Grading: mbpp and mbpp_sanitized run the program, test_setup_code or test_imports, and the
/// assertions in 10 s, as evalchemy; lm-eval in 3 s without test_setup_code, as there. mbpp_plus
/// compares returned values (evalplus_grader.h): 0.2.0 by EvalPlus 0.3.1's rules, 0.1.0 by 0.2.1's.
class MbppTask final : public Task {
 public:
  enum class Variant : std::uint8_t { full, sanitized, plus, plus_0_1 };
  /// Throws ConfigError naming the styles if `options.prompt_style` is unknown.
  MbppTask(Variant variant, const TaskOptions& options);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string version() const override;
  /// Reads the test problems of mbpp.jsonl, sanitized-mbpp.json, MbppPlus.jsonl or
  /// MbppPlus-v0.1.0.jsonl (also .gz), with or without the folder mbpp, or of a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override;
  /// Reads also the example, validation and training problems.
  [[nodiscard]] std::vector<TaskRecord> load_all(const std::filesystem::path& data) const;
  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override;
  [[nodiscard]] std::int64_t default_max_new_tokens() const override;
  [[nodiscard]] std::vector<std::string> stop_texts() const override;
  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& record) const override;
  [[nodiscard]] bool runs_code() const override { return true; }
  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override;

 private:
  [[nodiscard]] bool is_plus() const;
  [[nodiscard]] Verdict grade_program(const std::string& program, const TaskRecord& record,
                                      CodeRunner& runner) const;

  Variant variant_;
  CodeStyle style_;
  EvalPlusGrader plus_;
};

}  // namespace jforge
