#include <fmt/format.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/ustring.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/tokenizer/jinja/text_internal.h"
#include "data/tokenizer/jinja/value.h"
#include "data/tokenizer/unicode.h"

namespace jforge::jinja {
namespace {

constexpr std::size_t kMostParts = 1'000'000;
constexpr std::size_t kLongestInCharacters = std::size_t{16} << 20;

/// What a text is taken apart into takes more memory than the text.
void add_part(std::vector<std::string_view>& parts, std::string_view part) {
  if (parts.size() >= kMostParts) fail("a text has too many parts");
  parts.push_back(part);
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

icu::UnicodeString utf16(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int>(text.size())));
}

std::string utf8(const icu::UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}

char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

template <typename Change>
std::string changed(std::string_view text, Change change) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), change);
  return out;
}

/// The first character as a title begins, with all its special cases ("ß" is "Ss").
std::string title_case(char32_t character) {
  icu::UnicodeString one(static_cast<UChar32>(character));
  return utf8(one.toTitle(nullptr, icu::Locale::getRoot(),
                          U_TITLECASE_NO_LOWERCASE | U_TITLECASE_NO_BREAK_ADJUSTMENT));
}

/// Begin of the last character of `text`, which is not empty.
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

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(char32_t c) {
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_UNASSIGNED:
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_PRIVATE_USE_CHAR:
    case U_SURROGATE:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
      return false;
    case U_SPACE_SEPARATOR:
      return c == ' ';
    default:
      return true;
  }
}

}  // namespace

bool is_python_space(char32_t character) {
  return is_white_space(character) || (character >= 0x1C && character <= 0x1F);
}

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

std::vector<std::size_t> offsets(std::string_view text) {
  if (text.size() > kLongestInCharacters) fail("a text is too long");
  std::vector<std::size_t> found;
  for (std::size_t at = 0; at < text.size(); at += code_point_at(text, at).length) {
    found.push_back(at);
  }
  found.push_back(text.size());
  return found;
}

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::string upper(std::string_view text) {
  if (is_ascii(text)) return changed(text, ascii_upper);
  return utf8(utf16(text).toUpper(icu::Locale::getRoot()));
}

std::string lower(std::string_view text) {
  if (is_ascii(text)) return changed(text, ascii_lower);
  return utf8(utf16(text).toLower(icu::Locale::getRoot()));
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const CodePoint first = code_point_at(text, 0);
  // Lower case of the whole, as a final sigma depends on what is before it.
  const std::string all = lower(text);
  const std::string begin = lower(text.substr(0, first.length));
  return title_case(first.value) + all.substr(begin.size());
}

std::string titled(std::string_view text) {
  std::string out;
  std::size_t word = 0;
  bool cased = false;  // The character before.
  const auto end_word = [&](std::size_t end) {
    if (end > word) out += capitalized(text.substr(word, end - word));
  };
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const bool letter = u_hasBinaryProperty(static_cast<UChar32>(point.value), UCHAR_CASED) != 0;
    if (letter && !cased) {
      end_word(at);
      word = at;
    }
    cased = letter;
    at += point.length;
  }
  end_word(text.size());
  return out;
}

std::string titled_by_filter(std::string_view text) {
  const auto divides = [](char32_t c) {
    return is_python_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  };
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    const bool dividing = divides(code_point_at(text, at).value);
    while (end < text.size() && divides(code_point_at(text, end).value) == dividing) {
      end += code_point_at(text, end).length;
    }
    const std::size_t first = at + code_point_at(text, at).length;
    out += upper(text.substr(at, first - at)) + lower(text.substr(first, end - first));
    at = end;
  }
  return out;
}

std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t most,
                                              bool from_right) {
  std::vector<std::string_view> parts;
  const Side outer = from_right ? Side::right : Side::left;
  text = strip(text, outer);
  while (!text.empty()) {
    if (most >= 0 && std::ssize(parts) == most) {
      add_part(parts, text);
      break;
    }
    std::size_t edge = from_right ? text.size() : 0;
    while (from_right ? edge > 0 : edge < text.size()) {
      const std::size_t at = from_right ? last_character(text.substr(0, edge)) : edge;
      const CodePoint point = code_point_at(text, at);
      if (is_python_space(point.value)) break;
      edge = from_right ? at : edge + point.length;
    }
    add_part(parts, from_right ? text.substr(edge) : text.substr(0, edge));
    text = strip(from_right ? text.substr(0, edge) : text.substr(edge), outer);
  }
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    std::size_t next = at + point.length;
    if (is_line_end(point.value)) {
      if (point.value == '\r' && next < text.size() && text[next] == '\n') ++next;
      add_part(lines, text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) add_part(lines, text.substr(begin));
  return lines;
}

std::size_t find_last_text(std::string_view text, std::string_view part) {
  if (part.size() > text.size()) return std::string_view::npos;
  const std::string backwards(text.rbegin(), text.rend());
  const std::size_t at = find_text(backwards, std::string(part.rbegin(), part.rend()));
  return at == std::string_view::npos ? at : text.size() - at - part.size();
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

std::string replaced(std::string_view text, std::string_view old, std::string_view by,
                     std::int64_t count) {
  std::string out;
  std::size_t begin = 0;
  if (old.empty()) {
    const std::vector<std::size_t> places = offsets(text);
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (count < 0 || std::cmp_less(i, count)) out += by;
      if (i + 1 < places.size()) out += text.substr(places[i], places[i + 1] - places[i]);
    }
    return out;
  }
  for (; count != 0; --count) {
    const std::size_t at = find_text(text, old, begin);
    if (at == std::string_view::npos) break;
    out += text.substr(begin, at - begin);
    out += by;
    begin = at + old.size();
  }
  out += text.substr(begin);
  return out;
}

void append_quoted(std::string& out, std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos;
  const char quote = single || text.find('"') != std::string_view::npos ? '\'' : '"';
  out += quote;
  for (std::size_t at = 0; at < text.size();) {
    const auto [c, size] = code_point_at(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += text.substr(at, size);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c));
    } else {
      out += c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c))
                         : fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
    }
    at += size;
  }
  out += quote;
}

void append_json(std::string& out, std::string_view text, bool ascii_only) {
  constexpr std::string_view kShort = "\"\\\n\r\t\f\b";
  constexpr std::string_view kLetters = "\"\\nrtfb";
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const auto [c, size] = code_point_at(text, at);
    const std::size_t letter = c < 0x80 ? kShort.find(static_cast<char>(c)) : kShort.npos;
    const auto value = static_cast<std::uint32_t>(c);
    if (letter != std::string_view::npos) {
      out += '\\';
      out += kLetters[letter];
    } else if (c < 0x20 || (ascii_only && c >= 0x7F && c < 0x10000)) {
      out += fmt::format("\\u{:04x}", value);
    } else if (ascii_only && c >= 0x10000) {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((value - 0x10000) >> 10),
                         0xDC00 + ((value - 0x10000) & 0x3FF));
    } else {
      out += text.substr(at, size);
    }
    at += size;
  }
  out += '"';
}

}  // namespace jforge::jinja
