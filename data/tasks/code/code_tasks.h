#pragma once

/// What the tasks that ask for Python programs share: their records, prompt styles, and how a
/// program is made from a completion.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tasks/code/json_tree.h"
#include "data/tasks/task.h"

namespace jforge {

/// How the question is put and the program found in the completion; the names are those of the
/// evaluation programs that put it so.
enum class CodeStyle : std::uint8_t {
  evalchemy,  ///< A chat turn that asks for a code block (the default).
  lm_eval,    ///< Raw text that the model continues.
  evalplus    ///< A chat turn whose answer is begun with an opened code block.
};
/// "evalchemy", "lm-eval", "evalplus".
[[nodiscard]] std::string_view to_string(CodeStyle style);
/// The style `name`; empty is evalchemy. ConfigError naming `task` and the known ones.
[[nodiscard]] CodeStyle parse_code_style(const std::string& task, std::string_view name);

/// Returns a text as an ASCII Python literal. Throws DataError if it is not UTF-8.
[[nodiscard]] std::string python_text_literal(std::string_view text);

/// A field of a record and the JSON it must hold. A text is kept decoded, all else as it stands.
struct CodeField {
  std::string name;
  JsonNode::Kind kind = JsonNode::Kind::text;
};
/// Reads a task's records as Python's json reads them (json_tree.h), otherwise as
/// load_task_records. An empty object passes for an array.
[[nodiscard]] std::vector<TaskRecord> load_code_records(const std::filesystem::path& data,
                                                        const std::string& task,
                                                        const std::vector<std::string>& candidates,
                                                        const std::vector<CodeField>& fields);
/// The texts of a field that holds a JSON array of texts. DataError naming the record.
[[nodiscard]] std::vector<std::string> text_list(const TaskRecord& record,
                                                 const std::string& field);

/// One fenced block of a Markdown text.
struct CodeBlock {
  std::string tag;   ///< Behind the opening fence, without blanks.
  std::string text;  ///< Its lines, the last line end included, without the fence's indentation.
};
/// The blocks of `text`: from "```", a tag and a line end to the next "```" that begins a line, or,
/// where the text was cut, to its end. Behind the tag of a fence that begins a line may stand more
/// ("```python title=a.py").
[[nodiscard]] std::vector<CodeBlock> code_blocks(std::string_view text);
/// Whether the block says it is Python, in any case.
[[nodiscard]] bool is_python(const CodeBlock& block);

/// Whether a line of `program` begins with "def NAME" (or "async def NAME") and an open bracket.
[[nodiscard]] bool defines_function(std::string_view program, std::string_view name);
/// Whether `name` stands in `text` as a whole word.
[[nodiscard]] bool mentions_word(std::string_view text, std::string_view name);
/// Whether there is nothing but white space.
[[nodiscard]] bool is_blank(std::string_view text);
/// Text without white space at both ends, as Python's strip() for ASCII.
[[nodiscard]] std::string_view stripped(std::string_view text);
/// What stands before the earliest of `stops`.
[[nodiscard]] std::string_view cut_at(std::string_view text, const std::vector<std::string>& stops);

/// The program that a finished completion stands for, where it is given without a model: prompt +
/// completion, as OpenAI's and EvalPlus' evaluation run it, or the completion as it is where the
/// record names no entry point.
[[nodiscard]] std::string program_from_completion(const TaskRecord& record,
                                                  std::string_view completion);

/// `program` behind the imports that OpenAI-style harnesses put before it (math, re, sys, copy,
/// datetime, itertools, collections, heapq, functools, hashlib, string, typing), its "from
/// __future__" lines in front of them. numpy is imported only where the program has the word numpy
/// or np: its import takes longer than most programs, and nothing else can tell the difference.
[[nodiscard]] std::string with_import_preamble(std::string_view program);

/// EvalPlus' texts that end a chat model's completion.
[[nodiscard]] const std::vector<std::string>& evalplus_stops();
/// A chat model's completion as EvalPlus takes it: cut at its stops, four spaces for a tab.
[[nodiscard]] std::string evalplus_completion(std::string_view completion);
/// EvalPlus' prompt for a chat model: a request for a self-contained script, the answer begun up to
/// the opened code block.
[[nodiscard]] TaskPrompt evalplus_prompt(std::string_view problem);

/// What stands behind the last "</think>", all of `completion` where there is none: a draft among a
/// model's thoughts is not its answer.
[[nodiscard]] std::string_view behind_thoughts(std::string_view completion);

/// The verdict on what no test was run of; `has_base`: the task judges base tests apart.
[[nodiscard]] Verdict not_run(VerdictStatus status, std::string reason,
                              std::optional<std::string> answer, bool has_base);
/// … on a completion without a program.
[[nodiscard]] Verdict no_program(bool has_base);

/// The verdict on a program: it must load and `check` (code_runner.h) must run through, in
/// `seconds` together. `answer` goes into the verdict.
[[nodiscard]] Verdict run_checked(std::string program, std::string check, double seconds,
                                  const std::string& answer, CodeRunner& runner);
/// How the outcome of a run counts.
[[nodiscard]] VerdictStatus verdict_status(CodeRunStatus status);

}  // namespace jforge
