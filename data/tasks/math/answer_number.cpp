#include "data/tasks/math/answer_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "data/tokenizer/unicode.h"
#include "runtime/ascii.h"

namespace jforge {
namespace {

constexpr std::size_t kMaxFractionDigits = 18;

bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '~'; }

/// Returns the ASCII form of a code point, '\0' to drop it, nullopt to keep it.
std::optional<char> plain_character(unsigned code_point) {
  if (code_point >= 0xff01 && code_point <= 0xff5e) {  // Full-width "!" to "~".
    return static_cast<char>(code_point - 0xff01 + '!');
  }
  if (code_point == 0xa0 || (code_point >= 0x2000 && code_point <= 0x200a) ||
      code_point == 0x202f || code_point == 0x205f || code_point == 0x3000) {
    return ' ';
  }
  if (code_point == 0x2212 || (code_point >= 0x2010 && code_point <= 0x2013) ||
      code_point == 0xfe63) {
    return '-';
  }
  if (code_point == 0x200b || code_point == 0x2060 || code_point == 0xfeff) {
    return '\0';
  }
  return std::nullopt;
}

/// Returns 6 for "million", ignoring case.
std::optional<std::size_t> number_scale(std::string_view word) {
  static const std::map<std::string, std::size_t, std::less<>> scales{
      {"hundred", 2}, {"thousand", 3}, {"million", 6}, {"billion", 9}, {"trillion", 12}};
  std::string lower(word);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const auto found = scales.find(lower);
  return found == scales.end() ? std::nullopt : std::optional(found->second);
}

/// A scaling word after a number.
struct Scale {
  std::size_t zeros = 0;  ///< 6 for "million", 0 for none.
  std::size_t end = 0;    ///< After the word.
};

/// Reads the scale of "6 million", "6\\text{ million}".
Scale scale_at(std::string_view text, std::size_t at) {
  std::size_t begin = at;
  const auto skip_blanks = [&] {
    while (begin < text.size() && is_blank(text[begin])) {
      ++begin;
    }
  };
  skip_blanks();
  bool braces = false;
  for (const std::string_view command : {"\\text{", "\\mbox{", "\\mathrm{"}) {
    if (text.substr(begin).starts_with(command)) {
      begin += command.size();
      braces = true;
      break;
    }
  }
  skip_blanks();
  std::size_t end = begin;
  while (end < text.size() && is_word(text[end])) {
    ++end;
  }
  if (const auto zeros = number_scale(text.substr(begin, end - begin))) {
    return {*zeros, end + (braces && end < text.size() && text[end] == '}' ? 1 : 0)};
  }
  return {0, at};
}

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

/// Multiplies by 10^zeros.
std::string scaled(const std::string& decimal, std::size_t zeros) {
  const bool negative = decimal.starts_with('-');
  const std::size_t point = std::min(decimal.find('.'), decimal.size());
  const std::size_t first = negative ? 1 : 0;
  std::string decimals = point < decimal.size() ? decimal.substr(point + 1) : std::string();
  decimals.resize(std::max(decimals.size(), zeros), '0');
  return canonical_decimal(negative,
                           decimal.substr(first, point - first) + decimals.substr(0, zeros),
                           decimals.substr(zeros));
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
  std::string decimals;  // Long division; the decimal terminates.
  for (std::uint64_t remainder = p % q; remainder != 0;) {
    const auto wide = static_cast<unsigned __int128>(remainder) * 10;
    decimals += static_cast<char>('0' + static_cast<int>(wide / q));
    remainder = static_cast<std::uint64_t>(wide % q);
  }
  return canonical_decimal(negative, std::to_string(p / q), decimals);
}

/// Returns the end of the number at `begin`, or `begin` if there is none.
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
  const bool continued = at < text.size() && (text[at] == '.' || (whole && text[at] == '/'));
  if (continued && digit_at(at + 1)) {
    ++at;
    while (digit_at(at)) {
      ++at;
    }
  }
  return at > digits ? scale_at(text, at).end : begin;
}

/// Calls `take(canonical number)` for each number, left to right.
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

/// Returns the length of a leading "\\boxed" or "\\fbox" with following blanks, or 0.
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

/// Converts "\\frac{3}{4}" to "3/4"; `command` is "\\frac{".
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
    // "2\frac{1}{2}" is not 21/2.
    result += !result.empty() && is_digit(result.back()) ? " " : "";
    result += text.substr(above, middle - above);
    result += '/';
    result += text.substr(middle + 2, end - middle - 2);
    begin = end + 1;
  }
  result += text.substr(begin);
  return result;
}

std::size_t digits_ahead(std::string_view text) {
  return std::min(text.find_first_not_of("0123456789"), text.size());
}

/// Removes blanks that group thousands: after one to three digits and before exactly three.
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

/// Removes squares and cubes of units: "m^2", "\\text{ ft}^{2}".
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

std::string plain_characters(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
    const auto continues = [&](std::size_t i) { return at + i < text.size() && byte(i) >> 6 == 2; };
    std::size_t length = 1;  // All replaced characters have two or three bytes.
    std::optional<char> plain;
    if (byte(0) >> 5 == 6 && continues(1)) {
      length = 2;
      plain = plain_character((byte(0) & 0x1fU) << 6 | (byte(1) & 0x3fU));
    } else if (byte(0) >> 4 == 14 && continues(1) && continues(2)) {
      length = 3;
      plain = plain_character((byte(0) & 0xfU) << 12 | (byte(1) & 0x3fU) << 6 | (byte(2) & 0x3fU));
    }
    if (!plain) {
      result += text.substr(at, length);
    } else if (*plain != '\0') {
      result += *plain;
    }
    at += length;
  }
  return result;
}

namespace {

std::optional<std::string> unscaled_number(std::string_view text) {
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

/// Returns the text after the last "=" or approximation sign.
std::string_view behind_relation(std::string_view text) {
  for (const std::string_view sign : {"=", "\\approx", "≈"}) {
    const std::size_t at = text.rfind(sign);
    text.remove_prefix(at == std::string_view::npos ? 0 : at + sign.size());
  }
  return text;
}

std::string number_text(std::string_view box) {
  return without_unit_powers(without_grouping_blanks(
      plain_latex(replaced(plain_characters(behind_relation(box)), "^{\\circ}", "^\\circ"))));
}

/// Reads "2 1/2": a whole number and a plain proper fraction.
std::optional<std::string> mixed_number(std::string_view text) {
  const auto trim = [&] {
    text.remove_prefix(std::min(text.find_first_not_of(" $"), text.size()));
  };
  trim();
  const bool negative = text.starts_with('-');
  text.remove_prefix(negative ? 1 : 0);
  trim();
  std::array<std::string_view, 3> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t digits = digits_ahead(text);
    parts[i] = text.substr(0, digits);
    text.remove_prefix(digits);
    const std::size_t next = std::min(text.find_first_not_of(' '), text.size());
    const bool separated = i == 0 ? next > 0 : i == 2 || text.starts_with('/');
    if (digits == 0 || digits > kMaxFractionDigits / 2 || !separated) {
      return std::nullopt;
    }
    text.remove_prefix(i == 0 ? next : (i == 1 ? 1 : 0));
  }
  const auto value = [](std::string_view digits) { return std::stoull(std::string(digits)); };
  const auto [whole, above, below] = parts;
  if (text.find_first_not_of(" .%$") != std::string_view::npos || value(above) >= value(below)) {
    return std::nullopt;
  }
  return canonical_fraction(negative, std::to_string(value(whole) * value(below) + value(above)),
                            below);
}

}  // namespace

std::optional<std::string> canonical_number(std::string_view given) {
  const std::string text = plain_characters(given);
  const std::size_t behind = text.find_last_of("0123456789.") + 1;
  const Scale scale = scale_at(text, behind);
  if (scale.zeros == 0 || text.find_first_not_of(" .", scale.end) != std::string::npos) {
    return unscaled_number(text);
  }
  const auto number = unscaled_number(std::string_view(text).substr(0, behind));
  return number && number->find('/') == std::string::npos
             ? std::optional<std::string>(scaled(*number, scale.zeros))
             : std::nullopt;
}

std::optional<std::string> leading_number(std::string_view given) {
  const std::string text = plain_characters(given);
  const std::size_t end = number_end(text, 0);
  return end == 0 ? std::nullopt : canonical_number(std::string_view(text).substr(0, end));
}

std::optional<std::string> last_number(std::string_view text) {
  std::optional<std::string> found;
  for_each_number(plain_characters(text), [&](std::string number) { found = std::move(number); });
  return found;
}

bool is_unevaluated(std::string_view box) {
  const std::string text = number_text(box);
  const auto neighbour = [&](std::size_t at, int step) {
    auto i = static_cast<std::ptrdiff_t>(at) + step;
    while (i >= 0 && i < std::ssize(text) && is_blank(text[static_cast<std::size_t>(i)])) {
      i += step;
    }
    return i >= 0 && i < std::ssize(text) ? text[static_cast<std::size_t>(i)] : '\0';
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = std::string_view(text).substr(at);
    for (const std::string_view command :
         {"\\times", "\\cdot",  "\\div",  "\\pm",  "\\sqrt", "\\pi",  "\\binom", "\\frac",
          "\\dfrac", "\\tfrac", "\\over", "\\log", "\\ln",   "\\sin", "\\cos",   "\\tan",
          "×",       "·",       "÷",      "√",     "π",      "±"}) {
      const char next = rest.size() > command.size() ? rest[command.size()] : '\0';
      const bool letter = is_word(next) && !is_digit(next);
      if (rest.starts_with(command) && !(command.starts_with('\\') && letter)) {
        return true;
      }
    }
    const char before = neighbour(at, -1);
    const char after = neighbour(at, 1);
    const bool left = is_word(before) || before == ')' || before == '}';
    const bool number_follows = is_digit(after) || after == '(' || after == '$' || after == '.';
    const bool operand_follows = number_follows || is_word(after) || after == '\\';
    switch (text[at]) {
      case '+':
      case '*':
        if (left && operand_follows) {
          return true;
        }
        break;
      case '-': {
        // "twenty-dollar" is a word; after a word a minus may be a sign: "\\text{Loss} -5".
        const bool sign = at > 0 && is_blank(text[at - 1]) && !is_blank(text[at + 1]);
        if (left && number_follows && (is_digit(before) || before == ')' || !sign)) {
          return true;
        }
        break;
      }
      case '^':
        if (left && !rest.starts_with("^\\circ")) {
          return true;
        }
        break;
      case '/':
        if ((before == ')' && number_follows) || (left && after == '(')) {
          return true;
        }
        break;
      case 'x':
        if (is_digit(before) && is_digit(after)) {
          return true;
        }
        break;
      default:
        break;
    }
  }
  return false;
}

std::optional<std::string> boxed_number(std::string_view box) {
  if (is_unevaluated(box)) {
    return std::nullopt;
  }
  const std::string plain = number_text(box);
  if (auto number = mixed_number(plain)) {
    return number;
  }
  // Other blanks, or a comma and blanks, separate numbers.
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
  return last_number(plain);
}

std::optional<std::string_view> last_boxed(std::string_view text) {
  // A stack of open braces keeps unclosed boxes and deep nesting cheap.
  constexpr std::size_t kPlain = std::string_view::npos;
  std::vector<std::size_t> open;  // kPlain, or a box's content.
  std::optional<std::string_view> last;
  std::size_t line_end = 0;  // End of the last examined line.
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
        // Escaped braces do not group; the second of two backslashes may begin a box.
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
