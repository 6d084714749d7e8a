#include "data/tasks/math/math_answer.h"

#include <algorithm>

#include "data/tasks/math/answer_number.h"

namespace jforge {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

std::optional<std::string_view> minerva_answer(std::string_view text) {
  constexpr std::string_view kBegin = "The final answer is";
  constexpr std::string_view kEnd = "I hope it is correct";
  const std::size_t at = text.find(kBegin);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view line = first_line(text.substr(at + kBegin.size()));
  return line.substr(0, line.find(kEnd));
}

/// Ignores case.
std::optional<std::size_t> behind_answer_is(std::string_view text) {
  constexpr std::string_view kPhrase = "answer is";
  const auto same = [](char a, char b) { return lower(a) == b; };
  const auto found = std::find_end(text.begin(), text.end(), kPhrase.begin(), kPhrase.end(), same);
  return found == text.end() ? std::nullopt
                             : std::optional<std::size_t>(
                                   static_cast<std::size_t>(found - text.begin()) + kPhrase.size());
}

std::optional<std::string_view> stated_answer(std::string_view text) {
  const auto begin = behind_answer_is(text);
  if (!begin) {
    return std::nullopt;
  }
  const std::string_view line = first_line(text.substr(*begin));
  return line.substr(0, line.find(". "));
}

std::optional<std::string_view> marked_answer(std::string_view text) {
  const std::size_t at = text.rfind(kAnswerMark);
  return at == std::string_view::npos
             ? std::nullopt
             : std::optional<std::string_view>(first_line(text.substr(at + kAnswerMark.size())));
}

/// Removes surrounding blanks, "$", "*" (bold), ":" and full stops.
std::string_view trimmed_answer(std::string_view text) {
  const auto strips = [](char c) { return is_space(c) || c == '$' || c == '*' || c == ':'; };
  while (!text.empty() && strips(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (strips(text.back()) || text.back() == '.')) {
    text.remove_suffix(text.ends_with("\\$") ? 2 : 1);
  }
  return text;
}

}  // namespace

std::optional<MathAnswer> find_math_answer(std::string_view completion, MathAnswerForm form) {
  const auto found = [](std::optional<std::string_view> text,
                        std::string_view rule) -> std::optional<MathAnswer> {
    if (!text) {
      return std::nullopt;
    }
    // A stated answer may itself be boxed: "The answer is $2 + 3 = \\boxed{5}$".
    const auto box = rule == "boxed" ? text : last_boxed(*text);
    const std::string_view answer = box ? *box : trimmed_answer(*text);
    return trimmed_answer(answer).empty() ? std::nullopt
                                          : std::optional<MathAnswer>({std::string(answer), rule});
  };
  auto minerva = found(minerva_answer(completion), "minerva");
  if (form == MathAnswerForm::minerva && minerva) {
    return minerva;
  }
  if (auto boxed = found(last_boxed(completion), "boxed")) {
    return boxed;
  }
  if (minerva) {
    return minerva;
  }
  if (auto stated = found(stated_answer(completion), "answer-is")) {
    return stated;
  }
  return found(marked_answer(completion), "marked");
}

}  // namespace jforge
