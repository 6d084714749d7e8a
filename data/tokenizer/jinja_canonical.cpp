#include "data/tokenizer/jinja_canonical.h"

#include <fmt/core.h>

#include <charconv>
#include <vector>

#include "data/tokenizer/unicode.h"
#include "runtime/error.h"

namespace jforge {
namespace {

/// One token inside a tag: a name, number, operator, or a string constant (`text` is its value).
struct Lexeme {
  enum class Kind { name, number, string, sign };
  Kind kind;
  std::string text;
};

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_space(char c) { return is_blank(c) || c == '\n' || c == '\r'; }

class Canonicaliser {
 public:
  Canonicaliser(std::string_view source, const std::string& origin)
      : source_(source), origin_(origin) {
    // Jinja drops one line end at the end of a template.
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  std::string run() {
    while (true) {
      const std::size_t tag = find_tag();
      std::string_view text = source_.substr(at_, tag - at_);
      if (tag == source_.size()) {
        add_text(text);
        return std::move(out_);
      }
      const char kind = source_[tag + 1];
      at_ = tag + 2;
      add_text(strip_before_tag(text, kind));
      if (kind == '#') {
        skip_comment();
      } else {
        read_tag(kind);
      }
      strip_after_tag(kind);
    }
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw DataError(fmt::format("{}: the chat template {} at byte {}", origin_, what, at_));
  }

  [[nodiscard]] std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      const char next = source_[i + 1];
      if (source_[i] == '{' && (next == '{' || next == '%' || next == '#')) return i;
    }
    return source_.size();
  }

  void add_text(std::string_view text) {
    for (const char c : text) {
      if (c == kTagOpen || c == kTagClose) fail("holds a control character");
    }
    out_ += text;
  }

  /// Applies `{%-` and lstrip_blocks to the text before a tag and consumes the sign.
  std::string_view strip_before_tag(std::string_view text, char kind) {
    const char sign = at_ < source_.size() ? source_[at_] : ' ';
    if (sign == '-' || sign == '+') ++at_;
    if (sign == '-') {
      while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    } else if (sign != '+' && kind != '{') {
      std::size_t begin = text.size();
      while (begin > 0 && is_blank(text[begin - 1])) --begin;
      const bool own_line = begin == 0 ? line_start_ : text[begin - 1] == '\n';
      if (own_line) text = text.substr(0, begin);
    }
    return text;
  }

  /// Applies `-%}` and trim_blocks to the text after a tag.
  void strip_after_tag(char kind) {
    line_start_ = false;
    if (trim_after_) {
      while (at_ < source_.size() && is_space(source_[at_])) {
        line_start_ = source_[at_] == '\n';
        ++at_;
      }
    } else if (kind != '{' && !keep_after_ && at_ < source_.size() && source_[at_] == '\n') {
      line_start_ = true;
      ++at_;
    }
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) fail("has a comment without end");
    trim_after_ = end > at_ && source_[end - 1] == '-';
    keep_after_ = end > at_ && source_[end - 1] == '+';
    at_ = end + 2;
  }

  void read_tag(char kind) {
    const std::string_view close = kind == '{' ? "}}" : "%}";
    std::vector<Lexeme> lexemes;
    trim_after_ = keep_after_ = false;
    while (true) {
      while (at_ < source_.size() && is_space(source_[at_])) ++at_;
      if (at_ >= source_.size()) fail("has a tag without end");
      const char c = source_[at_];
      const bool signed_close = (c == '-' || c == '+') && source_.substr(at_ + 1, 2) == close;
      if (signed_close || source_.substr(at_, 2) == close) {
        trim_after_ = signed_close && c == '-';
        keep_after_ = signed_close && c == '+';
        at_ += signed_close ? 3 : 2;
        break;
      }
      lexemes.push_back(read_lexeme());
    }
    lexemes = with_attributes(lexemes);
    if (kind == '{') {
      add_expression(lexemes);
    } else {
      add_tag(lexemes, "");
    }
  }

  Lexeme read_lexeme() {
    const char c = source_[at_];
    if (c == '\'' || c == '"') return {Lexeme::Kind::string, read_string(c)};
    const bool name = is_name_start(c);
    if (name || is_digit(c)) {
      const std::size_t begin = at_;
      while (at_ < source_.size() && (is_name_start(source_[at_]) || is_digit(source_[at_]))) ++at_;
      return {name ? Lexeme::Kind::name : Lexeme::Kind::number,
              std::string(source_.substr(begin, at_ - begin))};
    }
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (source_.substr(at_, 2) == two) {
        at_ += 2;
        return {Lexeme::Kind::sign, std::string(two)};
      }
    }
    if (std::string_view("+-*/%~|.,:()[]{}<>=").find(c) == std::string_view::npos) {
      fail(fmt::format("has an unexpected character '{}'", c));
    }
    ++at_;
    return {Lexeme::Kind::sign, std::string(1, c)};
  }

  /// The value of a string constant, with the escapes of Python, as Jinja reads it.
  std::string read_string(char quote) {
    std::string value;
    for (++at_; at_ < source_.size(); ++at_) {
      const char c = source_[at_];
      if (c == quote) {
        ++at_;
        return value;
      }
      if (c == kTagOpen || c == kTagClose) fail("holds a control character");
      if (c != '\\') {
        value += c;
        continue;
      }
      if (++at_ == source_.size()) break;
      read_escape(source_[at_], value);
    }
    fail("has a string without end");
  }

  void read_escape(char escaped, std::string& value) {
    constexpr std::string_view kLetters = "ntr\\'\"abfv";
    constexpr std::string_view kValues = "\n\t\r\\'\"\a\b\f\v";
    const std::size_t letter = kLetters.find(escaped);
    if (letter != std::string_view::npos) {
      value += kValues[letter];
    } else if (escaped == 'x' || escaped == 'u' || escaped == 'U') {
      const std::size_t digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : 8;
      const std::string_view hex = source_.substr(at_ + 1, digits);
      std::uint32_t code = 0;
      const auto parsed = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
      const bool scalar = code > 2 && code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
      if (hex.size() != digits || parsed.ptr != hex.data() + digits || !scalar) {
        fail("has a malformed escape");
      }
      append_utf8(value, code);
      at_ += digits;
    } else if (is_digit(escaped) || escaped == 'N' || escaped == '\n') {
      fail(fmt::format("has the unsupported escape '\\{}'", escaped));
    } else {
      value += '\\';
      value += escaped;
    }
  }

  /// `x['name']` becomes `x.name`.
  static std::vector<Lexeme> with_attributes(const std::vector<Lexeme>& in) {
    std::vector<Lexeme> out;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const bool after_value = !out.empty() && (out.back().kind == Lexeme::Kind::name ||
                                                out.back().text == "]" || out.back().text == ")");
      const bool subscript = after_value && i + 2 < in.size() && in[i].text == "[" &&
                             in[i].kind == Lexeme::Kind::sign &&
                             in[i + 1].kind == Lexeme::Kind::string && in[i + 2].text == "]";
      if (subscript) {
        out.push_back({Lexeme::Kind::sign, "."});
        out.push_back({Lexeme::Kind::name, in[i + 1].text});
        i += 2;
      } else {
        out.push_back(in[i]);
      }
    }
    return out;
  }

  void add_tag(const std::vector<Lexeme>& lexemes, std::string_view prefix) {
    out_ += kTagOpen;
    out_ += prefix;
    for (std::size_t i = 0; i < lexemes.size(); ++i) {
      if (i > 0) out_ += ' ';
      const bool string = lexemes[i].kind == Lexeme::Kind::string;
      out_ += string ? '"' + lexemes[i].text + '"' : lexemes[i].text;
    }
    out_ += kTagClose;
  }

  /// A sum of string constants and plain values is printed operand by operand; any other expression
  /// stays whole.
  void add_expression(const std::vector<Lexeme>& lexemes) {
    std::vector<std::vector<Lexeme>> operands(1);
    bool sum = true;
    for (const Lexeme& lexeme : lexemes) {
      const bool sign = lexeme.kind == Lexeme::Kind::sign;
      if (sign && (lexeme.text == "+" || lexeme.text == "~")) {
        operands.emplace_back();
        continue;
      }
      const bool part_of_value = lexeme.text == "." || lexeme.text == "[" || lexeme.text == "]";
      sum = sum && (!sign || part_of_value);
      operands.back().push_back(lexeme);
    }
    for (const auto& operand : operands) {
      bool keyword = operand.empty();
      for (const Lexeme& lexeme : operand) {
        keyword = keyword || (lexeme.kind == Lexeme::Kind::name &&
                              (lexeme.text == "if" || lexeme.text == "else" ||
                               lexeme.text == "and" || lexeme.text == "or" ||
                               lexeme.text == "not" || lexeme.text == "is" || lexeme.text == "in"));
      }
      sum = sum && !keyword;
    }
    if (!sum) {
      add_tag(lexemes, "= ");
      return;
    }
    for (const auto& operand : operands) {
      if (operand.size() == 1 && operand[0].kind == Lexeme::Kind::string) {
        out_ += operand[0].text;
      } else {
        add_tag(operand, "= ");
      }
    }
  }

  std::string_view source_;
  const std::string& origin_;
  std::size_t at_ = 0;
  bool line_start_ = true;   // the text at at_ begins a line
  bool trim_after_ = false;  // the last tag ended in -%}
  bool keep_after_ = false;  // the last tag ended in +%}
  std::string out_;
};

}  // namespace

std::string canonical_jinja(std::string_view source, const std::string& origin) {
  // Jinja reads any line end as "\n".
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  return Canonicaliser(text, origin).run();
}

}  // namespace jforge
