#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/pre_tokenizer.h"

#include <fmt/core.h>
#include <pcre2.h>

#include <array>

#include "data/tokenizer/unicode.h"
#include "runtime/error.h"

namespace jforge {
namespace {

constexpr std::string_view kWhiteSpaceSet =
    R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

[[noreturn]] void refuse(const std::string& origin, std::string_view construct) {
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
    refuse(origin, fmt::format("'\\{}'{}", escaped, in_set ? " inside a set" : ""));
  }
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

std::string translate_split_expression(std::string_view expression, const std::string& origin) {
  std::string out;
  bool in_set = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\') {
      if (++i == expression.size()) refuse(origin, "a lone '\\' at its end");
      translate_escape(expression[i], in_set, origin, out);
      continue;
    }
    if (in_set) {
      if (c == '[') refuse(origin, "a set inside a set");
      if (expression.substr(i, 2) == "&&") refuse(origin, "'&&'");
      in_set = c != ']';
    } else if (c == '[') {
      in_set = true;
      out += c;
      // A caret or a bracket right after the opening is part of it.
      if (i + 1 < expression.size() && expression[i + 1] == '^') out += expression[++i];
      if (i + 1 < expression.size() && expression[i + 1] == ']') out += expression[++i];
      continue;
    } else if (c == '^' || c == '$') {
      refuse(origin, fmt::format("the anchor '{}'", c));
    }
    out += c;
  }
  return out;
}

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
    // Where PCRE2 was built without JIT the interpreter matches the same, only slower.
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
    // The text was validated once as a whole; checking it at every match would be quadratic.
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
