#pragma once

/// Records, prompt styles and program extraction of tasks that ask for Python programs.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tasks/code/json_tree.h"
#include "data/tasks/task.h"

namespace jforge {

/// The problems of mbpp_task.cpp.
enum class MbppSet : std::uint8_t { full, sanitized, plus, plus_0_1 };
/// The tasks of humaneval_task.cpp and mbpp_task.cpp. Throw ConfigError naming the styles if
/// `options.prompt_style` is unknown.
[[nodiscard]] std::unique_ptr<Task> make_humaneval(bool plus_tests, const TaskOptions& options);
[[nodiscard]] std::unique_ptr<Task> make_mbpp(MbppSet set, const TaskOptions& options);
/// Reads also MBPP's example, validation and training problems.
[[nodiscard]] std::vector<TaskRecord> load_all_mbpp(MbppSet set, const std::filesystem::path& data);

/// Named after the evaluation programs that use them.
enum class CodeStyle : std::uint8_t {
  evalchemy,  ///< Chat turn that asks for a code block (default).
  lm_eval,    ///< Raw text to continue.
  evalplus    ///< Chat turn; the answer begins with an opened code block.
};
/// Returns "evalchemy", "lm-eval" or "evalplus".
[[nodiscard]] std::string_view to_string(CodeStyle style);
/// Parses a style; empty is evalchemy. Throws ConfigError naming `task` and the known styles.
[[nodiscard]] CodeStyle parse_code_style(const std::string& task, std::string_view name);

/// Returns an ASCII literal. Throws DataError if `text` is not UTF-8.
[[nodiscard]] std::string python_text_literal(std::string_view text);

/// Texts are decoded, other kinds stay JSON.
struct CodeField {
  std::string name;
  JsonNode::Kind kind = JsonNode::Kind::text;
};
/// Reads as load_task_records(), but with Python's JSON (json_tree.h). An empty object passes for
/// an array.
[[nodiscard]] std::vector<TaskRecord> load_code_records(const std::filesystem::path& data,
                                                        const std::string& task,
                                                        const std::vector<std::string>& candidates,
                                                        const std::vector<CodeField>& fields);
/// Parses a JSON array of texts. Throws DataError naming the record.
[[nodiscard]] std::vector<std::string> text_list(const TaskRecord& record,
                                                 const std::string& field);

/// A fenced Markdown block.
struct CodeBlock {
  std::string tag;   ///< After the opening fence, without blanks.
  std::string text;  ///< With the last line end, without the fence's indentation.
};
/// Returns fenced blocks. A block reaches from "```", tag and line end to the next "```" that
/// begins a line, or to the end. If the fence begins its line, text may follow the tag ("```python
/// title=a.py").
[[nodiscard]] std::vector<CodeBlock> code_blocks(std::string_view text);
/// Returns true if the tag is "python" in any case.
[[nodiscard]] bool is_python(const CodeBlock& block);

/// Returns true if a line begins with "def NAME(" or "async def NAME(".
[[nodiscard]] bool defines_function(std::string_view program, std::string_view name);
[[nodiscard]] bool mentions_word(std::string_view text, std::string_view name);
[[nodiscard]] bool is_blank(std::string_view text);
/// Applies Python's strip() for ASCII.
[[nodiscard]] std::string_view stripped(std::string_view text);
/// Returns the text before the earliest of `stops`.
[[nodiscard]] std::string_view cut_at(std::string_view text, const std::vector<std::string>& stops);

/// Returns the program of a completion that was given without a model: prompt + completion, as in
/// OpenAI's and EvalPlus' evaluation, or the completion if the record has no entry point.
[[nodiscard]] std::string program_from_completion(const TaskRecord& record,
                                                  std::string_view completion);

/// Puts the imports of OpenAI-style harnesses (math, re, sys, copy, datetime, itertools,
/// collections, heapq, functools, hashlib, string, typing) after the program's "from __future__"
/// lines, which move to the front. Imports numpy, which is slow, only if the program contains the
/// word numpy or np.
[[nodiscard]] std::string with_import_preamble(std::string_view program);

/// Returns EvalPlus' stops for chat models.
[[nodiscard]] const std::vector<std::string>& evalplus_stops();
/// Cuts at evalplus_stops() and replaces tabs by four spaces.
[[nodiscard]] std::string evalplus_completion(std::string_view completion);
/// Returns EvalPlus' chat prompt for a self-contained script.
[[nodiscard]] TaskPrompt evalplus_prompt(std::string_view problem);

/// Returns the text after the last "</think>", or all: drafts among thoughts are not answers.
[[nodiscard]] std::string_view behind_thoughts(std::string_view completion);

/// Makes a verdict without a test run; `has_base`: the task reports base tests separately.
[[nodiscard]] Verdict not_run(VerdictStatus status, std::string reason,
                              std::optional<std::string> answer, bool has_base);
[[nodiscard]] Verdict no_program(bool has_base);

/// Loads the program and runs `check` (code_runner.h) in `seconds` together; `answer` goes into the
/// verdict.
[[nodiscard]] Verdict run_checked(std::string program, std::string check, double seconds,
                                  const std::string& answer, CodeRunner& runner);
[[nodiscard]] VerdictStatus verdict_status(CodeRunStatus status);

}  // namespace jforge
