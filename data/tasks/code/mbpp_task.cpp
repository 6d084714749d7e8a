#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/evalplus_grader.h"
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

std::string set_name(MbppSet set) {
  switch (set) {
    case MbppSet::full:
      return "mbpp";
    case MbppSet::sanitized:
      return "mbpp_sanitized";
    case MbppSet::plus:
      return "mbpp_plus";
    case MbppSet::plus_0_1:
      return "mbpp_plus@0.1.0";
  }
  throw InternalError("unknown set of MBPP");
}

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
  /// Throws ConfigError naming the styles if `options.prompt_style` is unknown.
  MbppTask(MbppSet set, const TaskOptions& options)
      : set_(set),
        style_(parse_code_style(name(), options.prompt_style)),
        plus_(EvalPlusSuite::mbpp,
              set == MbppSet::plus_0_1 ? EvalPlusRules::v0_2_1 : EvalPlusRules::v0_3_1) {}

  [[nodiscard]] std::string name() const override { return set_name(set_); }

  [[nodiscard]] std::string version() const override {
    const bool sanitized = style_ == CodeStyle::evalplus;
    const char* check = style_ == CodeStyle::lm_eval ? "asserts-3s" : "asserts-10s";
    return fmt::format("{}/{}/{}/{}", name(), to_string(style_),
                       sanitized ? kEvalPlusSanitizer : "extract-3",
                       is_plus() ? plus_.version() : check);
  }

  /// Reads the test problems of mbpp.jsonl, sanitized-mbpp.json, MbppPlus.jsonl or
  /// MbppPlus-v0.1.0.jsonl (also .gz), with or without the folder mbpp, or of a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override {
    std::vector<TaskRecord> records = load_all_mbpp(set_, data);
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

  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override {
    const Question question =
        is_plus() ? question_of_docstring(record.fields.at("prompt"))
                  : Question{record.fields.at(set_ == MbppSet::full ? "text" : "prompt"),
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

  [[nodiscard]] std::int64_t default_max_new_tokens() const override {
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

  [[nodiscard]] std::vector<std::string> stop_texts() const override {
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

  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& /*record*/) const override {
    if (style_ == CodeStyle::evalplus) {
      std::string text = evalplus_completion(completion);
      return is_blank(text) ? std::nullopt : std::optional(std::move(text));
    }
    completion = cut_at(completion, stop_texts());
    std::string code = style_ == CodeStyle::evalchemy ? answered_code(behind_thoughts(completion))
                                                      : std::string(completion);
    return is_blank(code) ? std::nullopt : std::optional(std::move(code));
  }

  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* runner) const override {
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

  [[nodiscard]] bool runs_code() const override { return true; }

 private:
  [[nodiscard]] bool is_plus() const { return set_ == MbppSet::plus || set_ == MbppSet::plus_0_1; }

  [[nodiscard]] Verdict grade_program(const std::string& program, const TaskRecord& record,
                                      CodeRunner& runner) const {
    if (is_plus()) {
      return plus_.grade(program, record, runner);
    }
    const bool lm_eval = style_ == CodeStyle::lm_eval;
    std::string check;
    if (set_ == MbppSet::sanitized) {
      check = fmt::format("{}\n", fmt::join(text_list(record, "test_imports"), "\n"));
    } else if (!lm_eval) {
      check = record.fields.at("test_setup_code") + "\n";
    }
    check += fmt::format("{}\n", fmt::join(text_list(record, "test_list"), "\n"));
    return run_checked(program, check, lm_eval ? kLmEvalCheckSeconds : kMbppSeconds, program,
                       runner);
  }

  MbppSet set_;
  CodeStyle style_;
  EvalPlusGrader plus_;
};

}  // namespace

std::vector<TaskRecord> load_all_mbpp(MbppSet set, const std::filesystem::path& data) {
  constexpr JsonNode::Kind kNumber = JsonNode::Kind::number;
  constexpr JsonNode::Kind kArray = JsonNode::Kind::array;
  const auto load_from = [&](const std::string& file, const std::vector<CodeField>& fields) {
    return load_code_records(data, set_name(set),
                             {"mbpp/" + file, "mbpp/" + file + ".gz", file, file + ".gz"}, fields);
  };
  if (set == MbppSet::full) {
    return load_from(
        "mbpp.jsonl",
        {{"task_id", kNumber}, {"text"}, {"code"}, {"test_setup_code"}, {"test_list", kArray}});
  }
  if (set == MbppSet::sanitized) {
    return load_from("sanitized-mbpp.json", {{"task_id", kNumber},
                                             {"prompt"},
                                             {"code"},
                                             {"test_imports", kArray},
                                             {"test_list", kArray}});
  }
  return load_from(set == MbppSet::plus ? "MbppPlus.jsonl" : "MbppPlus-v0.1.0.jsonl",
                   {{"task_id"},
                    {"prompt"},
                    {"entry_point"},
                    {"canonical_solution"},
                    {"base_input", kArray},
                    {"plus_input", kArray},
                    {"atol", kNumber}});
}

std::unique_ptr<Task> make_mbpp(MbppSet set, const TaskOptions& options) {
  return std::make_unique<MbppTask>(set, options);
}

}  // namespace jforge
