#include "data/tasks/math/answer_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace jforge {
namespace {

constexpr std::size_t kMaxFractionDigits = 18;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string canonical_decimal(bool negative, std::string_view whole, std::string_view decimals) {
  while (whole.size() > 1 && whole.front() == '0') {
    whole.remove_prefix(1);
  }
  while (!decimals.empty() && decimals.back() == '0') {
    decimals.remove_suffix(1);
  }
  std::string result(whole.empty() ? "0" : whole);
  if (!decimals.empty()) {
    result += '.';
    result += decimals;
  }
  return negative && result != "0" ? "-" + result : result;
}

std::optional<std::string> canonical_fraction(bool negative, std::string_view above,
                                              std::string_view below) {
  if (above.size() > kMaxFractionDigits || below.size() > kMaxFractionDigits) {
    return std::nullopt;
  }
  std::uint64_t p = std::stoull(std::string(above));
  std::uint64_t q = std::stoull(std::string(below));
  if (q == 0) {
    return std::nullopt;
  }
  const std::uint64_t divisor = std::gcd(p, q);
  p /= divisor;
  q /= divisor;
  std::uint64_t rest = q;
  for (const std::uint64_t factor : {2U, 5U}) {
    while (rest % factor == 0) {
      rest /= factor;
    }
  }
  if (rest != 1) {
    return fmt::format("{}{}/{}", negative ? "-" : "", p, q);
  }
  // The decimal ends: long division until nothing is left.
  std::string decimals;
  for (std::uint64_t remainder = p % q; remainder != 0;) {
    const auto wide = static_cast<unsigned __int128>(remainder) * 10;
    decimals += static_cast<char>('0' + static_cast<int>(wide / q));
    remainder = static_cast<std::uint64_t>(wide % q);
  }
  return canonical_decimal(negative, std::to_string(p / q), decimals);
}

/// End of the number that starts at `begin` (which may be a minus or "$"); `begin` when there is
/// none.
std::size_t number_end(std::string_view text, std::size_t begin) {
  std::size_t at = begin;
  if (at < text.size() && text[at] == '-') {
    ++at;
  }
  if (at < text.size() && text[at] == '$') {
    ++at;
  }
  if (at > begin && at < text.size() && text[at] == '-' && text[begin] == '$') {
    ++at;  // "$-5"
  }
  const std::size_t digits = at;
  const auto digit_at = [&](std::size_t i) { return i < text.size() && is_digit(text[i]); };
  while (digit_at(at) || (at > digits && at < text.size() && text[at] == ',' && digit_at(at + 1))) {
    ++at;
  }
  const bool whole = at > digits;
  if (at < text.size() && text[at] == '.' && digit_at(at + 1)) {
    ++at;
    while (digit_at(at)) {
      ++at;
    }
  } else if (whole && at < text.size() && text[at] == '/' && digit_at(at + 1)) {
    ++at;
    while (digit_at(at)) {
      ++at;
    }
  }
  return at > digits ? at : begin;
}

/// Calls `take(canonical number)` for each number from left to right.
template <typename Take>
void for_each_number(std::string_view text, const Take& take) {
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const bool could_start = is_digit(c) || c == '$' ||
                             (c == '-' && (at == 0 || !is_word(text[at - 1]))) ||
                             (c == '.' && (at == 0 || !is_word(text[at - 1])));
    const std::size_t end = could_start ? number_end(text, at) : at;
    if (end == at) {
      ++at;
      continue;
    }
    if (auto number = canonical_number(text.substr(at, end - at))) {
      take(std::move(*number));
    }
    at = end;
  }
}

/// Length of "\\boxed" or "\\fbox" with the blanks behind it; 0 when `text` begins with neither.
std::size_t box_command(std::string_view text) {
  for (const std::string_view command : {"\\boxed", "\\fbox"}) {
    if (text.starts_with(command)) {
      const std::size_t end = std::min(text.find_first_not_of(" \t", command.size()), text.size());
      const char next = end < text.size() ? text[end] : '\0';
      // "\boxedtext" is another command.
      return end == command.size() && is_word(next) && !is_digit(next) ? 0 : end;
    }
  }
  return 0;
}

/// "3/4" for "\\frac{3}{4}", where `command` is "\\frac{".
std::string with_slashes(std::string_view text, std::string_view command) {
  std::string result;
  result.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at = 0; (at = text.find(command, begin)) != std::string_view::npos;) {
    const std::size_t above = at + command.size();
    const std::size_t middle = text.find("}{", above);
    const std::size_t end = middle == std::string_view::npos ? middle : text.find('}', middle + 2);
    if (end == std::string_view::npos) {
      break;
    }
    result += text.substr(begin, at - begin);
    result += text.substr(above, middle - above);
    result += '/';
    result += text.substr(middle + 2, end - middle - 2);
    begin = end + 1;
  }
  result += text.substr(begin);
  return result;
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '~'; }

/// Number of digits that `text` begins with.
std::size_t digits_ahead(std::string_view text) {
  return std::min(text.find_first_not_of("0123456789"), text.size());
}

/// Blanks that group thousands away: between one to three digits and exactly three.
std::string without_grouping_blanks(std::string_view text) {
  std::string result;
  bool grouped = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t digits = digits_ahead(text.substr(at));
    if (digits == 0) {
      grouped = false;
      result += text[at++];
      continue;
    }
    const char before = result.empty() ? '\0' : result.back();
    const bool starts = before != '.' && before != ',' && before != '/' && before != '^';
    result += text.substr(at, digits);
    at += digits;
    std::size_t next = at;
    while (next < text.size() && is_blank(text[next])) {
      ++next;
    }
    const std::size_t behind = next + 3;
    grouped = (grouped ? digits == 3 : starts && digits <= 3) && next > at &&
              digits_ahead(text.substr(next)) == 3 &&
              (behind >= text.size() || (text[behind] != '/' && text[behind] != ','));
    at = grouped ? next : at;
  }
  return result;
}

/// Squares and cubes of what ends in a letter or brace away: "m^2", "\\text{ ft}^{2}".
std::string without_unit_powers(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const char before = result.empty() ? '\0' : result.back();
    std::size_t length = 0;
    if (before == '}' || (is_word(before) && !is_digit(before))) {
      for (const std::string_view power : {"^2", "^3", "^{2}", "^{3}"}) {
        const bool more_digits = power.size() == 2 && digits_ahead(text.substr(1)) > 1;
        length = text.starts_with(power) && !more_digits ? power.size() : length;
      }
    }
    if (length == 0) {
      result += text.front();
      length = 1;
    }
    text.remove_prefix(length);
  }
  return result;
}

}  // namespace

std::optional<std::string> canonical_number(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (c != '$' && c != ',' && c != ' ' && c != '\t' && c != '\r' && c != '\n') {
      plain += c;
    }
  }
  std::string_view rest = plain;
  while (!rest.empty() && (rest.back() == '%' || rest.back() == '.')) {
    rest.remove_suffix(1);
  }
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) {
    rest.remove_prefix(1);
  }
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const std::string_view whole = rest.substr(0, digits);
  rest.remove_prefix(digits);
  const char separator = rest.empty() ? '\0' : rest.front();
  const std::string_view tail = rest.substr(rest.empty() ? 0 : 1);
  if (!std::all_of(tail.begin(), tail.end(), is_digit) || (whole.empty() && tail.empty())) {
    return std::nullopt;
  }
  switch (separator) {
    case '\0':
      return canonical_decimal(negative, whole, {});
    case '.':
      return canonical_decimal(negative, whole, tail);
    case '/':
      return whole.empty() || tail.empty() ? std::nullopt
                                           : canonical_fraction(negative, whole, tail);
    default:
      return std::nullopt;
  }
}

std::optional<std::string> leading_number(std::string_view text) {
  const std::size_t end = number_end(text, 0);
  return end == 0 ? std::nullopt : canonical_number(text.substr(0, end));
}

std::optional<std::string> last_number(std::string_view text) {
  std::optional<std::string> found;
  for_each_number(text, [&](std::string number) { found = std::move(number); });
  return found;
}

std::optional<std::string> boxed_number(std::string_view box) {
  const std::string plain = without_grouping_blanks(plain_latex(box));
  // Digits with other blanks or with a comma and blanks between them are several numbers.
  const auto separates = [&](std::size_t i) {
    if (i == 0 || !is_blank(plain[i]) || (!is_digit(plain[i - 1]) && plain[i - 1] != ',')) {
      return false;
    }
    const std::size_t next = plain.find_first_not_of(" \t\r\n", i);
    return next != std::string::npos && (is_digit(plain[next]) || plain[next] == ',');
  };
  bool several = false;
  for (std::size_t i = 0; i < plain.size() && !several; ++i) {
    several = separates(i);
  }
  if (!several) {
    if (auto number = canonical_number(plain)) {
      return number;
    }
  }
  return last_number(without_unit_powers(plain));
}

std::optional<std::string_view> last_boxed(std::string_view text) {
  // One pass with a stack of open braces: neither unclosed boxes nor deep nesting cost more.
  constexpr std::size_t kPlain = std::string_view::npos;
  std::vector<std::size_t> open;  // kPlain, or where a box's content begins
  std::optional<std::string_view> last;
  std::size_t line_end = 0;  // of the line that was last looked at
  const auto consider = [&](std::string_view content) {
    if (!last || content.data() > last->data()) {
      last = content;
    }
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '{') {
      open.push_back(kPlain);
    } else if (text[at] == '}' && !open.empty()) {
      if (open.back() != kPlain) {
        consider(text.substr(open.back(), at - open.back()));
      }
      open.pop_back();
    } else if (text[at] == '\\') {
      const std::size_t command = box_command(text.substr(at));
      const std::size_t behind = at + command;
      if (command == 0) {
        // An escaped brace does not group; the second backslash of two may begin a box.
        const char next = at + 1 < text.size() ? text[at + 1] : '\0';
        const bool pair = next == '\\' && box_command(text.substr(at + 1)) == 0;
        at += pair || next == '{' || next == '}' ? 1 : 0;
      } else if (behind < text.size() && text[behind] == '{') {
        open.push_back(behind + 1);
        at = behind;
      } else {
        if (behind > line_end) {
          line_end = std::min(text.find_first_of("$\n", behind), text.size());
        }
        const std::string_view line = text.substr(behind, line_end - behind);
        if (line.find_first_not_of(" \t.") != std::string_view::npos) {
          consider(line);
        }
        at = behind - 1;
      }
    }
  }
  return last;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos;
       at = text.find(from, begin)) {
    result += text.substr(begin, at - begin);
    result += to;
    begin = at + from.size();
  }
  result += text.substr(begin);
  return result;
}

std::string plain_latex(std::string_view text) {
  std::string result = replaced(replaced(replaced(text, "{,}", ","), "\\$", "$"), "\\%", "%");
  for (const std::string_view space : {"\\!", "\\,", "\\;", "\\ "}) {
    result = replaced(result, space, "");
  }
  for (const std::string_view command : {"\\dfrac{", "\\tfrac{", "\\frac{"}) {
    result = with_slashes(result, command);
  }
  return result;
}

}  // namespace jforge
