#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "data/tokenizer/jinja/syntax_internal.h"
#include "data/tokenizer/jinja/text_internal.h"
#include "data/tokenizer/jinja/value.h"
#include "data/tokenizer/unicode.h"
#include "runtime/ascii.h"

namespace jforge::jinja {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

/// Converts line ends to "\n" and drops the last one, as jinja2 does.
std::string with_plain_line_ends(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t tag = find_tag();
      const std::string_view data = rest().substr(0, tag - at_);
      if (tag == text_.size()) {
        add_data(data);
        break;
      }
      const char kind = text_[tag + 1];
      const std::size_t inside = begin_tag(data, tag, kind != '{');
      if (kind == '#') {
        skip_comment(inside);
      } else {
        read_tag(inside, kind == '{');
      }
    }
    tokens_.push_back({.kind = Token::Kind::end, .line = line_});
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  [[noreturn]] void fail(const std::string& what) const { throw TemplateError(line_, what); }

  [[nodiscard]] std::string_view rest(std::size_t from) const {
    return std::string_view(text_).substr(from);
  }
  [[nodiscard]] std::string_view rest() const { return rest(at_); }

  [[nodiscard]] std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < text_.size(); ++i) {
      const char next = text_[i + 1];
      if (text_[i] == '{' && (next == '{' || next == '%' || next == '#')) return i;
    }
    return text_.size();
  }

  void add_data(std::string_view data) {
    if (!data.empty()) {
      tokens_.push_back({.kind = Kind::data, .line = line_, .text = std::string(data)});
    }
  }

  void move_to(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    line_start_ = end > at_ ? text_[end - 1] == '\n' : line_start_;
    at_ = end;
  }

  /// Returns the offset after the white space at `from`.
  [[nodiscard]] std::size_t skip_spaces(std::size_t from) const {
    return text_.size() - strip(rest(from), Side::left).size();
  }

  /// Adds the text before a tag, stripped as the tag demands.
  std::size_t begin_tag(std::string_view data, std::size_t tag, bool strips_line) {
    std::size_t inside = tag + 2;
    const char sign = inside < text_.size() ? text_[inside] : ' ';
    if (sign == '-') {
      ++inside;
      data = strip(data, Side::right);
    } else if (strips_line) {
      const std::size_t line_begin = data.rfind('\n') + 1;
      if ((line_begin > 0 || line_start_) && strip(data.substr(line_begin), Side::left).empty()) {
        data = data.substr(0, line_begin);
      }
    }
    add_data(data);
    move_to(inside);
    if (sign == '+') fail("'+' at the begin of a tag is not supported");
    return inside;
  }

  /// Returns the size of the tag's end at `at`, including stripped white space; 0 if there is none.
  [[nodiscard]] std::size_t end_size(std::size_t at, std::string_view end, bool trims_line) const {
    const std::string_view text = rest(at);
    if (text.starts_with('-') && text.substr(1).starts_with(end)) {
      return skip_spaces(at + 1 + end.size()) - at;
    }
    if (!text.starts_with(end)) return 0;
    return end.size() + (trims_line && text.substr(end.size()).starts_with('\n') ? 1 : 0);
  }

  void read_raw() {
    for (std::size_t tag = at_; (tag = text_.find("{%", tag)) != std::string::npos; tag += 2) {
      const std::size_t name = skip_spaces(tag + (rest(tag + 2).starts_with('-') ? 3 : 2));
      if (!rest(name).starts_with("endraw")) continue;
      const std::size_t end = skip_spaces(name + std::string_view("endraw").size());
      const std::size_t size = end_size(end, "%}", true);
      if (size == 0) continue;
      begin_tag(rest().substr(0, tag - at_), tag, true);
      return move_to(end + size);
    }
    fail("'raw' without its end");
  }

  void skip_comment(std::size_t inside) {
    for (std::size_t i = inside; i < text_.size(); ++i) {
      if (const std::size_t size = end_size(i, "#}", true)) {
        move_to(i + size);
        return;
      }
    }
    fail("a comment without its end");
  }

  void read_tag(std::size_t inside, bool prints) {
    at_ = inside;
    tokens_.push_back({.kind = prints ? Kind::print_begin : Kind::statement_begin, .line = line_});
    std::string open;  // Expected closing brackets.
    while (at_ < text_.size()) {
      if (open.empty()) {
        const bool raw = !prints && tokens_.back().kind == Kind::name &&
                         tokens_.back().text == "raw" &&
                         tokens_[tokens_.size() - 2].kind == Kind::statement_begin;
        if (const std::size_t size = end_size(at_, prints ? "}}" : "%}", !prints && !raw)) {
          if (raw) {
            tokens_.resize(tokens_.size() - 2);
            move_to(at_ + size);
            return read_raw();
          }
          tokens_.push_back(
              {.kind = prints ? Kind::print_end : Kind::statement_end, .line = line_});
          move_to(at_ + size);
          return;
        }
      }
      if (const std::size_t next = skip_spaces(at_); next > at_) {
        move_to(next);
      } else {
        read_token(open);
      }
    }
    fail("a tag without its end");
  }

  void read_token(std::string& open) {
    const char c = text_[at_];
    std::size_t end = at_ + 1;
    if (is_digit(c)) {
      end = read_number();
    } else if (is_name_start(c)) {
      while (end < text_.size() && is_name_part(text_[end])) ++end;
      tokens_.push_back(
          {.kind = Kind::name, .line = line_, .text = std::string(rest().substr(0, end - at_))});
    } else if (c == '\'' || c == '"') {
      while (end < text_.size() && text_[end] != c) end += text_[end] == '\\' ? 2 : 1;
      if (end >= text_.size()) fail("a string without its end");
      read_string(rest().substr(1, end - at_ - 1));
      ++end;
    } else {
      end = read_sign(open);
    }
    move_to(end);
  }

  std::size_t read_sign(std::string& open) {
    std::string_view sign = rest().substr(0, 2);
    constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    if (std::ranges::find(kLong, sign) == kLong.end()) sign = sign.substr(0, 1);
    if (sign.size() == 1 && std::string_view("+-*/%~[](){}><=.:|,;").find(sign) == sign.npos) {
      const std::size_t length = code_point_at(rest(), 0).length;
      fail(fmt::format("unexpected character '{}'", rest().substr(0, length)));
    }
    constexpr std::string_view kOpen = "{([";
    constexpr std::string_view kClose = "})]";
    if (const std::size_t bracket = kOpen.find(sign); bracket != std::string_view::npos) {
      open += kClose[bracket];
    } else if (kClose.find(sign) != std::string_view::npos) {
      if (!open.ends_with(sign)) fail(fmt::format("unexpected '{}'", sign));
      open.pop_back();
    }
    tokens_.push_back({.kind = Kind::sign, .line = line_, .text = std::string(sign)});
    return at_ + sign.size();
  }

  std::size_t read_number() {
    std::size_t end = at_;
    while (end < text_.size() && is_name_part(text_[end])) ++end;
    // "x.0.5" indexes twice.
    const bool is_key = tokens_.back().kind == Kind::sign && tokens_.back().text == ".";
    if (!is_key && rest(end).starts_with('.') && end + 1 < text_.size() &&
        is_digit(text_[end + 1])) {
      while (++end < text_.size() && is_name_part(text_[end])) {
      }
    }
    const std::string digits(rest().substr(0, end - at_));
    Token token{.kind = Kind::integer, .line = line_};
    const char* const last = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), last, token.integer);
    if (parsed.ec != std::errc() || parsed.ptr != last || (digits[0] == '0' && digits.size() > 1)) {
      token.kind = Kind::unsupported;
      token.text = fmt::format("the number '{}'", digits);
    }
    tokens_.push_back(std::move(token));
    return end;
  }

  /// Adds a string; its escapes are Python's.
  void read_string(std::string_view text) {
    constexpr std::string_view kLetters = "ntrb\\'\"";
    constexpr std::string_view kValues = "\n\t\r\b\\'\"";
    Token token{.kind = Kind::string, .line = line_};
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '\\') {
        token.text += text[at];
        continue;
      }
      ++at;  // Never the last character.
      const std::size_t letter = kLetters.find(text[at]);
      if (letter == std::string_view::npos) {
        token.kind = Kind::unsupported;
        token.text = fmt::format("the escape '\\{}' in a string",
                                 text.substr(at, code_point_at(text, at).length));
        break;
      }
      token.text += kValues[letter];
    }
    tokens_.push_back(std::move(token));
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // The previous character ended a line.
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  return Lexer(with_plain_line_ends(source)).run();
}

}  // namespace jforge::jinja
