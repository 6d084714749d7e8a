#include "data/tasks/math/math_answer.h"

#include <algorithm>

#include "data/tasks/math/answer_number.h"
#include "data/tasks/math/math_units.h"

namespace jforge {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Without blanks, "$", "*" (bold), ":" and full stops around it.
std::string_view trimmed(std::string_view text) {
  const auto strips = [](char c) { return is_space(c) || c == '$' || c == '*' || c == ':'; };
  while (!text.empty() && strips(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (strips(text.back()) || text.back() == '.')) {
    text.remove_suffix(text.ends_with("\\$") ? 2 : 1);
  }
  return text;
}

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

/// Position behind the last "answer is", whatever its case.
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
  constexpr std::string_view kMark = "####";
  const std::size_t at = text.rfind(kMark);
  return at == std::string_view::npos
             ? std::nullopt
             : std::optional<std::string_view>(first_line(text.substr(at + kMark.size())));
}

/// Drops blanks, except between digits.
std::string without_blanks(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_space(text[i])) {
      result += text[i];
      continue;
    }
    const std::size_t next = text.find_first_not_of(" \t\r\n", i);
    if (!result.empty() && is_digit(result.back()) && next != std::string_view::npos &&
        is_digit(text[next])) {
      result += ' ';
    }
    i = next == std::string_view::npos ? text.size() : next - 1;
  }
  return result;
}

/// "\frac12" to "\frac{1}{2}", "\sqrt3" to "\sqrt{3}": `arguments` behind each `command`.
std::string with_braces(std::string_view text, std::string_view command, int arguments) {
  std::string result;
  while (!text.empty()) {
    if (!text.starts_with(command)) {
      result += text.front();
      text.remove_prefix(1);
      continue;
    }
    result += command;
    text.remove_prefix(command.size());
    for (int i = 0; i < arguments && !text.empty() && text.front() != '{' && text.front() != '\\' &&
                    text.front() != '[' && text.front() != '(';
         ++i) {
      result += '{';
      result += text.front();
      result += '}';
      text.remove_prefix(1);
    }
  }
  return result;
}

/// "3/4" to "\frac{3}{4}" when that is all.
std::string with_fraction(std::string text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) {
    return text;
  }
  const auto is_integer = [](std::string_view part) {
    part.remove_prefix(part.starts_with('-') ? 1 : 0);
    return !part.empty() && std::all_of(part.begin(), part.end(), is_digit) &&
           (part.size() == 1 || part[0] != '0');
  };
  const std::string above = text.substr(0, slash);
  const std::string below = text.substr(slash + 1);
  return is_integer(above) && is_integer(below) ? "\\frac{" + above + "}{" + below + "}" : text;
}

/// Whether `text`, from "\\text{ " on, is a unit: it ends there, but for a power, and is no number
/// word ("million") or conjunction.
bool is_unit_tail(std::string_view text) {
  const std::size_t close = text.find('}');
  if (close == std::string_view::npos) {
    return false;
  }
  const std::string behind = without_blanks(text.substr(close + 1));
  if (!behind.empty() && behind != "^2" && behind != "^3" && behind != "^{2}" && behind != "^{3}" &&
      behind != ".") {
    return false;
  }
  std::string_view words = text.substr(0, close);
  words.remove_prefix(std::min(words.find(' '), words.size()));
  while (!words.empty()) {
    const auto end = static_cast<std::size_t>(
        std::find_if_not(words.begin(), words.end(), is_letter) - words.begin());
    const std::string_view word = words.substr(0, end);
    if (changes_number(word) || word == "and" || word == "or") {
      return false;
    }
    words.remove_prefix(std::max<std::size_t>(end, 1));
  }
  return true;
}

/// Name of the unit in "\\text{ dollars}": the canonical one where it is a single known word.
std::string unit_name(std::string_view tail) {
  std::string all = without_blanks(tail);
  const std::size_t close = all.find('}');
  constexpr std::string_view kOpen = "\\text{";
  const auto known =
      close == std::string::npos || close + 1 != all.size()
          ? std::nullopt
          : canonical_unit(std::string_view(all).substr(kOpen.size(), close - kOpen.size()));
  return known ? *known : all;
}

struct HendrycksForm {
  std::string text;
  std::string unit;  ///< What stood in "\text{ …}" at the end; of "\$" dollar.
  std::string name;  ///< What stood before "=".
};

HendrycksForm hendrycks_form(std::string_view given) {
  HendrycksForm form;
  std::string text(given);
  for (const std::string_view dropped : {"\n", "\\!"}) {
    text = replaced(text, dropped, "");
  }
  text = replaced(text, "\\\\", "\\");
  text = replaced(replaced(text, "tfrac", "frac"), "dfrac", "frac");
  for (const std::string_view dropped : {"\\left", "\\right", "^{\\circ}", "^\\circ"}) {
    text = replaced(text, dropped, "");
  }
  const bool dollars = text.find("\\$") != std::string::npos;
  text = replaced(text, "\\$", "");
  if (const std::size_t unit = text.find("\\text{ ");
      unit != std::string::npos && is_unit_tail(std::string_view(text).substr(unit))) {
    form.unit = unit_name(std::string_view(text).substr(unit));
    text.resize(unit);
  }
  form.unit = dollars ? "dollar" : std::move(form.unit);
  text = replaced(text, "\\%", "");
  text = replaced(replaced(text, " .", " 0."), "{.", "{0.");
  if (text.starts_with('.')) {
    text.insert(text.begin(), '0');
  }
  if (const std::size_t sign = text.find('=');
      sign != std::string::npos && text.find('=', sign + 1) == std::string::npos) {
    const std::string name = without_blanks(text.substr(0, sign));
    // "x<=5" names nothing.
    if (name.size() <= 2 && name.find_first_of("<>!") == std::string::npos) {
      form.name = name;
      text.erase(0, sign + 1);
    }
  }
  text = without_blanks(with_braces(text, "\\sqrt", 1));
  text = with_braces(text, "\\frac", 2);
  form.text = text == "0.5" ? "\\frac{1}{2}" : with_fraction(std::move(text));
  return form;
}

/// Position of the "=" behind a single name at the start ("x=", "f(x)="), or nothing.
std::optional<std::size_t> definition_sign(std::string_view text) {
  const std::size_t sign = text.find('=');
  if (sign == std::string_view::npos || text.find('=', sign + 1) != std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view name = text.substr(0, sign);
  const bool letter = name.size() == 1 && is_letter(name[0]);
  const bool function = name.size() == 4 && is_letter(name[0]) && name[1] == '(' &&
                        is_letter(name[2]) && name[3] == ')';
  return letter || function ? std::optional<std::size_t>(sign) : std::nullopt;
}

/// Words that only count away, "and" and "or" to commas.
std::string without_counting_words(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && is_letter(text[end])) {
      ++end;
    }
    if (end == i) {
      result += text[i++];
      continue;
    }
    const std::string_view word = text.substr(i, end - i);
    const bool command = i > 0 && text[i - 1] == '\\';
    if (!command && (word == "and" || word == "or")) {
      result += ',';
    } else if (command || word.size() < 3 ||
               (word != "square" && canonical_unit(word) != std::optional<std::string>(""))) {
      result += word;
    }
    i = end;
  }
  return replaced(replaced(result, ", ,", ","), ",,", ",");
}

/// "\text{…}" and its relatives to what they hold.
std::string without_text_commands(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    bool found = false;
    for (const std::string_view command :
         {"\\text{", "\\mbox{", "\\textbf{", "\\mathrm{", "\\text {", "\\mathbf{"}) {
      const std::size_t close =
          text.starts_with(command) ? text.find_first_of("{}", command.size()) : std::string::npos;
      if (close != std::string_view::npos && text[close] == '}') {
        result += ' ';
        result += text.substr(command.size(), close - command.size());
        result += ' ';
        text.remove_prefix(close + 1);
        found = true;
        break;
      }
    }
    if (!found) {
      result += text.front();
      text.remove_prefix(1);
    }
  }
  return result;
}

/// End of the whole number with separated thousands that stands at `begin`; `begin` when there is
/// none.
std::size_t grouped_end(std::string_view text, std::size_t begin) {
  const auto digits_from = [&](std::size_t at) {
    std::size_t end = at;
    while (end < text.size() && is_digit(text[end]) && end - at <= 3) {
      ++end;
    }
    return end - at;
  };
  const std::size_t first = digits_from(begin);
  std::size_t end = begin + first;
  if (first < 1 || first > 3) {
    return begin;
  }
  while (end < text.size() && text[end] == ',') {
    const std::size_t digits = digits_from(end + 1);
    if (digits != 3) {
      return digits == 0 && end > begin + first ? end : begin;
    }
    end += 4;
  }
  return end > begin + first ? end : begin;
}

/// "1,234.5" to "1234.5", each number of a list by itself. "12, 130" and what stands in brackets
/// are several numbers.
std::string without_thousands(std::string_view text) {
  std::string result;
  int depth = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    depth += c == '(' || c == '[' || c == '{' ? 1 : (c == ')' || c == ']' || c == '}' ? -1 : 0);
    const char before = at == 0 ? '\0' : text[at - 1];
    std::size_t end = grouped_end(text, at);
    if (depth != 0 || before == '.' || before == ',' || is_digit(before)) {
      end = at;
    }
    result += end == at ? std::string(1, c) : replaced(text.substr(at, end - at), ",", "");
    at = std::max(end, at + 1);
  }
  return result;
}

struct MinervaForm {
  std::string text;
  std::string name;  ///< What stood before "=".
};

MinervaForm minerva_form(std::string_view given) {
  MinervaForm form;
  std::string text(given);
  for (const std::string_view separator : {"{,}", ",\\!"}) {
    text = replaced(text, separator, ",");
  }
  for (const std::string_view dropped : {"\\left", "\\right", "^{\\circ}", "^\\circ", "\\$", "$",
                                         "\\!", "\\,", "\\;", "\\ ", "\""}) {
    text = replaced(text, dropped, "");
  }
  text = replaced(replaced(text, "tfrac", "frac"), "dfrac", "frac");
  // Before "and" becomes a comma and blanks go: "12 and 130" is not 12130.
  text = without_thousands(without_text_commands(text));
  if (std::any_of(text.begin(), text.end(), is_digit)) {
    text = without_counting_words(text);
  }
  text = with_braces(with_braces(text, "\\sqrt", 1), "\\frac", 2);
  text = without_blanks(text);
  if (const auto sign = definition_sign(text)) {
    form.name = text.substr(0, *sign);
    text.erase(0, *sign + 1);
  }
  while (text.ends_with('.')) {
    text.pop_back();
  }
  form.text = std::move(text);
  return form;
}

/// Whether two things that may be left out do not contradict each other.
bool agree(std::string_view a, std::string_view b) { return a.empty() || b.empty() || a == b; }

}  // namespace

std::optional<MathAnswer> find_math_answer(std::string_view completion, MathAnswerForm form) {
  const auto found = [](std::optional<std::string_view> text,
                        std::string_view rule) -> std::optional<MathAnswer> {
    // A stated answer may itself be boxed: "The answer is $2 + 3 = \\boxed{5}$".
    const auto box = text ? last_boxed(*text) : std::nullopt;
    const std::string_view answer = text ? trimmed(box ? *box : *text) : std::string_view();
    return answer.empty() ? std::nullopt : std::optional<MathAnswer>({std::string(answer), rule});
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

bool hendrycks_equal(std::string_view gold, std::string_view answer) {
  const HendrycksForm ours = hendrycks_form(gold);
  const HendrycksForm theirs = hendrycks_form(answer);
  return !ours.text.empty() && ours.text == theirs.text && agree(ours.unit, theirs.unit) &&
         agree(ours.name, theirs.name);
}

bool minerva_equal(std::string_view gold, std::string_view answer) {
  const MinervaForm ours = minerva_form(gold);
  const MinervaForm theirs = minerva_form(answer);
  return !ours.text.empty() && ours.text == theirs.text && agree(ours.name, theirs.name);
}

}  // namespace jforge
