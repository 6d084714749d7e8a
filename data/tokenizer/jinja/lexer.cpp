#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "data/tokenizer/jinja/lexer_internal.h"
#include "data/tokenizer/jinja/text_internal.h"
#include "data/tokenizer/jinja/value.h"
#include "data/tokenizer/unicode.h"

namespace jforge::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

/// Any line end is "\n" to jinja2, and one at the end of a template is dropped.
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
      if (const std::size_t size = raw_tag(tag, "raw", false); kind == '%' && size > 0) {
        read_raw(data, tag, size);
        continue;
      }
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

  /// Goes on to `end`, counting lines.
  void move_to(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    line_start_ = end > at_ ? text_[end - 1] == '\n' : line_start_;
    at_ = end;
  }

  /// Behind the spaces that begin at `from`.
  [[nodiscard]] std::size_t skip_spaces(std::size_t from) const {
    return text_.size() - strip(rest(from), Side::left).size();
  }

  /// Adds the text before a tag, without the blanks that the tag takes away, and moves into it.
  std::size_t begin_tag(std::string_view data, std::size_t tag, bool strips_line) {
    std::size_t inside = tag + 2;
    const char sign = inside < text_.size() ? text_[inside] : ' ';
    if (sign == '-' || sign == '+') ++inside;
    if (sign == '-') {
      data = strip(data, Side::right);
    } else if (sign != '+' && strips_line) {
      const std::size_t line_begin = data.rfind('\n') + 1;  // 0 where there is none
      if ((line_begin > 0 || line_start_) && strip(data.substr(line_begin), Side::left).empty()) {
        data = data.substr(0, line_begin);
      }
    }
    add_data(data);
    move_to(inside);
    return inside;
  }

  /// Size of `{% name %}` at `tag`, 0 when it is something else. One that ends raw text takes
  /// blanks behind it away as others do.
  [[nodiscard]] std::size_t raw_tag(std::size_t tag, std::string_view name, bool ends) const {
    std::size_t at = tag + 2;
    if (!rest(tag).starts_with("{%")) return 0;
    if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) ++at;
    at = skip_spaces(at);
    if (!rest(at).starts_with(name)) return 0;
    at = skip_spaces(at + name.size());
    if (ends) {
      const std::size_t size = end_size(at, "%}", true);
      return size == 0 ? 0 : at + size - tag;
    }
    if (rest(at).starts_with("-%}")) return skip_spaces(at + 3) - tag;
    return rest(at).starts_with("%}") ? at + 2 - tag : 0;
  }

  /// Size of the end of a tag at `at`, with the blanks behind it that go with it; 0 if none is
  /// there.
  [[nodiscard]] std::size_t end_size(std::size_t at, std::string_view end, bool trims_line) const {
    const std::string_view text = rest(at);
    if (text.starts_with('-') && text.substr(1).starts_with(end)) {
      return skip_spaces(at + 1 + end.size()) - at;
    }
    if (trims_line && text.starts_with('+') && text.substr(1).starts_with(end)) {
      return 1 + end.size();
    }
    if (!text.starts_with(end)) return 0;
    return end.size() + (trims_line && text.substr(end.size()).starts_with('\n') ? 1 : 0);
  }

  void read_raw(std::string_view data, std::size_t tag, std::size_t size) {
    begin_tag(data, tag, true);
    move_to(tag + size);
    for (std::size_t i = at_; i < text_.size(); ++i) {
      if (text_[i] != '{') continue;
      const std::size_t end = raw_tag(i, "endraw", true);
      if (end == 0) continue;
      begin_tag(rest().substr(0, i - at_), i, true);
      move_to(i + end);
      return;
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
    std::string open;  // Closing brackets that are due.
    while (at_ < text_.size()) {
      if (open.empty()) {
        if (const std::size_t size = end_size(at_, prints ? "}}" : "%}", !prints)) {
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
      tokens_.push_back({.kind = Kind::string,
                         .line = line_,
                         .text = unescaped(rest().substr(1, end - at_ - 1))});
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
    const auto digits_end = [this](std::size_t at) {
      while (at < text_.size() &&
             (is_digit(text_[at]) ||
              (text_[at] == '_' && at + 1 < text_.size() && is_digit(text_[at + 1])))) {
        ++at;
      }
      return at;
    };
    const auto digit_at = [this](std::size_t at) {
      return at < text_.size() && is_digit(text_[at]);
    };
    const std::size_t whole = digits_end(at_);
    std::size_t end = whole;
    // "x.0.5" are two elements.
    if (tokens_.back().kind != Kind::sign || tokens_.back().text != ".") {
      if (end < text_.size() && text_[end] == '.' && digit_at(end + 1)) end = digits_end(end + 1);
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        const bool sign =
            end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
        if (digit_at(end + (sign ? 2 : 1))) end = digits_end(end + (sign ? 2 : 1));
      }
    }
    std::string digits(rest().substr(0, end - at_));
    std::erase(digits, '_');
    const char* const last = digits.data() + digits.size();
    Token token{.kind = end == whole ? Kind::integer : Kind::real, .line = line_, .text = digits};
    const auto parsed = end == whole ? std::from_chars(digits.data(), last, token.integer)
                                     : std::from_chars(digits.data(), last, token.real);
    const bool prefixed =
        end == whole && digits.size() > 1 && digits[0] == '0' && token.integer > 0;
    if (parsed.ec != std::errc() || parsed.ptr != last || prefixed ||
        (digits == "0" && end < text_.size() && is_name_start(text_[end]))) {
      fail(fmt::format("the number '{}' is not supported", digits));
    }
    tokens_.push_back(std::move(token));
    return end;
  }

  /// The value of a string with the escapes of Python, as jinja2 reads it.
  [[nodiscard]] std::string unescaped(std::string_view text) const {
    constexpr std::string_view kLetters = "ntr\\'\"abfv";
    constexpr std::string_view kValues = "\n\t\r\\'\"\a\b\f\v";
    std::string value;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '\\') {
        value += text[at];
        continue;
      }
      const char escaped = text[++at];  // The lexer leaves no backslash at the end.
      const std::size_t letter = kLetters.find(escaped);
      if (letter != std::string_view::npos) {
        value += kValues[letter];
      } else if (escaped == 'x' || escaped == 'u' || escaped == 'U') {
        const std::size_t digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : 8;
        append_code(value, text.substr(at + 1, digits), digits, 16);
        at += digits;
      } else if (escaped >= '0' && escaped <= '7') {
        std::size_t digits = 1;
        while (digits < 3 && at + digits < text.size() && text[at + digits] >= '0' &&
               text[at + digits] <= '7') {
          ++digits;
        }
        append_code(value, text.substr(at, digits), digits, 8);
        at += digits - 1;
      } else if (escaped == 'N') {
        fail("the escape '\\N' in a string is not supported");
      } else if (escaped != '\n') {
        at += append_unknown_escape(value, text, at);
      }
    }
    return value;
  }

  void append_code(std::string& value, std::string_view text, std::size_t digits, int base) const {
    std::uint32_t code = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), code, base);
    const bool scalar = code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
    if (text.size() != digits || parsed.ptr != text.data() + digits || !scalar) {
      fail("a malformed escape in a string");
    }
    append_utf8(value, code);
  }

  /// A backslash that begins no escape stays; returns how many bytes more than one it stood before.
  static std::size_t append_unknown_escape(std::string& value, std::string_view text,
                                           std::size_t at) {
    value += '\\';
    const CodePoint point = code_point_at(text, at);
    const auto code = static_cast<std::uint32_t>(point.value);
    if (code < 0x80) {
      value += text[at];
    } else {
      // jinja2 writes characters as escapes first, so that the backslash takes that one's away.
      value += code < 0x100     ? fmt::format("x{:02x}", code)
               : code < 0x10000 ? fmt::format("u{:04x}", code)
                                : fmt::format("U{:08x}", code);
    }
    return point.length - 1;
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // What comes last ended a line.
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  return Lexer(with_plain_line_ends(source)).run();
}

}  // namespace jforge::jinja
