#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "data/tasks/math/answer_number.h"
#include "data/tasks/math/math_answer.h"
#include "data/tokenizer/unicode.h"
#include "runtime/ascii.h"

namespace jforge {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// Returns bytes. Requires: `text` is not empty.
std::size_t character_length(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && continues_character(text[length])) {
    ++length;
  }
  return length;
}

std::string_view take_character(std::string_view& text) {
  const std::string_view first = text.substr(0, character_length(text));
  text.remove_prefix(first.size());
  return first;
}

std::string braced(std::string_view text) { return "{" + std::string(text) + "}"; }

/// Calls `append(result, piece)` for the text after each `command`. Returns false if one is empty:
/// the original then fails.
template <typename Append>
bool for_each_piece(std::string& text, std::string_view command, const Append& append) {
  std::size_t at = text.find(command);
  std::string result = text.substr(0, at);
  while (at != std::string::npos) {
    const std::size_t begin = at + command.size();
    at = text.find(command, begin);
    const std::string_view piece = std::string_view(text).substr(begin, at - begin);
    if (piece.empty()) {
      return false;
    }
    result += command;
    append(result, piece);
  }
  text = std::move(result);
  return true;
}

/// Changes "\sqrt3" to "\sqrt{3}".
bool brace_roots(std::string& text) {
  return for_each_piece(text, "\\sqrt", [](std::string& result, std::string_view piece) {
    if (!piece.starts_with('{')) {
      result += braced(take_character(piece));
    }
    result += piece;
  });
}

/// Changes "\frac12" to "\frac{1}{2}", "\frac1{72}" to "\frac{1}{72}"; not "\frac{72}1". No change
/// if a single character follows a \frac.
bool brace_fractions(std::string& text) {
  bool cut_short = false;
  std::string fixed = text;
  const bool done =
      for_each_piece(fixed, "\\frac", [&](std::string& result, std::string_view piece) {
        if (!piece.starts_with('{')) {
          const std::string_view above = take_character(piece);
          result += braced(above);
          if (piece.empty()) {
            cut_short = true;
          } else if (!piece.starts_with('{')) {
            result += braced(take_character(piece));
          }
        }
        result += piece;
      });
  // The original stops at the first of two faults.
  if (!cut_short && done) {
    text = std::move(fixed);
  }
  return done || cut_short;
}

/// Returns true if Python's int() accepts `text`.
bool is_integer_literal(std::string_view text) {
  constexpr std::string_view kBlanks = "\t\n\v\f\r ";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
  if (text.starts_with('-') || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  char before = '_';
  for (const char c : text) {
    if (!is_digit(c) && (c != '_' || before == '_')) {
      return false;
    }
    before = c;
  }
  return before != '_';
}

/// Returns true for integers as Python prints them.
bool is_printed_integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  text.remove_prefix(negative ? 1 : 0);
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit) &&
         (text[0] != '0' || (text.size() == 1 && !negative));
}

/// Changes "3/4" to "\frac{3}{4}"; false if the parts around a single "/" are not integers.
bool write_fraction(std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos || text.find('/', slash + 1) != std::string::npos) {
    return true;
  }
  const std::string above = text.substr(0, slash);
  const std::string below = text.substr(slash + 1);
  if (!is_integer_literal(above) || !is_integer_literal(below)) {
    return false;
  }
  if (is_printed_integer(above) && is_printed_integer(below)) {
    text = "\\frac" + braced(above) + braced(below);
  }
  return true;
}

/// Returns nullopt if the original fails.
std::optional<std::string> string_form(std::string_view given) {
  std::string text = replaced(replaced(given, "\n", ""), "\\!", "");
  text = replaced(text, "\\\\", "\\");
  text = replaced(replaced(text, "tfrac", "frac"), "dfrac", "frac");
  for (const std::string_view dropped : {"\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"}) {
    text = replaced(text, dropped, "");
  }
  constexpr std::string_view kUnit = "\\text{ ";
  if (const std::size_t unit = text.find(kUnit); unit != std::string::npos) {
    if (text.find(kUnit, unit + 1) != std::string::npos) {
      return std::nullopt;
    }
    text.resize(unit);
  }
  text = replaced(text, "\\%", "");
  text = replaced(replaced(text, " .", " 0."), "{.", "{0.");
  if (text.empty()) {
    return text;
  }
  if (text.starts_with('.')) {
    text.insert(text.begin(), '0');
  }
  if (const std::size_t sign = text.find('=');
      sign != std::string::npos && text.find('=', sign + 1) == std::string::npos) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(sign);
    const auto characters =
        std::count_if(text.begin(), end, [](char c) { return !continues_character(c); });
    text.erase(0, characters <= 2 ? sign + 1 : 0);
  }
  if (!brace_roots(text)) {
    return std::nullopt;
  }
  text = replaced(text, " ", "");
  if (!brace_fractions(text)) {
    return std::nullopt;
  }
  text = text == "0.5" ? "\\frac{1}{2}" : text;
  return write_fraction(text) ? std::optional<std::string>(std::move(text)) : std::nullopt;
}

/// Reduces "COMMAND{…}" within a line to its content up to the first "}".
std::string without_command(std::string_view text, std::string_view command) {
  std::string result;
  while (!text.empty()) {
    const std::size_t close =
        text.starts_with(command) ? text.find_first_of("}\n", command.size()) : std::string::npos;
    if (close != std::string_view::npos && text[close] == '}') {
      result += text.substr(command.size(), close - command.size());
      text.remove_prefix(close + 1);
    } else {
      result += text.front();
      text.remove_prefix(1);
    }
  }
  return result;
}

/// Returns "$" and the line up to its second "$", or the line.
std::string inside_dollars(const std::string& line) {
  const std::size_t open = line.find('$');
  const std::size_t close = open == std::string::npos ? open : line.find('$', open + 1);
  return close == std::string::npos ? line : "$" + line.substr(open + 1, close - open);
}

/// Removes "\boxed{" and the line's last "}".
std::string without_box(const std::string& line) {
  constexpr std::string_view kBox = "\\boxed{";
  const std::size_t open = line.find(kBox);
  const std::size_t begin = open + kBox.size();
  const std::size_t close = open == std::string::npos ? open : line.rfind('}');
  return close == std::string::npos || close < begin
             ? line
             : line.substr(0, open) + line.substr(begin, close - begin) + line.substr(close + 1);
}

template <typename Change>
std::string by_line(const std::string& text, const Change& change) {
  std::string result;
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    result += change(text.substr(begin, end - begin));
    if (end == text.size()) {
      return result;
    }
    result += '\n';
    begin = end + 1;
  }
}

/// Braces `arguments` characters: "frac12" to "frac{1}{2}", "sqrt3" to "sqrt{3}".
std::string with_short_arguments(std::string_view text, std::string_view command, int arguments) {
  std::string result;
  while (!text.empty()) {
    std::string_view rest = text.substr(text.starts_with(command) ? command.size() : 0);
    std::string written(command);
    bool fits = text.starts_with(command) && !rest.starts_with('{');
    for (int i = 0; i < arguments && fits; ++i) {
      fits = !rest.empty() && (i == 0 || rest.front() != '\n');
      written += fits ? braced(take_character(rest)) : "";
    }
    if (fits) {
      result += written;
      text = rest;
    } else {
      result += text.front();
      text.remove_prefix(1);
    }
  }
  return result;
}

std::string minerva_form(std::string_view given) {
  using Change = std::pair<std::string_view, std::string_view>;
  constexpr std::array<Change, 10> kSubstitutions{{{"an ", ""},
                                                   {"a ", ""},
                                                   {".$", "$"},
                                                   {"\\$", ""},
                                                   {"\\ ", ""},
                                                   {" ", ""},
                                                   {"mbox", "text"},
                                                   {",\\text{and}", ","},
                                                   {"\\text{and}", ","},
                                                   {"\\text{m}", "\\text{}"}}};
  constexpr std::array<std::string_view, 41> kRemoved{"square",
                                                      "ways",
                                                      "integers",
                                                      "dollars",
                                                      "mph",
                                                      "inches",
                                                      "ft",
                                                      "hours",
                                                      "km",
                                                      "units",
                                                      "\\ldots",
                                                      "sue",
                                                      "points",
                                                      "feet",
                                                      "minutes",
                                                      "digits",
                                                      "cents",
                                                      "degrees",
                                                      "cm",
                                                      "gm",
                                                      "pounds",
                                                      "meters",
                                                      "meals",
                                                      "edges",
                                                      "students",
                                                      "childrentickets",
                                                      "multiples",
                                                      "\\text{s}",
                                                      "\\text{.}",
                                                      "\\text{\ns}",
                                                      "\\text{}^2",
                                                      "\\text{}^3",
                                                      "\\text{\n}",
                                                      "\\text{}",
                                                      "\\mathrm{th}",
                                                      "^\\circ",
                                                      "^{\\circ}",
                                                      "\\;",
                                                      ",\\!",
                                                      "{,}",
                                                      "\""};
  std::string text(given.substr(given.rfind('=') + 1));
  for (const auto& [from, to] : kSubstitutions) {
    text = replaced(text, from, to);
  }
  for (const std::string_view removed : kRemoved) {
    text = replaced(text, removed, "");
  }
  text = by_line(replaced(text, "\\dots", ""), inside_dollars);
  for (const std::string_view command : {"\\text{", "\\textbf{", "\\overline{"}) {
    text = without_command(text, command);
  }
  text = by_line(text, without_box);
  text = with_short_arguments(with_short_arguments(text, "frac", 2), "sqrt", 1);
  text = replaced(text, "$", "");
  const std::string digits = replaced(text, ",", "");
  return !digits.empty() && std::all_of(digits.begin(), digits.end(), is_digit) ? digits : text;
}

}  // namespace

bool string_equal(std::string_view gold, std::string_view answer) {
  const auto ours = string_form(gold);
  const auto theirs = string_form(answer);
  return ours && theirs ? *ours == *theirs : gold == answer;
}

bool minerva_equal(std::string_view gold, std::string_view answer) {
  return minerva_form(gold) == minerva_form(answer);
}

}  // namespace jforge
