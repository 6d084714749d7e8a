#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/pre_tokenizer.h"

#include <fmt/core.h>
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "data/tokenizer/unicode.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr std::string_view kWhiteSpaceSet =
    R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

[[noreturn]] void refuse_pattern(const std::string& origin, std::string_view construct) {
  throw DataError(fmt::format(
      "{}: the split expression uses {}, which is not supported: only {} "
      "are read",
      origin, construct, R"(literals, sets, groups, repeats, \s \S \d \D \p \P \r \n \t \x)"));
}

bool is_ascii_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void translate_escape(char escaped, bool in_set, const std::string& origin, std::string& out) {
  if (escaped == 's') {
    out += in_set ? std::string(kWhiteSpaceSet) : fmt::format("[{}]", kWhiteSpaceSet);
  } else if (escaped == 'S' && !in_set) {
    out += fmt::format("[^{}]", kWhiteSpaceSet);
  } else if (std::string_view("dDpPrntx").find(escaped) != std::string_view::npos ||
             !is_ascii_letter_or_digit(escaped)) {
    out += '\\';
    out += escaped;
  } else {
    refuse_pattern(origin, fmt::format("'\\{}'{}", escaped, in_set ? " inside a set" : ""));
  }
}

/// Refuses ambiguous repeats: `{,3}` is literal in PCRE2, `{2}?` is optional in Oniguruma, '+'
/// after a brace is possessive only in PCRE2. Requires: `rest` begins with '{'.
void expect_common_repeat(std::string_view rest, const std::string& origin) {
  const std::size_t length = std::min(rest.find('}'), rest.size() - 1) + 1;
  const std::string_view repeat = rest.substr(0, length);
  const std::string_view behind = rest.substr(length, 1);
  const bool exact = repeat.find(',') == std::string_view::npos;
  if (repeat.starts_with("{,") || behind == "+" || (exact && behind == "?")) {
    refuse_pattern(origin, fmt::format("the repeat '{}{}'", repeat, behind));
  }
}

/// Refuses ambiguous options: Oniguruma's `(?i)` reaches past '|', and its 'm' is PCRE2's 's'.
/// Requires: `rest` begins with "(?".
void expect_common_options(std::string_view rest, const std::string& origin) {
  const std::size_t length = rest.find_first_not_of("imsxn-", 2);
  const std::string_view options = rest.substr(2, length - 2);
  const bool named =
      length != std::string_view::npos && (rest[length] == ':' || rest[length] == ')');
  if (named && !options.empty() &&
      (rest[length] == ')' || options.find_first_not_of("i-") != std::string_view::npos)) {
    refuse_pattern(origin, fmt::format("the options '{}'", rest.substr(0, length + 1)));
  }
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

/// Rewrites an Oniguruma expression for PCRE2: `\s` and `\S` become White_Space, because PCRE2's
/// also hold U+180E. Throws DataError for what the dialects read differently (anchors, \w, \b, \h,
/// nested sets, `{n}+`, `(?m)`, …).
std::string translate_split_expression(std::string_view expression, const std::string& origin) {
  std::string out;
  bool in_set = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\') {
      if (++i == expression.size()) refuse_pattern(origin, "a lone '\\' at its end");
      translate_escape(expression[i], in_set, origin, out);
      // The braces of \p{L} and \x{41} are not repeats.
      if (std::string_view("pPx").find(expression[i]) != std::string_view::npos &&
          expression.substr(i + 1, 1) == "{") {
        const std::size_t end = std::min(expression.find('}', i), expression.size() - 1);
        out += expression.substr(i + 1, end - i);
        i = end;
      }
      continue;
    }
    if (in_set) {
      if (c == '[') refuse_pattern(origin, "a set inside a set");
      if (expression.substr(i, 2) == "&&") refuse_pattern(origin, "'&&'");
      in_set = c != ']';
    } else if (c == '[') {
      in_set = true;
      out += c;
      // A caret or bracket right after the opening belongs to it.
      if (i + 1 < expression.size() && expression[i + 1] == '^') out += expression[++i];
      if (i + 1 < expression.size() && expression[i + 1] == ']') out += expression[++i];
      continue;
    } else if (c == '^' || c == '$') {
      refuse_pattern(origin, fmt::format("the anchor '{}'", c));
    } else if (c == '{') {
      expect_common_repeat(expression.substr(i), origin);
    } else if (c == '(' && expression.substr(i + 1, 1) == "?") {
      expect_common_options(expression.substr(i), origin);
    }
    out += c;
  }
  return out;
}

}  // namespace

struct PreTokenizer::Code {
  pcre2_code* compiled;
  explicit Code(pcre2_code* code) : compiled(code) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(compiled); }
};

PreTokenizer::PreTokenizer(std::span<const std::string> expressions, const std::string& origin) {
  for (const std::string& expression : expressions) {
    const std::string translated = translate_split_expression(expression, origin);
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* compiled =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                      PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    if (compiled == nullptr) {
      throw DataError(fmt::format("{}: the split expression does not compile: {} near '{}'", origin,
                                  pcre2_message(error), translated.substr(offset, 20)));
    }
    codes_.push_back(std::make_shared<const Code>(compiled));
    // Without JIT support PCRE2 interprets.
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  }
}

void PreTokenizer::split(std::string_view text,
                         const std::function<void(std::string_view)>& emit) const {
  split_from(0, text, emit);
}

void PreTokenizer::split_from(std::size_t stage, std::string_view text,
                              const std::function<void(std::string_view)>& emit) const {
  if (stage + 1 < codes_.size()) {
    split_by(*codes_[stage], text,
             [&](std::string_view piece) { split_from(stage + 1, piece, emit); });
  } else {
    split_by(*codes_[stage], text, emit);
  }
}

void PreTokenizer::split_by(const Code& code, std::string_view text,
                            const std::function<void(std::string_view)>& emit) {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  if (match == nullptr) throw EnvironmentError("out of memory while tokenizing");
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
  std::size_t emitted = 0;
  std::size_t from = 0;
  while (from < text.size()) {
    // The whole text is valid; checking it at every match would be quadratic.
    std::uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int found =
        pcre2_match(code.compiled, subject, text.size(), from, options, match.get(), nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;
      found = pcre2_match(code.compiled, subject, text.size(), from, options, match.get(), nullptr);
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw DataError(fmt::format("the split expression failed at byte {} of a text: {}", from,
                                  pcre2_message(found)));
    }
    if (bounds[0] > emitted) emit(text.substr(emitted, bounds[0] - emitted));
    emit(text.substr(bounds[0], bounds[1] - bounds[0]));
    emitted = from = bounds[1];
  }
  if (emitted < text.size()) emit(text.substr(emitted));
}

}  // namespace jforge
