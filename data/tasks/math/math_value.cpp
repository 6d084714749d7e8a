#include "data/tasks/math/math_value.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "data/tasks/math/math_expression.h"
#include "data/tasks/math/math_units.h"

namespace jforge {
namespace {

using Kind = MathToken::Kind;

constexpr int kMaxDepth = 12;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string text_key(MathTokens tokens) {
  std::string all;
  for (const MathToken& token : tokens) {
    all += token.text;
  }
  std::string key;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const char c = all[i];
    const bool decimal_point = c == '.' && i + 1 < all.size() && is_digit(all[i + 1]);
    if (std::string_view(" \t\n\r()\"'`{}.").find(c) == std::string_view::npos || decimal_point) {
      key += lower(c);
    }
  }
  return key;
}

bool is_word(const MathToken& token) {
  return token.kind == Kind::text || token.kind == Kind::word;
}

bool is_conjunction(const MathToken& token) {
  if (!is_word(token)) {
    return false;
  }
  const std::string word = text_key({&token, 1});
  return word == "and" || word == "or";
}

bool is_separator(const MathToken& token) {
  return token.is_symbol(',') || token.is_symbol(';') || is_conjunction(token);
}

/// Ranges of `tokens` between the tokens outside all brackets for which `splits` holds.
template <typename Splits>
std::vector<MathTokens> split(MathTokens tokens, const Splits& splits) {
  std::vector<MathTokens> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    depth += bracket_step(tokens[i]);
    if (depth < 0) {
      throw MathRefusal("unbalanced");
    }
    if (depth == 0 && splits(i)) {
      parts.push_back(tokens.subspan(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(tokens.subspan(begin));
  return parts;
}

/// Whether the bracket that `tokens` begins with closes at its end.
bool is_enclosed(MathTokens tokens) {
  if (tokens.size() < 2 || bracket_step(tokens.front()) != 1) {
    return false;
  }
  int depth = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    depth += bracket_step(tokens[i]);
    if (depth <= 0) {
      return i + 1 == tokens.size() && depth == 0;
    }
  }
  return false;
}

MathTokens trimmed(MathTokens tokens) {
  for (;;) {
    while (!tokens.empty() && (tokens.back().is_symbol('.') || tokens.back().is_symbol(',') ||
                               tokens.back().is_symbol(';'))) {
      tokens = tokens.first(tokens.size() - 1);
    }
    // "B)" names a choice.
    if (tokens.size() == 2 && tokens[0].kind == Kind::name && tokens[1].is_symbol(')')) {
      return tokens.first(1);
    }
    if (!(is_enclosed(tokens) && tokens.front().is_symbol('{') && tokens.back().is_symbol('}'))) {
      return tokens;
    }
    tokens = tokens.subspan(1, tokens.size() - 2);
  }
}

std::string relation_of(const MathToken& token) {
  if (token.is_symbol('=')) {
    return "=";
  }
  if (token.is_symbol('<') || token.is_symbol('>')) {
    return token.text;
  }
  return token.is_command("\\le")   ? "<="
         : token.is_command("\\ge") ? ">="
         : token.is_command("\\ne") ? "!="
                                    : "";
}

/// Whether words are all there is, so that comparing them as text is safe: in "2(3)" and "23" it
/// would not be.
bool is_words(MathTokens tokens) {
  const auto all = [&](const auto& holds) {
    return std::all_of(tokens.begin(), tokens.end(), holds);
  };
  const auto is_text = [](const MathToken& token) { return token.kind == Kind::text; };
  const bool some = std::any_of(tokens.begin(), tokens.end(), is_word);
  return some && (all([](const MathToken& t) { return is_word(t) || t.kind == Kind::name; }) ||
                  all([&](const MathToken& t) {
                    return is_text(t) || t.is_symbol('(') || t.is_symbol(')');
                  }));
}

class Reader {
 public:
  explicit Reader(MathAlgebra& algebra) : algebra_(algebra) {}

  MathValue read(MathTokens given) {
    const MathTokens tokens = trimmed(given);
    if (tokens.empty()) {
      throw MathRefusal("empty");
    }
    if (++depth_ > kMaxDepth) {
      throw MathRefusal("nested too deep");
    }
    algebra_.spend(static_cast<std::int64_t>(1 + tokens.size() / 16));
    MathValue value = read_any(tokens);
    value.text = text_key(tokens);
    value.has_words = is_words(tokens);
    --depth_;
    return value;
  }

 private:
  MathValue read_any(MathTokens tokens) {
    if (auto parts = elements(tokens); parts.size() > 1) {
      return list(parts);
    }
    if (const auto sides = split(tokens, [&](std::size_t i) { return is_union(tokens, i); });
        sides.size() > 1) {
      return group(MathValue::Kind::sum_set, sides);
    }
    if (tokens.size() > 2 && tokens[0].kind == Kind::name && tokens[1].is_command("\\in")) {
      return read(tokens.subspan(2));
    }
    if (const auto sides =
            split(tokens, [&](std::size_t i) { return tokens[i].is_command("\\approx"); });
        sides.size() > 1) {
      // "x \\approx 3" and "\\approx 3" are 3; of "\\pi \\approx 3.14" the exact side is meant.
      const MathTokens left = sides.front();
      return read(left.empty() || (left.size() == 1 && left[0].kind == Kind::name) ? sides[1]
                                                                                   : left);
    }
    if (const auto sides =
            split(tokens, [&](std::size_t i) { return !relation_of(tokens[i]).empty(); });
        sides.size() > 1) {
      return relation(tokens, sides);
    }
    if (tokens.front().is_command("\\begin") && is_matrix(tokens)) {
      return matrix(tokens);
    }
    if (is_enclosed(tokens)) {
      return enclosed(tokens);
    }
    const auto is_ratio = [&](std::size_t i) {
      return tokens[i].is_symbol(':') || (is_word(tokens[i]) && tokens[i].text == "to");
    };
    if (const auto sides = split(tokens, is_ratio); sides.size() > 1) {
      return group(MathValue::Kind::ratio, sides);
    }
    if (auto value = numeral(tokens)) {
      return std::move(*value);
    }
    return leaf(tokens);
  }

  static bool is_union(MathTokens tokens, std::size_t i) {
    return tokens[i].is_command("\\cup") ||
           (tokens[i].kind == Kind::name && tokens[i].text == "U" && i > 0 &&
            bracket_step(tokens[i - 1]) == -1);
  }

  /// What separators divide; ", and" is one separator.
  static std::vector<MathTokens> elements(MathTokens tokens) {
    auto parts = split(tokens, [&](std::size_t i) { return is_separator(tokens[i]); });
    std::erase_if(parts, [](MathTokens part) { return part.empty(); });
    if (parts.size() > kMaxMathParts) {
      throw MathRefusal("too many elements");
    }
    return parts;
  }

  MathValue group(MathValue::Kind kind, const std::vector<MathTokens>& parts) {
    MathValue value;
    value.kind = kind;
    for (const MathTokens part : parts) {
      value.parts.push_back(read(part));
    }
    return value;
  }

  /// "1 ± 2" among the elements counts as its two values; "x = 1 or 2" speaks of one x.
  MathValue list(const std::vector<MathTokens>& parts) {
    MathValue value = group(MathValue::Kind::list, parts);
    flatten(value);
    const auto defines = [](const MathValue& part) { return part.is_definition(); };
    if (defines(value.parts.front()) &&
        std::none_of(value.parts.begin() + 1, value.parts.end(), [](const MathValue& part) {
          return part.kind == MathValue::Kind::relation;
        })) {
      MathValue right = std::move(value.parts.front().parts[1]);
      value.parts.front() = std::move(right);
    }
    return value;
  }

  static void flatten(MathValue& value) {
    std::vector<MathValue> flat;
    for (MathValue& part : value.parts) {
      if (part.kind == MathValue::Kind::list) {
        std::move(part.parts.begin(), part.parts.end(), std::back_inserter(flat));
      } else {
        flat.push_back(std::move(part));
      }
    }
    value.parts = std::move(flat);
    if (value.parts.size() > kMaxMathParts) {
      throw MathRefusal("too many elements");
    }
  }

  MathValue relation(MathTokens tokens, const std::vector<MathTokens>& sides) {
    MathValue value = group(MathValue::Kind::relation, sides);
    std::vector<std::string> signs;
    for (std::size_t i = 0; i + 1 < sides.size(); ++i) {
      const std::size_t sign =
          static_cast<std::size_t>(sides[i].data() - tokens.data()) + sides[i].size();
      signs.push_back(relation_of(tokens[sign]));
    }
    // "x = ±2" are two equations.
    if (signs.size() == 1 && signs[0] == "=" && value.parts[1].kind == MathValue::Kind::list) {
      return value.parts[0].kind == MathValue::Kind::scalar ? std::move(value.parts[1])
                                                            : throw MathRefusal("no relation");
    }
    if (std::all_of(signs.begin(), signs.end(),
                    [](const std::string& sign) { return sign[0] == '>'; })) {
      std::reverse(signs.begin(), signs.end());
      std::reverse(value.parts.begin(), value.parts.end());
      for (std::string& sign : signs) {
        sign[0] = '<';
      }
    }
    for (const std::string& sign : signs) {
      value.label += (value.label.empty() ? "" : " ") + sign;
    }
    const bool rising = std::all_of(signs.begin(), signs.end(),
                                    [](const std::string& sign) { return sign[0] == '<'; });
    return rising ? interval_of(std::move(value), signs) : value;
  }

  static bool is_variable(const MathValue& value) {
    return value.kind == MathValue::Kind::scalar && !value.scalar.constant &&
           !value.scalar.name.empty();
  }
  static bool is_constant(const MathValue& value) {
    // Letters in it would make it a relation between variables.
    return value.kind == MathValue::Kind::scalar && value.scalar.constant;
  }

  MathValue interval_of(MathValue chain, const std::vector<std::string>& signs) {
    const auto& sides = chain.parts;
    const auto closed = [&](std::size_t i) { return signs[i] == "<="; };
    std::optional<MathValue> low;
    std::optional<MathValue> high;
    bool low_closed = false;
    bool high_closed = false;
    const std::string variable = sides[is_variable(sides[0]) ? 0 : 1].scalar.name;
    if (sides.size() == 3 && is_constant(sides[0]) && is_variable(sides[1]) &&
        is_constant(sides[2])) {
      low = sides[0];
      high = sides[2];
      low_closed = closed(0);
      high_closed = closed(1);
    } else if (sides.size() == 2 && is_variable(sides[0]) && is_constant(sides[1])) {
      low = infinity(-1);
      high = sides[1];
      high_closed = closed(0);
    } else if (sides.size() == 2 && is_constant(sides[0]) && is_variable(sides[1])) {
      low = sides[0];
      low_closed = closed(0);
      high = infinity(1);
    } else {
      return chain;
    }
    MathValue interval;
    interval.kind = MathValue::Kind::tuple;
    interval.label = std::string(low_closed ? "[" : "(") + (high_closed ? "]" : ")");
    interval.unit = variable;
    interval.parts = {std::move(*low), std::move(*high)};
    return interval;
  }

  static MathValue infinity(int sign) {
    MathValue value;
    value.scalar = MathAlgebra::infinity();
    value.scalar.infinity = sign;
    return value;
  }

  MathValue enclosed(MathTokens tokens) {
    const MathTokens inside = tokens.subspan(1, tokens.size() - 2);
    const MathToken& open = tokens.front();
    const MathToken& close = tokens.back();
    auto parts = elements(inside);
    if (open.is_command("\\{") && close.is_command("\\}")) {
      // "\\{x \\mid x > 3\\}" is what the condition says of x.
      if (inside.size() > 3 && inside[0].kind == Kind::name &&
          (inside[1].is_command("\\mid") || inside[1].is_symbol('|') || inside[1].is_symbol(':'))) {
        return read(inside.subspan(2));
      }
      MathValue value = group(MathValue::Kind::set, parts);
      flatten(value);
      return value;
    }
    const bool angle = open.is_command("\\langle") && close.is_command("\\rangle");
    const bool plain = open.kind == Kind::symbol && close.kind == Kind::symbol &&
                       open.text != "{" && close.text != "}";
    if (!angle && !plain) {
      throw MathRefusal("unbalanced");
    }
    const std::string brackets = angle ? "()" : open.text + close.text;
    if (parts.size() == 1 && (brackets == "()" || brackets == "[]")) {
      return read(inside);
    }
    if (parts.size() < 2) {
      throw MathRefusal("unbalanced");
    }
    MathValue value = group(MathValue::Kind::tuple, parts);
    value.label = brackets;
    return value;
  }

  static bool is_matrix(MathTokens tokens) {
    return tokens.size() > 8 && tokens[1].is_symbol('{') && tokens[3].is_symbol('}') &&
           tokens.back().is_symbol('}') && tokens[tokens.size() - 2].text == tokens[2].text &&
           tokens[tokens.size() - 4].is_command("\\end");
  }

  MathValue matrix(MathTokens tokens) {
    const std::string& kind = tokens[2].text;
    MathTokens inside = tokens.subspan(4, tokens.size() - 8);
    if (kind == "array" && inside.front().is_symbol('{')) {
      std::size_t end = 0;
      while (end < inside.size() && !inside[end].is_symbol('}')) {
        ++end;
      }
      inside = inside.subspan(std::min(end + 1, inside.size()));
    }
    auto rows = split(inside, [&](std::size_t i) { return inside[i].is_command("\\\\"); });
    std::erase_if(rows, [](MathTokens row) { return row.empty(); });
    MathValue value;
    value.kind = MathValue::Kind::matrix;
    std::size_t columns = 0;
    for (const MathTokens row : rows) {
      const auto cells = split(row, [&](std::size_t i) { return row[i].is_symbol('&'); });
      if (columns != 0 && cells.size() != columns) {
        throw MathRefusal("ragged matrix");
      }
      columns = cells.size();
      for (const MathTokens cell : cells) {
        value.parts.push_back(read(cell));
      }
      if (value.parts.size() > kMaxMathParts) {
        throw MathRefusal("too many elements");
      }
    }
    const bool determinant = kind == "vmatrix" || kind == "Vmatrix";
    value.label = (determinant ? kind : "matrix") + " " + std::to_string(columns);
    return value;
  }

  /// "204_5", "152A_{11}", "0.0011_2".
  static std::optional<MathValue> numeral(MathTokens tokens) {
    const auto mark = std::find_if(tokens.begin(), tokens.end(),
                                   [](const MathToken& token) { return token.is_symbol('_'); });
    if (mark == tokens.end()) {
      return std::nullopt;
    }
    std::string digits;
    for (const MathToken& token : tokens.first(static_cast<std::size_t>(mark - tokens.begin()))) {
      if (!digits.empty() && digits != "-" && token.is_symbol('-')) {
        return std::nullopt;
      }
      digits += token.text;
    }
    std::string base;
    for (const MathToken& token :
         tokens.subspan(static_cast<std::size_t>(mark - tokens.begin()) + 1)) {
      base += token.is_symbol('{') || token.is_symbol('}') ? "" : token.text;
    }
    const std::size_t sign = digits.starts_with('-') ? 1 : 0;
    const auto alphanumeric = [](char c) { return is_digit(c) || is_letter(c) || c == '.'; };
    if (digits.size() <= sign || !is_digit(digits[sign]) || base.empty() || base.size() > 2 ||
        !std::all_of(base.begin(), base.end(), is_digit) ||
        !std::all_of(digits.begin() + static_cast<std::ptrdiff_t>(sign), digits.end(),
                     alphanumeric)) {
      return std::nullopt;
    }
    MathValue value;
    value.kind = MathValue::Kind::numeral;
    for (char& c : digits) {
      c = lower(c);
    }
    value.label = digits + "_" + base;
    return value;
  }

  MathValue leaf(MathTokens given) {
    std::string unit;
    std::vector<MathToken> tokens = without_unit(given, unit);
    if (std::any_of(given.begin(), given.end(), [](const MathToken& t) { return t.dollars; })) {
      unit = "dollar";
    }
    if (tokens.size() == 1 && tokens[0].is_command("\\emptyset")) {
      MathValue value;
      value.kind = MathValue::Kind::set;
      return value;
    }
    const std::string words =
        std::all_of(tokens.begin(), tokens.end(), is_word) ? text_key(tokens) : std::string();
    if (words.starts_with("nosolution") || words.starts_with("norealsolution")) {
      MathValue value;
      value.kind = MathValue::Kind::set;
      return value;
    }
    if (const auto number = tokens.size() == 1 ? number_word(words) : std::nullopt) {
      MathValue value;
      value.scalar = algebra_.number(*number);
      value.unit = unit;
      return value;
    }
    if (is_real_line(tokens) || words == "allrealnumbers" || words == "allreals") {
      MathValue value;
      value.kind = MathValue::Kind::tuple;
      value.label = "()";
      value.parts = {infinity(-1), infinity(1)};
      return value;
    }
    const bool words_only = std::all_of(tokens.begin(), tokens.end(), [](const MathToken& token) {
      return token.kind == Kind::text;
    });
    if (words_only) {
      MathValue value;
      value.kind = MathValue::Kind::text;
      return value;
    }
    const auto signs = std::count_if(tokens.begin(), tokens.end(), [](const MathToken& token) {
      return token.is_command("\\pm") || token.is_command("\\mp");
    });
    if (signs > 1) {
      throw MathRefusal("several signs");
    }
    if (signs == 1) {
      return both_signs(tokens, unit);
    }
    return scalar(tokens, unit);
  }

  MathValue scalar(const std::vector<MathToken>& tokens, const std::string& unit) {
    MathValue value;
    value.unit = unit;
    try {
      value.scalar = parse_expression(algebra_, tokens);
    } catch (const MathRefusal&) {
      // Words may still be compared as such: "no solution", "\text{odd}x".
      if (std::none_of(tokens.begin(), tokens.end(), is_word)) {
        throw;
      }
      value.kind = MathValue::Kind::text;
    }
    return value;
  }

  MathValue both_signs(std::vector<MathToken>& tokens, const std::string& unit) {
    MathValue value;
    value.kind = MathValue::Kind::list;
    const auto sign = std::find_if(tokens.begin(), tokens.end(), [](const MathToken& token) {
      return token.is_command("\\pm") || token.is_command("\\mp");
    });
    for (const char* one : {"+", "-"}) {
      *sign = {Kind::symbol, one};
      value.parts.push_back(scalar(tokens, unit));
    }
    return value;
  }

  static bool is_real_line(const std::vector<MathToken>& tokens) {
    return (tokens.size() == 4 || tokens.size() == 2) && tokens[0].is_command("\\mathbb") &&
           tokens[tokens.size() / 2].text == "R";
  }

  /// `tokens` without the unit at their end; "percent" becomes "%".
  static std::vector<MathToken> without_unit(MathTokens tokens, std::string& unit) {
    std::vector<MathToken> rest(tokens.begin(), tokens.end());
    if (is_word(rest.back()) && text_key({&rest.back(), 1}) == "percent") {
      rest.back() = {Kind::symbol, "%"};
      return rest;
    }
    for (;;) {
      const std::size_t power = trailing_power(rest);
      const std::size_t at = rest.size() - power;
      if (at < 2 || !is_word(rest[at - 1])) {
        return rest;
      }
      auto found = unit_of(rest[at - 1], rest[at - 2].kind == Kind::number);
      if (!found) {
        return rest;
      }
      if (power > 0 && !found->empty()) {
        *found += "^" + text_key(MathTokens(rest).subspan(at + 1));
      }
      const std::string& word = rest[at - 1].text;
      if (unit.empty()) {
        unit = *found;
      } else if (rest[at - 1].kind == Kind::word && (word == "square" || word == "sq")) {
        unit += "^2";
      } else if (rest[at - 1].kind == Kind::word && word == "cubic") {
        unit += "^3";
      } else if (!found->empty()) {
        unit.insert(0, *found + " ");
      }
      rest.resize(at - 1);
    }
  }

  /// Tokens of "^2" or "^{2}" at the end.
  static std::size_t trailing_power(const std::vector<MathToken>& tokens) {
    const std::size_t n = tokens.size();
    if (n > 2 && tokens[n - 2].is_symbol('^') && tokens[n - 1].kind == Kind::number) {
      return 2;
    }
    return n > 4 && tokens[n - 4].is_symbol('^') && tokens[n - 3].is_symbol('{') &&
                   tokens[n - 2].kind == Kind::number && tokens[n - 1].is_symbol('}')
               ? 4
               : 0;
  }

  /// Unit of a word or of a whole \text{…}, where unknown words are what is counted. Nothing: not a
  /// unit.
  static std::optional<std::string> unit_of(const MathToken& token, bool behind_number) {
    if (token.kind == Kind::word) {
      // A longer word behind a number and a blank is what is counted: "12 bananas".
      const bool counted = behind_number && token.space_before && token.text.size() > 3 &&
                           std::all_of(token.text.begin(), token.text.end(), is_letter) &&
                           !changes_number(token.text);
      const bool power = token.text == "square" || token.text == "sq" || token.text == "cubic";
      const auto known = canonical_unit(token.text);
      return !known && (power || counted) ? std::optional<std::string>("") : known;
    }
    std::istringstream words(token.text);
    std::string unit;
    std::string power;
    for (std::string word; words >> word;) {
      if (changes_number(word)) {
        return std::nullopt;
      }
      if (word == "square" || word == "sq" || word == "sq.") {
        power = "^2";
      } else if (word == "cubic") {
        power = "^3";
      } else if (const auto known = canonical_unit(word); known && unit.empty()) {
        unit = known->empty() ? "" : *known + power;
      }
    }
    return unit;
  }

  MathAlgebra& algebra_;
  int depth_ = 0;
};

}  // namespace

bool MathValue::is_definition() const {
  if (kind != Kind::relation || label != "=") {
    return false;
  }
  const auto is_name = [](const MathValue& side) {
    return side.kind == Kind::scalar && !side.scalar.name.empty();
  };
  const MathValue& left = parts[0];
  return left.kind == Kind::text || is_name(left) ||
         (left.kind == Kind::tuple && std::all_of(left.parts.begin(), left.parts.end(), is_name));
}

MathValue read_math_value(MathAlgebra& algebra, MathTokens tokens) {
  return Reader(algebra).read(tokens);
}

}  // namespace jforge
