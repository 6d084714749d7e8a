#include "data/tasks/code/mbpp_task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "data/tasks/code/evalplus_sanitizer.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr double kMbppSeconds = 10.0;
constexpr double kLmEvalCheckSeconds = 3.0;
constexpr int kFirstTestProblem = 11;
constexpr int kLastTestProblem = 510;

/// Fields shown in prompts.
struct Question {
  std::string text;
  std::vector<std::string> tests;
};
struct Example {
  Question question;
  std::string code;
};

/// Returns problems 2, 3 and 4 of mbpp.jsonl.
const std::array<Example, 3>& examples() {
  static const std::array<Example, 3> shown{{
      {{"Write a function to find the similar elements from the given two tuple lists.",
        {"assert similar_elements((3, 4, 5, 6),(5, 7, 4, 10)) == (4, 5)",
         "assert similar_elements((1, 2, 3, 4),(5, 4, 3, 7)) == (3, 4)",
         "assert similar_elements((11, 12, 14, 13),(17, 15, 14, 13)) == (13, 14)"}},
       "def similar_elements(test_tup1, test_tup2):\r\n"
       "  res = tuple(set(test_tup1) & set(test_tup2))\r\n"
       "  return (res) "},
      {{"Write a python function to identify non-prime numbers.",
        {"assert is_not_prime(2) == False", "assert is_not_prime(10) == True",
         "assert is_not_prime(35) == True"}},
       "import math\r\n"
       "def is_not_prime(n):\r\n"
       "    result = False\r\n"
       "    for i in range(2,int(math.sqrt(n)) + 1):\r\n"
       "        if n % i == 0:\r\n"
       "            result = True\r\n"
       "    return result"},
      {{"Write a function to find the largest integers from a given list of numbers using heap "
        "queue algorithm.",
        {"assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],3)==[85, 75, 65] ",
         "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],2)==[85, 75] ",
         "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],5)==[85, 75, 65, 58, "
         "35]"}},
       "import heapq as hq\r\n"
       "def heap_queue_largest(nums,n):\r\n"
       "  largest_nums = hq.nlargest(n, nums)\r\n"
       "  return largest_nums"},
  }};
  return shown;
}

/// Parses MBPP+'s docstring prompt.
Question question_of_docstring(std::string_view prompt) {
  Question question;
  std::vector<std::string> lines;
  for (std::string_view rest = prompt; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.starts_with("assert ")) {
      question.tests.emplace_back(line);
    } else if (line != "\"\"\"") {
      lines.emplace_back(line);
    }
  }
  question.text = fmt::format("{}", fmt::join(lines, "\n"));
  return question;
}

std::string without_returns_and_tabs(std::string_view code) {
  std::string out;
  for (const char c : code) {
    if (c == '\t') {
      out += "    ";
    } else if (c != '\r') {
      out += c;
    }
  }
  return out;
}

std::string evalchemy_problem(const Question& question) {
  return fmt::format(">>> Problem:\n{}\n>>> Test Cases:\n{}\n", stripped(question.text),
                     fmt::join(question.tests, "\n"));
}

std::string evalchemy_prompt(const Question& question) {
  std::string shown;
  for (std::size_t i = 0; i < examples().size(); ++i) {
    const Example& example = examples()[i];
    shown += fmt::format("{}- Example {}:\n{}\n>>> Code:\n```python\n{}\n```", i == 0 ? "" : "\n\n",
                         i + 1, evalchemy_problem(example.question),
                         without_returns_and_tabs(example.code));
  }
  return fmt::format(
      "Please refer the given examples and generate a python function for my problem.\n"
      "Examples are listed as follows:\n{}\n\nHere is my problem:\n{}",
      shown, evalchemy_problem(question));
}

std::string lm_eval_problem(const Question& question) {
  return fmt::format(
      "You are an expert Python programmer, and here is your task: {} Your code should pass these "
      "tests:\n\n{}\n[BEGIN]\n",
      question.text, fmt::join(question.tests, "\n"));
}

std::string lm_eval_prompt(const Question& question) {
  std::string prompt;
  for (const Example& example : examples()) {
    prompt += lm_eval_problem(example.question) + example.code + "\n[DONE]\n\n";
  }
  return prompt + lm_eval_problem(question);
}

std::string docstring(const Question& question) {
  return fmt::format("\"\"\"\n{}\n{}\n\"\"\"\n", question.text,
                     question.tests.empty() ? "" : question.tests.front());
}

std::string answered_code(std::string_view completion) {
  const auto blocks = code_blocks(completion);
  for (const CodeBlock& block : blocks) {
    if (is_python(block)) {
      return block.text;
    }
  }
  for (const CodeBlock& block : blocks) {
    if (block.tag.empty()) {
      return block.text;
    }
  }
  return std::string(completion);
}

int problem_number(const TaskRecord& record) {
  const std::string& text = record.fields.at("task_id");
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw DataError(fmt::format("{}: its task_id {} is not a problem number", record.id, text));
  }
  return number;
}

}  // namespace

MbppTask::MbppTask(Variant variant, const TaskOptions& options)
    : variant_(variant),
      style_(parse_code_style(name(), options.prompt_style)),
      plus_(EvalPlusSuite::mbpp,
            variant == Variant::plus_0_1 ? EvalPlusRules::v0_2_1 : EvalPlusRules::v0_3_1) {}

bool MbppTask::is_plus() const {
  return variant_ == Variant::plus || variant_ == Variant::plus_0_1;
}

std::string MbppTask::name() const {
  switch (variant_) {
    case Variant::full:
      return "mbpp";
    case Variant::sanitized:
      return "mbpp_sanitized";
    case Variant::plus:
      return "mbpp_plus";
    case Variant::plus_0_1:
      return "mbpp_plus@0.1.0";
  }
  throw InternalError("unknown variant of MBPP");
}

std::string MbppTask::version() const {
  const bool sanitized = style_ == CodeStyle::evalplus;
  const char* check = style_ == CodeStyle::lm_eval ? "asserts-3s" : "asserts-10s";
  return fmt::format("{}/{}/{}/{}", name(), to_string(style_),
                     sanitized ? kEvalPlusSanitizer : "extract-3",
                     is_plus() ? plus_.version() : check);
}

std::vector<TaskRecord> MbppTask::load_all(const std::filesystem::path& data) const {
  const auto load_from = [&](const std::string& file, const std::vector<CodeField>& fields) {
    return load_code_records(data, name(),
                             {"mbpp/" + file, "mbpp/" + file + ".gz", file, file + ".gz"}, fields);
  };
  switch (variant_) {
    case Variant::full:
      return load_from("mbpp.jsonl", {{"task_id", JsonNode::Kind::number},
                                      {"text"},
                                      {"code"},
                                      {"test_setup_code"},
                                      {"test_list", JsonNode::Kind::array}});
    case Variant::sanitized:
      return load_from("sanitized-mbpp.json", {{"task_id", JsonNode::Kind::number},
                                               {"prompt"},
                                               {"code"},
                                               {"test_imports", JsonNode::Kind::array},
                                               {"test_list", JsonNode::Kind::array}});
    case Variant::plus:
    case Variant::plus_0_1:
      break;
  }
  return load_from(variant_ == Variant::plus ? "MbppPlus.jsonl" : "MbppPlus-v0.1.0.jsonl",
                   {{"task_id"},
                    {"prompt"},
                    {"entry_point"},
                    {"canonical_solution"},
                    {"base_input", JsonNode::Kind::array},
                    {"plus_input", JsonNode::Kind::array},
                    {"atol", JsonNode::Kind::number}});
}

std::vector<TaskRecord> MbppTask::load(const std::filesystem::path& data) const {
  std::vector<TaskRecord> records = load_all(data);
  if (!is_plus()) {
    std::erase_if(records, [](const TaskRecord& record) {
      const int number = problem_number(record);
      return number < kFirstTestProblem || number > kLastTestProblem;
    });
  }
  for (TaskRecord& record : records) {  // Ids use the published numbers.
    const std::string& id = record.fields.at("task_id");
    record.id = fmt::format("{}/{}", name(), id.substr(id.rfind('/') + 1));
  }
  if (records.empty()) {
    throw DataError(fmt::format("{}: holds no test problem (numbers {} to {}) for task '{}'",
                                data.string(), kFirstTestProblem, kLastTestProblem, name()));
  }
  return records;
}

TaskPrompt MbppTask::prompt(const TaskRecord& record) const {
  const Question question =
      is_plus() ? question_of_docstring(record.fields.at("prompt"))
                : Question{record.fields.at(variant_ == Variant::full ? "text" : "prompt"),
                           text_list(record, "test_list")};
  switch (style_) {
    case CodeStyle::evalchemy:
      return {.messages = {{"user", evalchemy_prompt(question)}}};
    case CodeStyle::lm_eval:
      return {.messages = {}, .prefix = lm_eval_prompt(question)};
    case CodeStyle::evalplus:
      return evalplus_prompt(docstring(question));
  }
  throw InternalError("unknown prompt style");
}

std::int64_t MbppTask::default_max_new_tokens() const {
  switch (style_) {
    case CodeStyle::evalchemy:
      return is_plus() ? 1024 : 512;
    case CodeStyle::lm_eval:
      return 256;
    case CodeStyle::evalplus:
      return 768;
  }
  throw InternalError("unknown prompt style");
}

std::vector<std::string> MbppTask::stop_texts() const {
  switch (style_) {
    case CodeStyle::evalchemy:
      return {};
    case CodeStyle::lm_eval:
      return {"[DONE]"};
    case CodeStyle::evalplus:
      return evalplus_stops();
  }
  throw InternalError("unknown prompt style");
}

std::optional<std::string> MbppTask::extract(std::string_view completion,
                                             const TaskRecord& /*record*/) const {
  if (style_ == CodeStyle::evalplus) {
    std::string text = evalplus_completion(completion);
    return is_blank(text) ? std::nullopt : std::optional(std::move(text));
  }
  completion = cut_at(completion, stop_texts());
  std::string code = style_ == CodeStyle::evalchemy ? answered_code(behind_thoughts(completion))
                                                    : std::string(completion);
  return is_blank(code) ? std::nullopt : std::optional(std::move(code));
}

Verdict MbppTask::grade(const std::optional<std::string>& answer, const TaskRecord& record,
                        CodeRunner* runner) const {
  if (!answer) {
    return no_program(is_plus());
  }
  expect(runner != nullptr, "a task that runs code was given a runner");
  if (style_ != CodeStyle::evalplus) {
    return grade_program(*answer, record, *runner);
  }
  const auto entry_point = record.fields.find("entry_point");
  const SanitizedProgram sanitized = evalplus_sanitize(
      *answer,
      entry_point == record.fields.end() ? std::nullopt : std::optional(entry_point->second),
      *runner);
  if (sanitized.status != CodeRunStatus::completed) {
    return not_sanitized(sanitized, *answer, is_plus());
  }
  return grade_program(sanitized.program, record, *runner);
}

Verdict MbppTask::grade_program(const std::string& program, const TaskRecord& record,
                                CodeRunner& runner) const {
  if (is_plus()) {
    return plus_.grade(program, record, runner);
  }
  const bool lm_eval = style_ == CodeStyle::lm_eval;
  std::string check;
  if (variant_ == Variant::sanitized) {
    check = fmt::format("{}\n", fmt::join(text_list(record, "test_imports"), "\n"));
  } else if (!lm_eval) {
    check = record.fields.at("test_setup_code") + "\n";
  }
  check += fmt::format("{}\n", fmt::join(text_list(record, "test_list"), "\n"));
  return run_checked(program, check, lm_eval ? kLmEvalCheckSeconds : kMbppSeconds, program, runner);
}

}  // namespace jforge
