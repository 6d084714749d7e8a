#include "data/tasks/math/math_task.h"

#include <fmt/format.h>

#include "data/tasks/math/answer_number.h"
#include "data/tasks/math/math_string_rules.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr std::string_view kBoxedSystem =
    "Please reason step by step, and put your final answer within \\boxed{}.";

constexpr std::size_t kQuoted = 80;  ///< Maximum bytes of an answer quoted in a reason.

/// The examples of style 4-shot, written for this program.
constexpr std::string_view kShots =
    R"(Problem:
The sum of two numbers is $20$ and their difference is $4$. What is their product?

Solution:
Let the numbers be $a$ and $b$ with $a + b = 20$ and $a - b = 4$. Adding the equations gives $2a = 24$, so $a = 12$ and $b = 8$. Their product is $12 \cdot 8 = \boxed{96}$.
Final Answer: The final answer is $96$. I hope it is correct.

Problem:
Simplify $\sqrt{75} - \sqrt{12}$.

Solution:
We have $\sqrt{75} = 5\sqrt{3}$ and $\sqrt{12} = 2\sqrt{3}$. Their difference is $\boxed{3\sqrt{3}}$.
Final Answer: The final answer is $3\sqrt{3}$. I hope it is correct.

Problem:
A bag holds $3$ red and $5$ blue marbles. Two marbles are drawn without replacement. What is the probability that both are red?

Solution:
The first marble is red with probability $\frac{3}{8}$. Then $2$ of the $7$ marbles left are red, so the second is red with probability $\frac{2}{7}$. The probability of both is $\frac{3}{8} \cdot \frac{2}{7} = \boxed{\frac{3}{28}}$.
Final Answer: The final answer is $\frac{3}{28}$. I hope it is correct.

Problem:
Find all real $x$ with $x^2 - x - 6 \le 0$. Express your answer in interval notation.

Solution:
The polynomial factors as $(x - 3)(x + 2)$. It is not positive exactly between its roots, so the solutions are $\boxed{[-2,3]}$.
Final Answer: The final answer is $[-2,3]$. I hope it is correct.

)";

std::string shortened(std::string_view answer) {
  std::string line(answer.substr(0, kQuoted));
  for (char& c : line) {
    c = c == '\n' || c == '\r' ? ' ' : c;
  }
  return answer.size() > kQuoted ? line + "..." : line;
}

}  // namespace

MathTask::MathTask(Problems problems, const TaskOptions& options) : problems_(problems) {
  const std::string& style = options.prompt_style;
  if (style == "qwen") {
    style_ = Style::qwen;
  } else if (style == "4-shot") {
    style_ = Style::own_shots;
  } else if (style == "lm-eval") {
    throw ConfigError(
        fmt::format("task {}: prompt style 'lm-eval' is now called '4-shot' (its examples are not "
                    "lm-eval's)",
                    MathTask::name()));
  } else if (!style.empty() && style != "evalchemy") {
    throw ConfigError(
        fmt::format("task {}: unknown prompt style '{}': known are evalchemy, qwen, 4-shot",
                    MathTask::name(), style));
  }
}

std::string MathTask::name() const { return problems_ == Problems::all ? "math" : "math500"; }

std::string MathTask::version() const {
  const char* style = style_ == Style::evalchemy ? "evalchemy"
                      : style_ == Style::qwen    ? "qwen"
                                                 : "4-shot-own-shots-1";
  return fmt::format("{}/{}/answer-2/equal-4", name(), style);
}

std::vector<TaskRecord> MathTask::load(const std::filesystem::path& data) const {
  const std::string file = problems_ == Problems::all ? "test.jsonl" : "math500.jsonl";
  std::vector<TaskRecord> records = load_task_records(
      data, name(), {"math/" + file, "math/" + file + ".gz", file, file + ".gz"},
      problems_ == Problems::all ? std::vector<std::string>{"problem", "level", "type", "solution"}
                                 : std::vector<std::string>{"problem", "answer"});
  for (const TaskRecord& record : records) {
    static_cast<void>(gold_answer(record));
  }
  return records;
}

TaskPrompt MathTask::prompt(const TaskRecord& record) const {
  const std::string& problem = record.fields.at("problem");
  switch (style_) {
    case Style::evalchemy:
      return {.messages = {
                  {"user", "Problem: " + problem + "\nMark your solution with \\boxed\nAnswer:"}}};
    case Style::qwen:
      return {.messages = {{"system", std::string(kBoxedSystem)}, {"user", problem}}};
    case Style::own_shots:
      return {.messages = {},
              .prefix = std::string(kShots) + "Problem:\n" + problem + "\n\nSolution:"};
  }
  throw InternalError("unknown prompt style");
}

std::int64_t MathTask::default_max_new_tokens() const {
  return style_ == Style::evalchemy ? 4096 : (style_ == Style::qwen ? 2048 : 1024);
}

std::vector<std::string> MathTask::stop_texts() const {
  return style_ == Style::own_shots ? std::vector<std::string>{"Problem:"}
                                    : std::vector<std::string>{};
}

std::optional<std::string> MathTask::extract(std::string_view completion,
                                             const TaskRecord& /*record*/) const {
  const auto answer = find_math_answer(
      completion, style_ == Style::own_shots ? MathAnswerForm::minerva : MathAnswerForm::boxed);
  return answer ? std::optional<std::string>(answer->text) : std::nullopt;
}

std::optional<TaskRecord> MathTask::reference_record(std::string_view reference) const {
  const auto boxed = last_boxed(reference);
  const std::string answer(boxed ? *boxed : reference);
  return TaskRecord{"reference", {{"answer", answer}, {"solution", "\\boxed{" + answer + "}"}}};
}

std::string MathTask::gold_answer(const TaskRecord& record) const {
  const auto answer = problems_ == Problems::all
                          ? last_boxed(record.fields.at("solution"))
                          : std::optional<std::string_view>(record.fields.at("answer"));
  if (!answer || answer->find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw DataError(fmt::format(
        "{}: its {}", record.id,
        problems_ == Problems::all ? "solution has no \\boxed answer" : "answer is empty"));
  }
  return std::string(*answer);
}

Verdict MathTask::grade(const std::optional<std::string>& answer, const TaskRecord& record,
                        CodeRunner* /*runner*/) const {
  const std::string gold = gold_answer(record);
  if (!answer) {
    Verdict verdict{VerdictStatus::fail, "no answer in the completion", std::nullopt};
    verdict.rules = {{"string", false}, {"minerva", false}};
    return verdict;
  }
  Verdict verdict{string_equal(gold, *answer) ? VerdictStatus::pass : VerdictStatus::fail, "",
                  answer};
  verdict.rules = {{"string", verdict.status == VerdictStatus::pass},
                   {"minerva", minerva_equal(gold, *answer)}};
  if (verdict.status == VerdictStatus::fail) {
    verdict.reason = fmt::format("{} instead of {}", shortened(*answer), shortened(gold));
  }
  return verdict;
}

}  // namespace jforge
