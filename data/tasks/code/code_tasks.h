#pragma once

/// Shared by tasks that ask for Python programs: records, prompt styles, programs from completions.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tasks/code/json_tree.h"
#include "data/tasks/task.h"

namespace jforge {

/// Prompt and extraction style, named after the evaluation program that uses it.
enum class CodeStyle : std::uint8_t {
  evalchemy,  ///< A chat turn that asks for a code block (default).
  lm_eval,    ///< Raw text to continue.
  evalplus    ///< A chat turn; the answer begins with an opened code block.
};
/// Returns "evalchemy", "lm-eval" or "evalplus".
[[nodiscard]] std::string_view to_string(CodeStyle style);
/// Inverse of to_string(); empty is evalchemy. Throws ConfigError naming `task` and the known
/// styles.
[[nodiscard]] CodeStyle parse_code_style(const std::string& task, std::string_view name);

/// Returns an ASCII Python literal. Throws DataError if `text` is not UTF-8.
[[nodiscard]] std::string python_text_literal(std::string_view text);

/// A record's field and its JSON kind. Texts are decoded, other kinds stay JSON.
struct CodeField {
  std::string name;
  JsonNode::Kind kind = JsonNode::Kind::text;
};
/// Reads records as load_task_records(), but with Python's JSON (json_tree.h). An empty object
/// passes for an array.
[[nodiscard]] std::vector<TaskRecord> load_code_records(const std::filesystem::path& data,
                                                        const std::string& task,
                                                        const std::vector<std::string>& candidates,
                                                        const std::vector<CodeField>& fields);
/// Parses a field that holds a JSON array of texts. Throws DataError naming the record.
[[nodiscard]] std::vector<std::string> text_list(const TaskRecord& record,
                                                 const std::string& field);

/// One fenced block of a Markdown text.
struct CodeBlock {
  std::string tag;   ///< After the opening fence, without blanks.
  std::string text;  ///< Including the last line end, without the fence's indentation.
};
/// Returns the blocks of `text`. A block reaches from "```", a tag and a line end to the next "```"
/// that begins a line, or to the end. Text after the tag ("```python title=a.py") is allowed if the
/// fence begins its line.
[[nodiscard]] std::vector<CodeBlock> code_blocks(std::string_view text);
/// Returns true if the tag is "python" in any case.
[[nodiscard]] bool is_python(const CodeBlock& block);

/// Returns true if a line begins with "def NAME(" or "async def NAME(".
[[nodiscard]] bool defines_function(std::string_view program, std::string_view name);
[[nodiscard]] bool mentions_word(std::string_view text, std::string_view name);
[[nodiscard]] bool is_blank(std::string_view text);
/// Python's strip() for ASCII.
[[nodiscard]] std::string_view stripped(std::string_view text);
/// Returns the text before the earliest of `stops`.
[[nodiscard]] std::string_view cut_at(std::string_view text, const std::vector<std::string>& stops);

/// Returns the program of a completion that was given without a model: prompt + completion as in
/// OpenAI's and EvalPlus' evaluation, or the completion if the record names no entry point.
[[nodiscard]] std::string program_from_completion(const TaskRecord& record,
                                                  std::string_view completion);

/// Puts the imports of OpenAI-style harnesses (math, re, sys, copy, datetime, itertools,
/// collections, heapq, functools, hashlib, string, typing) before `program` and its "from
/// __future__" lines before them. Imports numpy only if the program contains the word numpy or np,
/// because the import is slow.
[[nodiscard]] std::string with_import_preamble(std::string_view program);

/// EvalPlus' stop texts for chat models.
[[nodiscard]] const std::vector<std::string>& evalplus_stops();
/// Cuts a completion at EvalPlus' stops and replaces tabs by four spaces.
[[nodiscard]] std::string evalplus_completion(std::string_view completion);
/// Returns EvalPlus' chat prompt: requests a self-contained script; the answer begins with an
/// opened code block.
[[nodiscard]] TaskPrompt evalplus_prompt(std::string_view problem);

/// Returns the text after the last "</think>", or all: drafts among thoughts are not answers.
[[nodiscard]] std::string_view behind_thoughts(std::string_view completion);

/// Verdict if no test was run; `has_base`: the task reports base tests separately.
[[nodiscard]] Verdict not_run(VerdictStatus status, std::string reason,
                              std::optional<std::string> answer, bool has_base);
/// Verdict on a completion without a program.
[[nodiscard]] Verdict no_program(bool has_base);

/// Loads a program and runs `check` (code_runner.h), limited to `seconds` together; `answer` goes
/// into the verdict.
[[nodiscard]] Verdict run_checked(std::string program, std::string check, double seconds,
                                  const std::string& answer, CodeRunner& runner);
[[nodiscard]] VerdictStatus verdict_status(CodeRunStatus status);

}  // namespace jforge
