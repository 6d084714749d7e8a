#include "data/tasks/math/math_tokens.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <utility>

#include "data/tasks/math/answer_number.h"
#include "data/tasks/math/math_algebra.h"
#include "data/tasks/math/math_units.h"

namespace jforge {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '~'; }

using Names = std::unordered_map<std::string_view, std::string_view>;

/// Characters that plain_characters() leaves, and the LaTeX they stand for.
constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kUnicode{{
    {"π", "\\pi "},        {"√", "\\sqrt "},      {"∞", "\\infty "},     {"×", "\\times "},
    {"·", "\\cdot "},      {"÷", "\\div "},       {"°", "^\\circ "},     {"≤", "\\le "},
    {"≥", "\\ge "},        {"≠", "\\ne "},        {"∪", "\\cup "},       {"∈", "\\in "},
    {"±", "\\pm "},        {"²", "^{2}"},         {"³", "^{3}"},         {"θ", "\\theta "},
    {"½", "\\frac{1}{2}"}, {"¼", "\\frac{1}{4}"}, {"¾", "\\frac{3}{4}"}, {"≈", "\\approx "},
}};

/// Commands with several spellings.
const Names& spellings() {
  static const Names names{
      {"dfrac", "frac"},   {"tfrac", "frac"},   {"cfrac", "frac"},  {"dbinom", "binom"},
      {"tbinom", "binom"}, {"leq", "le"},       {"geq", "ge"},      {"leqslant", "le"},
      {"geqslant", "ge"},  {"lt", "<"},         {"gt", ">"},        {"neq", "ne"},
      {"bar", "overline"}, {"dot", "overline"}, {"ast", "cdot"},    {"degree", "circ"},
      {"lbrace", "{"},     {"rbrace", "}"},     {"lvert", "|"},     {"rvert", "|"},
      {"vert", "|"},       {"lbrack", "["},     {"rbrack", "]"},    {"varnothing", "emptyset"},
      {"arcsin", "asin"},  {"arccos", "acos"},  {"arctan", "atan"}, {"union", "cup"},
      {"colon", ":"},
  };
  return names;
}

/// Commands without meaning for the value.
bool is_silent(std::string_view name) {
  static const std::set<std::string_view> names{
      "left",
      "right",
      "big",
      "Big",
      "bigg",
      "Bigg",
      "bigl",
      "bigr",
      "Bigl",
      "Bigr",
      "quad",
      "qquad",
      "displaystyle",
      "textstyle",
      "limits",
      ",",
      ";",
      ":",
      "!",
      " ",
      "(",
      ")",
      "[",
      "]",
      "thinspace",
      "middle",
      "mathstrut",
      "biggl",
      "biggr",
      "scriptstyle",
      "bf",
      "rm",
      "it",
      "tt",
      "sf",
      "large",
      "Large",
      "small",
      "normalsize",
      "underline",
      "boxed",
      "fbox",
  };
  return names.contains(name);
}

/// Commands whose first argument does not show.
bool hides_argument(std::string_view name) {
  static const std::set<std::string_view> names{"color",    "textcolor", "phantom", "hphantom",
                                                "vphantom", "hspace",    "vspace"};
  return names.contains(name);
}

bool is_text_command(std::string_view name) {
  static const std::set<std::string_view> names{
      "text",   "mbox",   "textbf",     "textit",       "textrm", "texttt", "textsf",
      "textsc", "textup", "textnormal", "operatorname", "emph",   "hbox",   "textsl"};
  return names.contains(name);
}

/// Alphabets of mathematics: what they hold is read as if they were not there, unless it is words.
bool is_alphabet(std::string_view name) {
  static const std::set<std::string_view> names{"mathrm", "mathbf",    "mathit", "mathsf",
                                                "mathtt", "bm",        "pmb",    "boldsymbol",
                                                "bold",   "mathnormal"};
  return names.contains(name);
}

std::string plain_ascii(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      result += text[at++];
      continue;
    }
    const auto found = std::find_if(kUnicode.begin(), kUnicode.end(), [&](const auto& entry) {
      return text.substr(at).starts_with(entry.first);
    });
    if (found != kUnicode.end()) {
      result += found->second;
      at += found->first.size();
    } else {
      result += text[at++];
    }
  }
  return result;
}

class Tokenizer {
 public:
  Tokenizer(std::string_view text, CommaReading commas)
      : text_(plain_ascii(plain_characters(text))), commas_(commas) {}

  std::vector<MathToken> run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (is_space(c) || c == '$') {
        space_ = true;
        ++at_;
      } else if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
        read_number();
      } else if (is_letter(c)) {
        read_letters();
      } else if (c == '\\') {
        read_command();
      } else if ((c == '<' || c == '>') && peek(1) == '=') {
        at_ += 2;
        put(MathToken::Kind::command, c == '<' ? "\\le" : "\\ge");
      } else {
        ++at_;
        put(MathToken::Kind::symbol, std::string(1, c));
      }
    }
    if (dollars_ && !tokens_.empty()) {
      tokens_.back().dollars = true;
    }
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] char peek(std::size_t ahead) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void put(MathToken::Kind kind, std::string text) {
    if (tokens_.size() >= kMaxMathTokens) {
      throw MathRefusal("too long");
    }
    tokens_.push_back({kind, std::move(text), space_, dollars_});
    space_ = false;
    dollars_ = false;
    // LaTeX braces group and do not enclose a list.
    if (!tokens_.back().is_symbol('{') && !tokens_.back().is_symbol('}')) {
      depth_ += bracket_step(tokens_.back());
    }
  }

  /// Length of a separator of thousands at `from`: "{,}", ",\!" or, where a plain comma may be
  /// one, "," before exactly three digits. 0: none.
  [[nodiscard]] std::size_t separator(std::size_t from, std::size_t digits_before) const {
    const std::string_view rest = std::string_view(text_).substr(from);
    for (const std::string_view braced : {"{,}", "{, }"}) {
      if (rest.starts_with(braced)) {
        return rest.size() > braced.size() && is_digit(rest[braced.size()]) ? braced.size() : 0;
      }
    }
    if (!rest.starts_with(',')) {
      return 0;
    }
    std::size_t length = 1;
    bool tight = false;
    for (;;) {
      if (rest.substr(length).starts_with("\\!")) {
        tight = true;
        length += 2;
      } else if (length < rest.size() && is_space(rest[length])) {
        ++length;
      } else {
        break;
      }
    }
    const auto digit_at = [&](std::size_t i) { return i < rest.size() && is_digit(rest[i]); };
    if (tight) {
      return digit_at(length) ? length : 0;
    }
    const bool grouped = digit_at(1) && digit_at(2) && digit_at(3) && !digit_at(4);
    return commas_ == CommaReading::thousands && depth_ == 0 && digits_before <= 3 && grouped ? 1
                                                                                              : 0;
  }

  /// Length of the blanks, "\," and the like among them, at `from` where they group thousands:
  /// before exactly three digits that are not above a "/", in a number that is no index, exponent
  /// or argument ("\\log_2 100").
  [[nodiscard]] std::size_t grouping_blanks(std::size_t from) const {
    std::size_t digits = from;
    for (std::size_t blank = 1; blank > 0; digits += blank) {
      const std::string_view rest = std::string_view(text_).substr(digits);
      blank = !rest.empty() && is_space(rest[0]) ? 1
              : rest.starts_with("\\,") || rest.starts_with("\\;") || rest.starts_with("\\ ") ||
                      rest.starts_with("\\:")
                  ? 2
                  : 0;
    }
    std::size_t end = digits;
    while (end < text_.size() && is_digit(text_[end]) && end - digits <= 3) {
      ++end;
    }
    const bool above = end < text_.size() && text_[end] == '/';
    const auto takes_one_digit = [](const MathToken& token) {
      return token.is_symbol('_') || token.is_symbol('^') || token.is_command("\\frac") ||
             token.is_command("\\sqrt") || token.is_command("\\binom");
    };
    const bool whole = tokens_.empty() || !takes_one_digit(tokens_.back());
    return depth_ == 0 && whole && end - digits == 3 && !above ? digits - from : 0;
  }

  void read_number() {
    std::string number;
    std::size_t group = 0;
    bool grouped = false;
    bool blanks = false;
    for (;;) {
      while (is_digit(peek(0))) {
        number += text_[at_++];
        ++group;
      }
      std::size_t skip =
          blanks || group == 0 || (grouped && group != 3) ? 0 : separator(at_, group);
      if (skip == 0 && (blanks || !grouped) && group >= 1 && group <= 3) {
        skip = grouping_blanks(at_);
        blanks = skip > 0;
      }
      if (skip == 0) {
        break;
      }
      at_ += skip;
      grouped = true;
      group = 0;
    }
    const std::string_view behind = std::string_view(text_).substr(at_);
    const bool repeats = behind.starts_with(".\\overline") || behind.starts_with(".\\bar") ||
                         behind.starts_with(".\\dot{");
    if (peek(0) == '.' && (is_digit(peek(1)) || repeats)) {
      number += text_[at_++];
      while (is_digit(peek(0))) {
        number += text_[at_++];
      }
    }
    put(MathToken::Kind::number, std::move(number));
  }

  void read_letters() {
    const std::size_t begin = at_;
    while (is_letter(peek(0))) {
      ++at_;
    }
    std::string letters = text_.substr(begin, at_ - begin);
    const auto kind = letters.size() == 1 ? MathToken::Kind::name : MathToken::Kind::word;
    put(kind, std::move(letters));
  }

  void read_command() {
    const std::size_t begin = ++at_;
    while (is_letter(peek(0))) {
      ++at_;
    }
    if (at_ == begin && at_ < text_.size()) {
      ++at_;
    }
    std::string_view name = std::string_view(text_).substr(begin, at_ - begin);
    if (name == "$" || name == "dollar") {
      dollars_ = true;
      space_ = true;
      return;
    }
    if (is_silent(name)) {
      // "\left." and "\right." are brackets that do not show.
      if ((name == "left" || name == "right") && peek(0) == '.') {
        ++at_;
      }
      space_ = true;
      return;
    }
    if (hides_argument(name)) {
      while (is_space(peek(0))) {
        ++at_;
      }
      at_ = peek(0) == '{' ? group_end() + 1 : at_;
      return;
    }
    if (is_text_command(name) || is_alphabet(name)) {
      read_text(is_alphabet(name));
      return;
    }
    if (const auto known = spellings().find(name); known != spellings().end()) {
      name = known->second;
    }
    if (name == "%" || name == "<" || name == ">" || name == "|" || name == "[" || name == "]" ||
        name == ":" || name == "#" || name == "&") {
      put(MathToken::Kind::symbol, std::string(name));
      return;
    }
    put(MathToken::Kind::command, "\\" + std::string(name));
  }

  /// Position of the brace that closes the one at at_.
  [[nodiscard]] std::size_t group_end() const {
    int depth = 0;
    for (std::size_t end = at_; end < text_.size(); ++end) {
      depth += text_[end] == '{' ? 1 : (text_[end] == '}' ? -1 : 0);
      if (depth == 0) {
        return end;
      }
    }
    throw MathRefusal("text without end");
  }

  /// Content of a text command or alphabet. What has no letters, or is one letter or a formula in
  /// an alphabet, is read as mathematics: "\\texttt{5}", "\\boldsymbol{x^2}".
  void read_text(bool alphabet) {
    while (is_space(peek(0))) {
      ++at_;
    }
    if (peek(0) != '{') {
      if (alphabet) {
        return;
      }
      throw MathRefusal("text without braces");
    }
    const std::size_t begin = at_ + 1;
    const std::size_t end = group_end();
    const std::string_view inside = std::string_view(text_).substr(begin, end - begin);
    const auto letters = std::count_if(inside.begin(), inside.end(), is_letter);
    const bool words = std::all_of(inside.begin(), inside.end(), [](char c) {
      return is_letter(c) || is_space(c) || c == '.' || c == '-';
    });
    if (inside.find_first_of("0123456789") != std::string_view::npos
            ? alphabet || letters == 0
            : alphabet && (letters < 2 || !words)) {
      return;  // the braces group
    }
    at_ = end + 1;
    put_text(inside);
  }

  /// Commas in text separate as those outside do: "\text{A, B}".
  void put_text(std::string_view inside) {
    for (;;) {
      const std::size_t comma = inside.find(',');
      std::string_view part = inside.substr(0, comma);
      while (!part.empty() && is_space(part.front())) {
        part.remove_prefix(1);
      }
      while (!part.empty() && is_space(part.back())) {
        part.remove_suffix(1);
      }
      // "million dollars": the first word belongs to the number.
      const std::size_t blank = std::min(part.find_first_of(" ~"), part.size());
      if (blank < part.size() && number_scale(part.substr(0, blank))) {
        put(MathToken::Kind::text, std::string(part.substr(0, blank)));
        part.remove_prefix(blank + 1);
      }
      if (!part.empty()) {
        put(MathToken::Kind::text, std::string(part));
      }
      if (comma == std::string_view::npos) {
        return;
      }
      put(MathToken::Kind::symbol, ",");
      inside.remove_prefix(comma + 1);
    }
  }

  std::string text_;
  CommaReading commas_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool space_ = false;
  bool dollars_ = false;  ///< A "\\$" waits for its token.
  std::vector<MathToken> tokens_;
};

/// Length of the ending of an ordinal that follows the number before `at`: of "th", "^{th}".
std::size_t ordinal_ending(MathTokens tokens, std::size_t at) {
  const auto is_ending = [&](std::size_t i) {
    return i < tokens.size() &&
           (tokens[i].kind == MathToken::Kind::word || tokens[i].kind == MathToken::Kind::text) &&
           (tokens[i].text == "st" || tokens[i].text == "nd" || tokens[i].text == "rd" ||
            tokens[i].text == "th");
  };
  const auto is_symbol = [&](std::size_t i, char c) {
    return i < tokens.size() && tokens[i].is_symbol(c);
  };
  if (is_ending(at)) {
    return 1;
  }
  if (!is_symbol(at, '^')) {
    return 0;
  }
  return is_ending(at + 1)                                                       ? 2
         : is_symbol(at + 1, '{') && is_ending(at + 2) && is_symbol(at + 3, '}') ? 4
                                                                                 : 0;
}

/// Without endings of ordinals, heights of rows ("\\[2ex]") and line breaks at the end; "9 x 10^2"
/// is a product.
std::vector<MathToken> without_trimmings(std::vector<MathToken> tokens) {
  while (!tokens.empty() && tokens.back().is_command("\\\\")) {
    tokens.pop_back();
  }
  std::vector<MathToken> result;
  const auto is_number = [&](std::size_t i) {
    return i < tokens.size() && tokens[i].kind == MathToken::Kind::number;
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool behind_number = i > 0 && is_number(i - 1);
    if (const std::size_t ending = behind_number ? ordinal_ending(tokens, i) : 0; ending > 0) {
      i += ending - 1;
      continue;
    }
    MathToken token = tokens[i];
    if (behind_number && token.kind == MathToken::Kind::name && token.text == "x" &&
        is_number(i + 1) && tokens[i + 1].text == "10" && i + 2 < tokens.size() &&
        tokens[i + 2].is_symbol('^')) {
      token = {.kind = MathToken::Kind::command, .text = "\\times"};
    }
    const bool height = token.is_command("\\\\") && i + 4 < tokens.size() &&
                        tokens[i + 1].is_symbol('[') && is_number(i + 2) &&
                        tokens[i + 3].kind == MathToken::Kind::word && tokens[i + 4].is_symbol(']');
    result.push_back(std::move(token));
    i += height ? 4 : 0;
  }
  return result;
}

/// "{a \\over b}" to "{\\frac{a}{b}}", "{a \\choose b}" to "{\\binom{a}{b}}".
std::vector<MathToken> with_fractions(std::vector<MathToken> tokens) {
  const auto is_over = [](const MathToken& token) {
    return token.is_command("\\over") || token.is_command("\\choose");
  };
  for (auto over = std::find_if(tokens.begin(), tokens.end(), is_over); over != tokens.end();
       over = std::find_if(tokens.begin(), tokens.end(), is_over)) {
    if (tokens.size() + 5 > kMaxMathTokens) {
      throw MathRefusal("too long");
    }
    // The innermost braces around it hold both parts.
    const auto limit = [&](auto at, auto stop, char nested, char closing, int step) {
      for (int depth = 0; at != stop; at += step) {
        const MathToken& token = step < 0 ? *(at - 1) : *at;
        depth += token.is_symbol(nested) ? 1 : (token.is_symbol(closing) ? -1 : 0);
        if (depth < 0) {
          break;
        }
      }
      return at;
    };
    const auto begin = limit(over, tokens.begin(), '}', '{', -1);
    const auto end = limit(over + 1, tokens.end(), '{', '}', 1);
    const auto symbol = [](const char* text) {
      return MathToken{.kind = MathToken::Kind::symbol, .text = text};
    };
    std::vector<MathToken> result(tokens.begin(), begin);
    result.push_back({.kind = MathToken::Kind::command,
                      .text = over->is_command("\\over") ? "\\frac" : "\\binom"});
    result.push_back(symbol("{"));
    result.insert(result.end(), begin, over);
    result.insert(result.end(), {symbol("}"), symbol("{")});
    result.insert(result.end(), over + 1, end);
    result.push_back(symbol("}"));
    result.insert(result.end(), end, tokens.end());
    tokens = std::move(result);
  }
  return tokens;
}

}  // namespace

std::vector<MathToken> math_tokens(std::string_view answer, CommaReading commas) {
  return with_fractions(without_trimmings(Tokenizer(answer, commas).run()));
}

int bracket_step(const MathToken& token) {
  const std::string_view text = token.text;
  if (token.kind == MathToken::Kind::symbol) {
    return text == "(" || text == "[" || text == "{"   ? 1
           : text == ")" || text == "]" || text == "}" ? -1
                                                       : 0;
  }
  if (token.kind == MathToken::Kind::command) {
    return text == "\\{" || text == "\\langle" || text == "\\begin" ? 1
           : text == "\\}" || text == "\\rangle" || text == "\\end" ? -1
                                                                    : 0;
  }
  return 0;
}

}  // namespace jforge
