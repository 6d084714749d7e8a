#include "data/tasks/math/math_tokens.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <utility>

#include "data/tasks/math/math_algebra.h"

namespace jforge {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '~'; }

using Names = std::unordered_map<std::string_view, std::string_view>;

/// Characters beyond ASCII and the LaTeX they stand for.
constexpr std::array<std::pair<std::string_view, std::string_view>, 22> kUnicode{{
    {"π", "\\pi "},
    {"√", "\\sqrt "},
    {"∞", "\\infty "},
    {"×", "\\times "},
    {"·", "\\cdot "},
    {"÷", "\\div "},
    {"−", "-"},
    {"–", "-"},
    {"°", "^\\circ "},
    {"≤", "\\le "},
    {"≥", "\\ge "},
    {"≠", "\\ne "},
    {"∪", "\\cup "},
    {"∈", "\\in "},
    {"±", "\\pm "},
    {"²", "^{2}"},
    {"³", "^{3}"},
    {"θ", "\\theta "},
    {"½", "\\frac{1}{2}"},
    {"¼", "\\frac{1}{4}"},
    {"¾", "\\frac{3}{4}"},
    {"≈", "\\approx "},
}};

/// Commands with several spellings.
const Names& spellings() {
  static const Names names{
      {"dfrac", "frac"},
      {"tfrac", "frac"},
      {"cfrac", "frac"},
      {"dbinom", "binom"},
      {"tbinom", "binom"},
      {"leq", "le"},
      {"geq", "ge"},
      {"leqslant", "le"},
      {"geqslant", "ge"},
      {"lt", "<"},
      {"gt", ">"},
      {"neq", "ne"},
      {"bar", "overline"},
      {"ast", "cdot"},
      {"degree", "circ"},
      {"lbrace", "{"},
      {"rbrace", "}"},
      {"lvert", "|"},
      {"rvert", "|"},
      {"vert", "|"},
      {"lbrack", "["},
      {"rbrack", "]"},
      {"varnothing", "emptyset"},
      {"arcsin", "asin"},
      {"arccos", "acos"},
      {"arctan", "atan"},
      {"union", "cup"},
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
  };
  return names.contains(name);
}

bool is_text_command(std::string_view name) {
  static const std::set<std::string_view> names{"text",       "mbox",         "textbf", "textit",
                                                "textrm",     "mathrm",       "mathbf", "hbox",
                                                "textnormal", "operatorname", "mathit", "emph"};
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
      : text_(plain_ascii(text)), commas_(commas) {}

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
    if (rest.starts_with("{,}")) {
      return rest.size() > 3 && is_digit(rest[3]) ? 3 : 0;
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

  /// Length of the blanks at `from` where they group thousands: before exactly three digits that
  /// are not above a "/", in a number that is no index, exponent or argument ("\\log_2 100").
  [[nodiscard]] std::size_t grouping_blanks(std::size_t from) const {
    std::size_t digits = from;
    while (digits < text_.size() && is_space(text_[digits])) {
      ++digits;
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
    const bool repeats = std::string_view(text_).substr(at_).starts_with(".\\overline") ||
                         std::string_view(text_).substr(at_).starts_with(".\\bar");
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
    if (is_text_command(name)) {
      read_text();
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

  void read_text() {
    while (is_space(peek(0))) {
      ++at_;
    }
    if (peek(0) != '{') {
      throw MathRefusal("text without braces");
    }
    const std::size_t begin = ++at_;
    int depth = 1;
    for (; at_ < text_.size(); ++at_) {
      depth += text_[at_] == '{' ? 1 : (text_[at_] == '}' ? -1 : 0);
      if (depth == 0) {
        std::string_view inside = std::string_view(text_).substr(begin, at_ - begin);
        ++at_;
        put_text(inside);
        return;
      }
    }
    throw MathRefusal("text without end");
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

}  // namespace

std::vector<MathToken> math_tokens(std::string_view answer, CommaReading commas) {
  return Tokenizer(answer, commas).run();
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
