#include <fmt/format.h>

#include "data/tasks/math/answer_number.h"
#include "data/tasks/math/math_answer.h"
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

/// Competition mathematics (Hendrycks et al., "Measuring mathematical problem solving with the MATH
/// dataset", 2021). "math": the 5,000 test problems {problem, level, type, solution}; the gold
/// answer is the solution's last \boxed{…}. "math500": the 500 of them held out by Lightman et al.
/// ("Let's verify step by step", 2023), {problem, answer}.
///
/// Prompt styles and token limits:
///  - "evalchemy" (default): user turn "Problem: {p}\nMark your solution with \boxed\nAnswer:";
///    4,096 (evalchemy's 32,768 is most models' whole context).
///  - "qwen": system turn "Please reason step by step, and put your final answer within \boxed{}.",
///    the problem as the user turn (Qwen2.5-Math); 2,048.
///  - "4-shot": raw text "Problem:\n{p}\n\nSolution:" after four examples of our own
///    ("own-shots-1") in the Minerva form, ended by "Problem:"; 1,024. Scores do not compare with
///    lm-eval's minerva_math.
///
/// Rule answer-2: find_math_answer() with the boxed form (4-shot: Minerva form). Rules equal-4:
/// "string" (string_equal(), as evalchemy reports; decides the verdict) and "minerva"
/// (minerva_equal()). launch/scripts/math_values.py adds Math-Verify's verdict by value.
class MathTask final : public Task {
 public:
  /// Throws ConfigError naming the styles if `options.prompt_style` is unknown or an old name.
  MathTask(bool held_out, const TaskOptions& options) : held_out_(held_out) {
    const std::string& style = options.prompt_style;
    if (style == "qwen") {
      style_ = Style::qwen;
    } else if (style == "4-shot") {
      style_ = Style::own_shots;
    } else if (style == "lm-eval") {
      throw ConfigError(fmt::format(
          "task {}: prompt style 'lm-eval' is now called '4-shot' (its examples are not "
          "lm-eval's)",
          MathTask::name()));
    } else if (!style.empty() && style != "evalchemy") {
      throw ConfigError(
          fmt::format("task {}: unknown prompt style '{}': known are evalchemy, qwen, 4-shot",
                      MathTask::name(), style));
    }
  }

  [[nodiscard]] std::string name() const override { return held_out_ ? "math500" : "math"; }

  [[nodiscard]] std::string version() const override {
    const char* style = style_ == Style::evalchemy ? "evalchemy"
                        : style_ == Style::qwen    ? "qwen"
                                                   : "4-shot-own-shots-1";
    return fmt::format("{}/{}/answer-2/equal-4", name(), style);
  }

  /// Reads math/test.jsonl(.gz), math/math500.jsonl(.gz) or a file of that form.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override {
    const std::string file = held_out_ ? "math500.jsonl" : "test.jsonl";
    std::vector<TaskRecord> records = load_task_records(
        data, name(), {"math/" + file, "math/" + file + ".gz", file, file + ".gz"},
        held_out_ ? std::vector<std::string>{"problem", "answer"}
                  : std::vector<std::string>{"problem", "level", "type", "solution"});
    for (const TaskRecord& record : records) {
      static_cast<void>(gold_answer(record));
    }
    return records;
  }

  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override {
    const std::string& problem = record.fields.at("problem");
    switch (style_) {
      case Style::evalchemy:
        return {.messages = {{"user", "Problem: " + problem +
                                          "\nMark your solution with \\boxed\nAnswer:"}}};
      case Style::qwen:
        return {.messages = {{"system", std::string(kBoxedSystem)}, {"user", problem}}};
      case Style::own_shots:
        return {.messages = {},
                .prefix = std::string(kShots) + "Problem:\n" + problem + "\n\nSolution:"};
    }
    throw InternalError("unknown prompt style");
  }

  [[nodiscard]] std::int64_t default_max_new_tokens() const override {
    return style_ == Style::evalchemy ? 4096 : (style_ == Style::qwen ? 2048 : 1024);
  }

  [[nodiscard]] std::vector<std::string> stop_texts() const override {
    return style_ == Style::own_shots ? std::vector<std::string>{"Problem:"}
                                      : std::vector<std::string>{};
  }

  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& /*record*/) const override {
    const auto answer = find_math_answer(
        completion, style_ == Style::own_shots ? MathAnswerForm::minerva : MathAnswerForm::boxed);
    return answer ? std::optional<std::string>(answer->text) : std::nullopt;
  }

  /// Takes an answer, or a solution with a boxed one.
  [[nodiscard]] std::optional<TaskRecord> reference_record(
      std::string_view reference) const override {
    const auto boxed = last_boxed(reference);
    const std::string answer(boxed ? *boxed : reference);
    return TaskRecord{"reference", {{"answer", answer}, {"solution", "\\boxed{" + answer + "}"}}};
  }

  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* /*runner*/) const override {
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

 private:
  /// Throws DataError if there is none.
  [[nodiscard]] std::string gold_answer(const TaskRecord& record) const {
    const auto answer = held_out_ ? std::optional<std::string_view>(record.fields.at("answer"))
                                  : last_boxed(record.fields.at("solution"));
    if (!answer || answer->find_first_not_of(" \t\r\n") == std::string_view::npos) {
      throw DataError(
          fmt::format("{}: its {}", record.id,
                      held_out_ ? "answer is empty" : "solution has no \\boxed answer"));
    }
    return std::string(*answer);
  }

  enum class Style : std::uint8_t { evalchemy, qwen, own_shots };

  bool held_out_;
  Style style_ = Style::evalchemy;
};

}  // namespace

std::unique_ptr<Task> make_math(bool held_out, const TaskOptions& options) {
  return std::make_unique<MathTask>(held_out, options);
}

}  // namespace jforge
