#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "data/tasks/math/answer_number.h"
#include "data/tasks/math/math_answer.h"
#include "data/tasks/python_random.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr std::string_view kBoxedRequest =
    "\nPlease reason step by step, and put your final answer within \\boxed{}.";
constexpr std::uint32_t kExamples = 5;
constexpr std::uint32_t kExamplesSeed = 1234;  ///< lm-eval's.
/// Added by load(): the examples as prompt text.
constexpr const char* kExamplesField = "examples";

/// Returns the text after a mark, without blanks and a dollar sign.
std::string_view behind_mark(std::string_view text, std::size_t mark) {
  std::string_view behind = text.substr(mark + kAnswerMark.size());
  behind.remove_prefix(std::min(behind.find_first_not_of(" \t"), behind.size()));
  behind.remove_prefix(behind.starts_with("\\$") ? 1 : 0);
  return behind;
}

/// Cuts after the first line of only a mark and a number, after which models may invent further
/// questions.
std::string_view without_invented(std::string_view text) {
  for (std::size_t mark = text.find(kAnswerMark); mark != std::string_view::npos;
       mark = text.find(kAnswerMark, mark + 1)) {
    const std::string_view behind = behind_mark(text, mark);
    const std::string_view line = behind.substr(0, behind.find('\n'));
    if ((mark == 0 || text[mark - 1] == '\n') && leading_number(line) &&
        line.find_first_not_of("-$\\0123456789., \t\r") == std::string_view::npos) {
      return text.substr(0, text.size() - behind.size() + line.size());
    }
  }
  return text;
}

/// Returns the number after the last mark that has one; other marks are headings.
std::optional<std::string> marked_number(std::string_view text) {
  std::optional<std::string> last;
  for (std::size_t mark = text.find(kAnswerMark); mark != std::string_view::npos;
       mark = text.find(kAnswerMark, mark + 1)) {
    if (auto number = leading_number(behind_mark(text, mark))) {
      last = std::move(number);
    }
  }
  return last;
}

/// Returns the first "#### (\-?[0-9\.\,]+)".
std::optional<std::string> strict_match(std::string_view text) {
  constexpr std::string_view kStrictMark = "#### ";
  for (std::size_t mark = text.find(kStrictMark); mark != std::string_view::npos;
       mark = text.find(kStrictMark, mark + 1)) {
    const std::size_t begin = mark + kStrictMark.size();
    const std::size_t digits = begin + (text.substr(begin).starts_with('-') ? 1 : 0);
    const std::size_t end = std::min(text.find_first_not_of("0123456789.,", digits), text.size());
    if (end > digits) {
      return std::string(text.substr(begin, end - begin));
    }
  }
  return std::nullopt;
}

/// Returns the last "(-?[$0-9.,]{2,})|(-?[0-9]+)".
std::optional<std::string> flexible_match(std::string_view text) {
  std::optional<std::string> last;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t sign = text[at] == '-' ? 1 : 0;
    const std::size_t begin = at + sign;
    const std::size_t run =
        std::min(text.find_first_not_of("$0123456789.,", begin), text.size()) - begin;
    const bool digit = run == 1 && text[begin] >= '0' && text[begin] <= '9';
    if (run >= 2 || digit) {
      last = text.substr(at, sign + run);
      at = begin + run;
    } else {
      ++at;
    }
  }
  return last;
}

/// Drops, like lm-eval, ",", "$", everything up to the last "#### " and a final ".".
std::string harness_form(std::string_view text) {
  std::string form;
  std::copy_if(text.begin(), text.end(), std::back_inserter(form),
               [](char c) { return c != ',' && c != '$'; });
  if (const std::size_t mark = form.rfind("#### "); mark != std::string::npos) {
    form.erase(0, mark + 5);
  }
  if (form.ends_with('.')) {
    form.pop_back();
  }
  return form;
}

std::vector<TaskRecord> training_beside(const std::filesystem::path& data) {
  std::error_code ignored;
  std::filesystem::path folder = data;
  if (!std::filesystem::is_directory(data, ignored)) {
    folder = data.has_parent_path() ? data.parent_path() : std::filesystem::path(".");
  }
  std::vector<TaskRecord> training = load_task_records(
      folder, "gsm8k (examples)",
      {"gsm8k/train.jsonl", "gsm8k/train.jsonl.gz", "train.jsonl", "train.jsonl.gz"},
      {"question", "answer"});
  if (training.size() < kExamples) {
    throw DataError(
        fmt::format("{}: gsm8k's training file has {} records; prompt style lm-eval "
                    "takes {} examples from it",
                    folder.string(), training.size(), kExamples));
  }
  return training;
}

std::string without_gold(const TaskRecord& record) {
  return fmt::format("{}: its answer has no number after '####'", record.id);
}

/// Reads test.jsonl(.gz) with or without the folder `task`, or a file of that form. Throws
/// DataError naming file and record if an answer has no number after "####".
std::vector<TaskRecord> load_with_golds(const std::filesystem::path& data,
                                        const std::string& task) {
  const std::vector<std::string> candidates{task + "/test.jsonl", task + "/test.jsonl.gz",
                                            "test.jsonl", "test.jsonl.gz"};
  std::vector<TaskRecord> records =
      load_task_records(data, task, candidates, {"question", "answer"});
  for (const TaskRecord& record : records) {
    if (!marked_number(record.fields.at("answer"))) {
      throw DataError(
          fmt::format("{}: {}", task_file(data, task, candidates).string(), without_gold(record)));
    }
  }
  return records;
}

/// Grade-school mathematics (Cobbe et al., "Training verifiers to solve math word problems", 2021):
/// records {question, answer}, the gold number after "#### " in the answer.
///
/// Prompt styles:
///  - "plain": the question alone as the user turn.
///  - "cot_boxed" (default): adds a request for steps and a boxed answer.
///  - "lm-eval" and "lm-eval-flexible": raw text "Question: {q}\nAnswer:" after five such examples,
///    drawn per question from gsm8k/train.jsonl(.gz) beside the test file as in lm-eval (seed 1234,
///    in file order); ended by "Question:", "</s>" or "<|im_end|>".
///
/// Rules extract-4 (plain) and extract-5 (cot_boxed) ignore the text after the first "#### N" line.
/// plain takes the last number right after "####", else that of the last \boxed{…}
/// (boxed_number()), else the completion's last number, or the last one after an unevaluated box;
/// cot_boxed takes the box first. Numbers compare exactly (12.0 = 12, $1,200 = 1200).
///
/// Rules strict-match (lm-eval), the first "#### (\-?[0-9\.\,]+)", and flexible-extract
/// (lm-eval-flexible), the last "(-?[$0-9.,]{2,})|(-?[0-9]+)", compare text without ",", "$" and a
/// final ".", as lm-eval (12.0 is not 12).
class Gsm8kTask : public Task {
 public:
  /// Throws ConfigError naming the styles if `options.prompt_style` is unknown or an old name.
  explicit Gsm8kTask(const TaskOptions& options) {
    static const std::array<std::pair<std::string_view, Style>, 5> styles{{
        {"", Style::cot_boxed},
        {"plain", Style::plain},
        {"cot_boxed", Style::cot_boxed},
        {"lm-eval", Style::lm_eval_strict},
        {"lm-eval-flexible", Style::lm_eval_flexible},
    }};
    if (options.prompt_style == "evalchemy") {
      throw ConfigError(
          "task gsm8k: prompt style 'evalchemy' is now called 'cot_boxed' (evalchemy has no gsm8k "
          "of its own)");
    }
    const auto found = std::find_if(styles.begin(), styles.end(), [&](const auto& style) {
      return style.first == options.prompt_style;
    });
    if (found == styles.end()) {
      throw ConfigError(
          fmt::format("task gsm8k: unknown prompt style '{}': known are cot_boxed, plain, lm-eval, "
                      "lm-eval-flexible",
                      options.prompt_style));
    }
    style_ = found->second;
  }

  [[nodiscard]] std::string version() const override {
    switch (style_) {
      case Style::plain:
        return "gsm8k/plain/extract-4";
      case Style::cot_boxed:
        return "gsm8k/cot_boxed/extract-5";
      case Style::lm_eval_strict:
        return "gsm8k/lm-eval-5-shot-seed-1234/strict-match";
      case Style::lm_eval_flexible:
        return "gsm8k/lm-eval-5-shot-seed-1234/flexible-extract";
    }
    throw InternalError("unknown prompt style");
  }

  /// Throws as load_with_golds(), and DataError if a style with examples finds no five.
  [[nodiscard]] std::vector<TaskRecord> load(const std::filesystem::path& data) const override {
    std::vector<TaskRecord> records = load_with_golds(data, name());
    if (has_examples()) {
      const std::vector<TaskRecord> training = training_beside(data);
      PythonRandom random(kExamplesSeed);
      for (TaskRecord& record : records) {
        std::string examples;
        for (const std::size_t i :
             random.sample(static_cast<std::uint32_t>(training.size()), kExamples)) {
          examples += fmt::format("Question: {}\nAnswer: {}\n\n", training[i].fields.at("question"),
                                  training[i].fields.at("answer"));
        }
        record.fields.emplace(kExamplesField, std::move(examples));
      }
    }
    return records;
  }

  [[nodiscard]] TaskPrompt prompt(const TaskRecord& record) const override {
    std::string text = record.fields.at("question");
    if (has_examples()) {
      return {.messages = {},
              .prefix = record.fields.at(kExamplesField) + "Question: " + text + "\nAnswer:"};
    }
    if (style_ == Style::cot_boxed) {
      text += kBoxedRequest;
    }
    return {.messages = {{"user", std::move(text)}}};
  }

  /// Returns 512; 256 with examples, as lm-eval.
  [[nodiscard]] std::int64_t default_max_new_tokens() const override {
    return has_examples() ? 256 : 512;
  }

  [[nodiscard]] std::vector<std::string> stop_texts() const override {
    return has_examples() ? std::vector<std::string>{"Question:", "</s>", "<|im_end|>"}
                          : std::vector<std::string>{};
  }

  [[nodiscard]] std::optional<std::string> extract(std::string_view completion,
                                                   const TaskRecord& /*record*/) const override {
    if (has_examples()) {
      return style_ == Style::lm_eval_strict ? strict_match(completion)
                                             : flexible_match(completion);
    }
    completion = without_invented(completion);
    const auto box = last_boxed(completion);
    auto boxed = box ? boxed_number(*box) : std::nullopt;
    auto marked = marked_number(completion);
    auto& first = style_ == Style::cot_boxed ? boxed : marked;  // The requested form comes first.
    auto& second = style_ == Style::cot_boxed ? marked : boxed;
    if (first || second) {
      return first ? std::move(first) : std::move(second);
    }
    // An unevaluated box's numbers are not answers.
    if (box && is_unevaluated(*box)) {
      completion.remove_prefix(
          static_cast<std::size_t>(box->data() + box->size() - completion.data()));
    }
    return last_number(plain_latex(completion));
  }

  /// Takes a number, or an explanation that ends with "#### NUMBER".
  [[nodiscard]] std::optional<TaskRecord> reference_record(
      std::string_view reference) const override {
    const bool marked = reference.find(kAnswerMark) != std::string_view::npos;
    return TaskRecord{"reference", {{"answer", (marked ? "" : "#### ") + std::string(reference)}}};
  }

  [[nodiscard]] Verdict grade(const std::optional<std::string>& answer, const TaskRecord& record,
                              CodeRunner* /*runner*/) const override {
    const auto gold = marked_number(record.fields.at("answer"));
    if (!gold) {
      throw DataError(without_gold(record));
    }
    if (!answer) {
      return {VerdictStatus::fail, "no number in the completion", std::nullopt};
    }
    if (has_examples()) {
      const std::string form = harness_form(*answer);
      const bool same = form == harness_form(record.fields.at("answer"));
      return same
                 ? Verdict{VerdictStatus::pass, "", form}
                 : Verdict{VerdictStatus::fail, fmt::format("{} instead of {}", form, *gold), form};
    }
    const auto number = canonical_number(*answer);
    if (number && *number == *gold) {
      return {VerdictStatus::pass, "", number};
    }
    return {VerdictStatus::fail, fmt::format("{} instead of {}", *answer, *gold), answer};
  }

  [[nodiscard]] std::string name() const override { return "gsm8k"; }

 private:
  enum class Style : std::uint8_t { plain, cot_boxed, lm_eval_strict, lm_eval_flexible };

  [[nodiscard]] bool has_examples() const { return style_ >= Style::lm_eval_strict; }

  Style style_ = Style::plain;
};

/// The ledgers of launch/quickstart/make_ledger.py: {question, answer}, the gold number after
/// "#### ". They come from a few dozen templates, so scores do not compare with published ones. The
/// only prompt style is "plain"; extraction and comparison are Gsm8kTask's for plain.
class LedgerTask final : public Gsm8kTask {
 public:
  /// Throws ConfigError naming the style if `options.prompt_style` is unknown.
  explicit LedgerTask(const TaskOptions& options)
      : Gsm8kTask(TaskOptions{.prompt_style = "plain"}) {
    if (!options.prompt_style.empty() && options.prompt_style != "plain") {
      throw ConfigError(fmt::format(
          "task ledger: unknown prompt style '{}': the only one is plain (the question alone)",
          options.prompt_style));
    }
  }

  [[nodiscard]] std::string name() const override { return "ledger"; }

  /// Returns for example "ledger/number/extract-4"; the rule is Gsm8kTask's.
  [[nodiscard]] std::string version() const override {
    const std::string rule = Gsm8kTask::version();
    return "ledger/number" + rule.substr(rule.rfind('/'));
  }
};

}  // namespace

std::unique_ptr<Task> make_gsm8k(const TaskOptions& options) {
  return std::make_unique<Gsm8kTask>(options);
}

std::unique_ptr<Task> make_ledger(const TaskOptions& options) {
  return std::make_unique<LedgerTask>(options);
}

}  // namespace jforge
