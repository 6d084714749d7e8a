#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstring>

#include "data/tokenizer/jinja/text_internal.h"
#include "data/tokenizer/jinja/value.h"
#include "data/tokenizer/unicode.h"

namespace jforge::jinja {
namespace {

constexpr std::size_t kMaxParts = 1'000'000;

/// Limits the parts, which take more memory than the text.
void add_part(std::vector<std::string_view>& parts, std::string_view part) {
  if (parts.size() >= kMaxParts) fail("a text has too many parts");
  parts.push_back(part);
}

icu::UnicodeString utf16(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int>(text.size())));
}

std::string utf8(const icu::UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}

bool is_python_space(char32_t character) {
  return is_white_space(character) || (character >= 0x1C && character <= 0x1F);
}

/// Requires: `text` is not empty.
std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

template <typename Taken>
std::string_view strip_where(std::string_view text, Side side, Taken taken) {
  while (side != Side::right && !text.empty()) {
    const CodePoint first = code_point_at(text, 0);
    if (!taken(first.value)) break;
    text.remove_prefix(first.length);
  }
  while (side != Side::left && !text.empty()) {
    const std::size_t last = last_character(text);
    if (!taken(code_point_at(text, last).value)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

/// Splits before characters for which `begins(previous, character)` and changes each part.
template <typename Begins, typename Change>
std::string changed_words(std::string_view text, Begins begins, Change change) {
  std::string out;
  std::size_t word = 0;
  char32_t previous = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (at > word && begins(previous, point.value)) {
      out += change(text.substr(word, at - word));
      word = at;
    }
    previous = point.value;
    at += point.length;
  }
  return out + (text.empty() ? std::string() : change(text.substr(word)));
}

}  // namespace

std::string_view strip(std::string_view text, Side side) {
  return strip_where(text, side, is_python_space);
}

std::string_view strip(std::string_view text, Side side, std::string_view characters) {
  return strip_where(text, side, [characters](char32_t character) {
    for (std::size_t at = 0; at < characters.size();) {
      const CodePoint point = code_point_at(characters, at);
      if (point.value == character) return true;
      at += point.length;
    }
    return false;
  });
}

std::int64_t length(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::size_t advanced(std::string_view text, std::size_t at, std::int64_t count) {
  for (; count > 0; --count) at += code_point_at(text, at).length;
  return at;
}

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size() || part.size() > text.size() - from) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::string upper(std::string_view text) {
  return utf8(utf16(text).toUpper(icu::Locale::getRoot()));
}

std::string lower(std::string_view text) {
  return utf8(utf16(text).toLower(icu::Locale::getRoot()));
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t first = code_point_at(text, 0).length;
  const icu::UnicodeString title =
      utf16(text.substr(0, first))
          .toTitle(nullptr, icu::Locale::getRoot(), U_TITLECASE_NO_BREAK_ADJUSTMENT);
  // The whole text, because a final sigma depends on what precedes it.
  return utf8(title) + lower(text).substr(lower(text.substr(0, first)).size());
}

std::string titled(std::string_view text) {
  const auto is_cased = [](char32_t c) {
    return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0;
  };
  return changed_words(
      text, [&](char32_t before, char32_t c) { return is_cased(c) && !is_cased(before); },
      capitalized);
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    std::int64_t most, bool from_right) {
  if (separator.size() > text.size()) return {text};
  std::vector<std::string_view> parts;
  if (from_right) {
    const std::string backwards(text.rbegin(), text.rend());
    for (const std::string_view part :
         split(backwards, std::string(separator.rbegin(), separator.rend()), most, false)) {
      const auto behind = static_cast<std::size_t>(part.data() - backwards.data()) + part.size();
      add_part(parts, text.substr(text.size() - behind, part.size()));
    }
    std::ranges::reverse(parts);
    return parts;
  }
  std::size_t begin = 0;
  while (most < 0 || std::ssize(parts) < most) {
    const std::size_t at = find_text(text, separator, begin);
    if (at == std::string_view::npos) break;
    add_part(parts, text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  add_part(parts, text.substr(begin));
  return parts;
}

}  // namespace jforge::jinja
