#include "data/tasks/code/code_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "data/prompts/record_stream.h"
#include "data/tokenizer/unicode.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr std::string_view kFence = "```";
constexpr std::string_view kImports =
    "import math\nimport re\nimport sys\nimport copy\nimport datetime\nimport itertools\n"
    "import collections\nimport heapq\nimport functools\nimport hashlib\nimport string\n"
    "from typing import *\nfrom collections import *\n";
constexpr std::string_view kNumpyImports = "import numpy\nimport numpy as np\n";

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool is_python_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::string_view kind_name(JsonNode::Kind kind) {
  switch (kind) {
    case JsonNode::Kind::null:
      return "null";
    case JsonNode::Kind::boolean:
      return "boolean";
    case JsonNode::Kind::number:
      return "number";
    case JsonNode::Kind::text:
      return "text";
    case JsonNode::Kind::array:
      return "array";
    case JsonNode::Kind::object:
      return "object";
  }
  throw InternalError("unknown kind of JSON value");
}

/// Returns the text that records keep, or nullopt if the kind differs.
std::optional<std::string> field_text(const JsonNode* node, JsonNode::Kind kind) {
  if (node == nullptr) {
    return std::nullopt;
  }
  const bool empty_object = node->kind == JsonNode::Kind::object && node->items.empty();
  if (kind == JsonNode::Kind::array && empty_object) {
    return "[]";
  }
  if (node->kind != kind) {
    return std::nullopt;
  }
  if (kind != JsonNode::Kind::text) {
    return std::string(node->raw);
  }
  return first_invalid_utf8(node->text) ? std::nullopt : std::optional(node->text);
}

/// Returns lines with their ends.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::size_t size = end == std::string_view::npos ? text.size() : end + 1;
    lines.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return lines;
}

/// Returns the start of the line of `at` if only blanks lie between, but not before `from`.
std::optional<std::size_t> line_begin(std::string_view text, std::size_t at, std::size_t from) {
  while (at > from && (text[at - 1] == ' ' || text[at - 1] == '\t')) {
    --at;
  }
  return at == from || text[at - 1] == '\n' ? std::optional(at) : std::nullopt;
}

/// Returns the column of the fence at `at` after blanks or a list item's mark, else 0.
std::size_t indentation_of(std::string_view text, std::size_t at) {
  const std::size_t begin = text.substr(0, at).rfind('\n') + 1;
  std::string_view before = text.substr(begin, at - begin);
  const auto skip = [&](std::string_view what) {
    before.remove_prefix(std::min(before.find_first_not_of(what), before.size()));
  };
  skip(" \t");
  if (const std::size_t digits = before.find_first_not_of("0123456789");
      digits != std::string_view::npos && digits > 0 &&
      (before[digits] == '.' || before[digits] == ')')) {
    before.remove_prefix(digits + 1);
  } else if (!before.empty() && (before[0] == '-' || before[0] == '*' || before[0] == '+')) {
    before.remove_prefix(1);
  }
  skip(" \t");
  return before.empty() ? at - begin : 0;
}

/// Removes the lines' common indentation, at most `most` blanks.
std::string unindented(std::string_view text, std::size_t most) {
  const auto blanks_of = [](std::string_view line) {
    return std::min(line.find_first_not_of(" \t"), line.size());
  };
  for (const std::string_view line : lines_of(text)) {
    most = is_blank(line) ? most : std::min(most, blanks_of(line));
  }
  std::string result;
  for (std::string_view line : lines_of(text)) {
    line.remove_prefix(std::min(most, blanks_of(line)));
    result += line;
  }
  return result;
}

/// Returns the offset of the next fence that begins a line, or the end.
std::size_t closing_fence(std::string_view text, std::size_t from) {
  for (std::size_t at = text.find(kFence, from); at != std::string_view::npos;
       at = text.find(kFence, at + 1)) {
    if (const auto line = line_begin(text, at, from)) {
      return *line;
    }
  }
  return text.size();
}

}  // namespace

std::string_view to_string(CodeStyle style) {
  switch (style) {
    case CodeStyle::evalchemy:
      return "evalchemy";
    case CodeStyle::lm_eval:
      return "lm-eval";
    case CodeStyle::evalplus:
      return "evalplus";
  }
  throw InternalError("unknown prompt style");
}

CodeStyle parse_code_style(const std::string& task, std::string_view name) {
  for (const CodeStyle style : {CodeStyle::evalchemy, CodeStyle::lm_eval, CodeStyle::evalplus}) {
    if (name == to_string(style) || (name.empty() && style == CodeStyle::evalchemy)) {
      return style;
    }
  }
  throw ConfigError(fmt::format(
      "task {}: unknown prompt style '{}': known are evalchemy, lm-eval, evalplus", task, name));
}

std::string python_text_literal(std::string_view text) {
  if (first_invalid_utf8(text)) {
    throw DataError("a text for Python is not valid UTF-8");
  }
  std::string out = "'";
  for (std::size_t at = 0; at < text.size();) {
    const auto [value, length] = code_point_at(text, at);
    at += length;
    if (value == '\'' || value == '\\') {
      out += '\\';
      out += static_cast<char>(value);
    } else if (value >= 0x20 && value < 0x7F) {
      out += static_cast<char>(value);
    } else {
      out += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(value));
    }
  }
  return out + "'";
}

std::vector<TaskRecord> load_code_records(const std::filesystem::path& data,
                                          const std::string& task,
                                          const std::vector<std::string>& candidates,
                                          const std::vector<CodeField>& fields) {
  const std::filesystem::path path = task_file(data, task, candidates);
  RecordStream stream(path);
  RawRecord raw;
  std::vector<TaskRecord> records;
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("{}:{}: {}", path.string(), raw.line, what));
  };
  while (stream.next(raw)) {
    if (!raw.unreadable.empty() || first_invalid_utf8(raw.text)) {
      refuse(raw.unreadable.empty() ? "not valid UTF-8" : raw.unreadable);
    }
    const auto object = parse_json(raw.text);
    if (!object || object->kind != JsonNode::Kind::object) {
      refuse("not a JSON object");
    }
    TaskRecord record;
    record.id = fmt::format("{}/{}", task, records.size());
    for (const auto& [name, kind] : fields) {
      auto text = field_text(object->find(name), kind);
      if (!text) {
        refuse(fmt::format("no {} field '{}', which task '{}' needs", kind_name(kind), name, task));
      }
      record.fields.emplace(name, std::move(*text));
    }
    records.push_back(std::move(record));
  }
  if (records.empty()) {
    throw DataError(fmt::format("{}: holds no problem for task '{}'", path.string(), task));
  }
  return records;
}

std::vector<std::string> text_list(const TaskRecord& record, const std::string& field) {
  const auto list = parse_json(record.fields.at(field));
  std::vector<std::string> texts;
  if (list && list->kind == JsonNode::Kind::array) {
    for (const JsonNode& item : list->items) {
      if (item.kind == JsonNode::Kind::text) {
        texts.push_back(item.text);
      }
    }
  }
  if (!list || list->kind != JsonNode::Kind::array || texts.size() != list->items.size()) {
    throw DataError(fmt::format("{}: its field '{}' must be a list of strings", record.id, field));
  }
  return texts;
}

std::vector<CodeBlock> code_blocks(std::string_view text) {
  std::vector<CodeBlock> blocks;
  std::size_t at = 0;
  while ((at = text.find(kFence, at)) != std::string_view::npos) {
    const std::size_t tag = at + kFence.size();
    const std::size_t line_end = text.find('\n', tag);
    if (line_end == std::string_view::npos) {
      break;
    }
    std::string_view name = stripped(text.substr(tag, line_end - tag));
    // "```x```" within a line opens no block.
    if (name.find(kFence) != std::string_view::npos) {
      at = text.find(kFence, tag) + kFence.size();
      continue;
    }
    if (const std::size_t blank = name.find_first_of(" \t"); blank != std::string_view::npos) {
      if (!line_begin(text, at, 0)) {
        at = line_end;
        continue;
      }
      name = name.substr(0, blank);
    }
    const std::size_t end = closing_fence(text, line_end + 1);
    blocks.push_back({std::string(name), unindented(text.substr(line_end + 1, end - line_end - 1),
                                                    indentation_of(text, at))});
    const std::size_t fence = text.find(kFence, end);
    at = fence == std::string_view::npos ? text.size() : fence + kFence.size();
  }
  return blocks;
}

bool is_python(const CodeBlock& block) {
  std::string tag(block.tag);
  std::transform(tag.begin(), tag.end(), tag.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return tag == "python" || tag == "py" || tag == "python3";
}

bool defines_function(std::string_view program, std::string_view name) {
  for (std::string_view line : lines_of(program)) {
    const auto take = [&](std::string_view word) {
      if (!line.starts_with(word)) {
        return false;
      }
      line.remove_prefix(word.size());
      const std::size_t blanks = std::min(line.find_first_not_of(" \t"), line.size());
      line.remove_prefix(blanks);
      return true;
    };
    take("async ");
    if (take("def ") && take(name) && line.starts_with('(')) {
      return true;
    }
  }
  return false;
}

bool mentions_word(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos;
       at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || !is_word_character(text[at - 1])) &&
        (end == text.size() || !is_word_character(text[end]))) {
      return true;
    }
  }
  return false;
}

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(), is_python_space);
}

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_python_space(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && is_python_space(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

std::string_view cut_at(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t end = text.size();
  for (const std::string& stop : stops) {
    end = std::min(end, text.find(stop));
  }
  return text.substr(0, end);
}

std::string program_from_completion(const TaskRecord& record, std::string_view completion) {
  const std::string whole(completion);
  return record.fields.contains("entry_point") ? record.fields.at("prompt") + whole : whole;
}

std::string with_import_preamble(std::string_view program) {
  std::string future;
  std::string rest;
  for (const std::string_view line : lines_of(program)) {
    const bool is_future = line.starts_with("from __future__ import ");
    (is_future ? future : rest) += line;
    // Keeps line numbers in error messages.
    rest += is_future ? "\n" : "";
  }
  if (!future.empty() && !future.ends_with('\n')) {
    future += '\n';
  }
  const bool numpy = mentions_word(program, "np") || mentions_word(program, "numpy");
  return fmt::format("{}{}{}{}", future, kImports, numpy ? kNumpyImports : "", rest);
}

const std::vector<std::string>& evalplus_stops() {
  static const std::vector<std::string> stops{"<|endoftext|>", "<|endofmask|>", "</s>",
                                              "\nif __name__", "\ndef main(",   "\nprint(",
                                              "\n```\n"};
  return stops;
}

std::string evalplus_completion(std::string_view completion) {
  std::string text;
  for (const char c : cut_at(completion, evalplus_stops())) {
    text += c == '\t' ? "    " : std::string_view(&c, 1);
  }
  return text;
}

TaskPrompt evalplus_prompt(std::string_view problem) {
  return {.messages = {{"user", fmt::format("Please provide a self-contained Python script that "
                                            "solves the following problem in a markdown code "
                                            "block:\n```\n{}\n```\n",
                                            stripped(problem))}},
          .prefix =
              "Below is a Python script with a self-contained function that solves the "
              "problem and passes corresponding tests:\n```python\n"};
}

VerdictStatus verdict_status(CodeRunStatus status) {
  switch (status) {
    case CodeRunStatus::completed:
      return VerdictStatus::pass;
    case CodeRunStatus::failed:
      return VerdictStatus::fail;
    case CodeRunStatus::timed_out:
      return VerdictStatus::timeout;
  }
  throw InternalError("unknown status of a run");
}

std::string_view behind_thoughts(std::string_view completion) {
  constexpr std::string_view kEnd = "</think>";
  const std::size_t end = completion.rfind(kEnd);
  return end == std::string_view::npos ? completion : completion.substr(end + kEnd.size());
}

Verdict not_run(VerdictStatus status, std::string reason, std::optional<std::string> answer,
                bool has_base) {
  return {status, std::move(reason), std::move(answer),
          has_base ? std::optional(status) : std::nullopt};
}

Verdict no_program(bool has_base) {
  return not_run(VerdictStatus::fail, "no program in the completion", std::nullopt, has_base);
}

Verdict run_checked(std::string program, std::string check, double seconds,
                    const std::string& answer, CodeRunner& runner) {
  CodeRunRequest request;
  request.candidate = std::move(program);
  request.check = std::move(check);
  request.check_seconds = seconds;
  request.total_seconds = seconds;
  CodeRunResult result = runner.run(request);
  return {verdict_status(result.status), std::move(result.reason), answer};
}

}  // namespace jforge
