#include "data/tokenizer/unicode.h"

#include <fmt/core.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/error.h"

namespace jforge {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xC0U) == 0x80U; }

/// Returns the length of the sequence at `offset`, 0 if ill-formed (Unicode table 3-7).
std::size_t sequence_length(std::string_view text, std::size_t offset) {
  const auto byte = [&](std::size_t i) -> unsigned char {
    return offset + i < text.size() ? static_cast<unsigned char>(text[offset + i]) : 0;
  };
  const unsigned char lead = byte(0);
  const unsigned char second = byte(1);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return is_continuation(second) ? 2 : 0;
  if (!is_continuation(second) || !is_continuation(byte(2))) return 0;
  if (lead < 0xF0) {
    if (lead == 0xE0 && second < 0xA0) return 0;
    if (lead == 0xED && second > 0x9F) return 0;
    return 3;
  }
  if (!is_continuation(byte(3))) return 0;
  if (lead == 0xF0 && second < 0x90) return 0;
  if (lead == 0xF4 && second > 0x8F) return 0;
  return 4;
}

/// Refuses texts that exceed ICU's 32-bit lengths.
void expect_icu_size(std::string_view text) {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<int32_t>::max())) {
    throw DataError(
        fmt::format("text of {} bytes is too long to normalise: split it", text.size()));
  }
}

constexpr std::size_t kLongRun = 64;  // Combining marks.

bool has_long_mark_run(std::string_view text) {
  std::size_t run = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      run = 0;
      ++at;
      continue;
    }
    const CodePoint point = code_point_at(text, at);
    const bool mark =
        point.value >= 0x300 && u_getCombiningClass(static_cast<UChar32>(point.value)) != 0;
    run = mark ? run + 1 : 0;
    if (run > kLongRun) return true;
    at += point.length;
  }
  return false;
}

/// Sorts long runs of combining marks into canonical order, which keeps the NFC. ICU would take
/// quadratic time.
std::string order_long_mark_runs(std::string_view text) {
  struct Mark {
    std::uint8_t combining_class;
    std::string_view bytes;
  };
  std::string ordered;
  ordered.reserve(text.size());
  std::vector<Mark> run;
  const auto flush = [&] {
    if (run.size() > kLongRun) {
      std::stable_sort(run.begin(), run.end(), [](const Mark& a, const Mark& b) {
        return a.combining_class < b.combining_class;
      });
    }
    for (const Mark& mark : run) ordered += mark.bytes;
    run.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const std::string_view bytes = text.substr(at, point.length);
    const std::uint8_t combining_class = u_getCombiningClass(static_cast<UChar32>(point.value));
    at += point.length;
    if (combining_class != 0) {
      run.push_back({combining_class, bytes});
      continue;
    }
    flush();
    ordered += bytes;
  }
  flush();
  return ordered;
}

const icu::Normalizer2& nfc_instance() {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* instance = icu::Normalizer2::getNFCInstance(status);
  if (U_FAILURE(status) || instance == nullptr) {
    throw EnvironmentError(fmt::format(
        "ICU cannot load its NFC data ({}): reinstall the ICU library", u_errorName(status)));
  }
  return *instance;
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  std::size_t offset = 0;
  while (offset < text.size()) {
    const std::size_t length = sequence_length(text, offset);
    if (length == 0) return offset;
    offset += length;
  }
  return std::nullopt;
}

void require_valid_utf8(std::string_view text, std::string_view what) {
  if (const auto offset = first_invalid_utf8(text)) {
    throw DataError(
        fmt::format("{} is not valid UTF-8 at byte {}: convert it to UTF-8", what, *offset));
  }
}

std::string replaced_utf8(std::string_view text) {
  expect_icu_size(text);
  if (!first_invalid_utf8(text)) return std::string(text);
  std::string valid;
  icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())})
      .toUTF8String(valid);
  return valid;
}

std::string replaced(std::string_view text, std::string_view old, std::string_view by) {
  std::string out;
  for (const char* found = nullptr;; text.remove_prefix(old.size())) {
    // Unlike find(), in linear time.
    found = static_cast<const char*>(memmem(text.data(), text.size(), old.data(), old.size()));
    if (found == nullptr) {
      return out += text;
    }
    const auto at = static_cast<std::size_t>(found - text.data());
    (out += text.substr(0, at)) += by;
    text.remove_prefix(at);
  }
}

std::string to_nfc(std::string_view text) {
  expect_icu_size(text);
  std::string ordered;  // Before any ICU call: its NFC check sorts marks, too.
  if (has_long_mark_run(text)) {
    ordered = order_long_mark_runs(text);
    text = ordered;
  }
  const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
  const icu::Normalizer2& nfc = nfc_instance();
  UErrorCode status = U_ZERO_ERROR;
  if (nfc.isNormalizedUTF8(piece, status) && U_SUCCESS(status)) return std::string(text);
  status = U_ZERO_ERROR;
  std::string normalised;
  normalised.reserve(text.size());
  icu::StringByteSink<std::string> sink(&normalised);
  nfc.normalizeUTF8(0, piece, sink, nullptr, status);
  if (U_FAILURE(status)) {
    throw InternalError(fmt::format("NFC normalisation failed: {}", u_errorName(status)));
  }
  return normalised;
}

CodePoint code_point_at(std::string_view text, std::size_t offset) {
  const auto bits = [&](std::size_t i, unsigned mask) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[offset + i]) & mask);
  };
  const auto lead = static_cast<unsigned char>(text[offset]);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {bits(0, 0x1F) << 6 | bits(1, 0x3F), 2};
  if (lead < 0xF0) return {bits(0, 0x0F) << 12 | bits(1, 0x3F) << 6 | bits(2, 0x3F), 3};
  return {bits(0, 0x07) << 18 | bits(1, 0x3F) << 12 | bits(2, 0x3F) << 6 | bits(3, 0x3F), 4};
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto continuation = [&](int shift) {
    out.push_back(static_cast<char>(0x80U | ((code_point >> shift) & 0x3FU)));
  };
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0U | (code_point >> 6)));
    continuation(0);
  } else if (code_point < 0x10000) {
    out.push_back(static_cast<char>(0xE0U | (code_point >> 12)));
    continuation(6);
    continuation(0);
  } else {
    out.push_back(static_cast<char>(0xF0U | (code_point >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

static bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::size_t trailing_white_space(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    std::size_t previous = begin - 1;
    while (previous > 0 && is_continuation(static_cast<unsigned char>(text[previous]))) --previous;
    if (!is_white_space(code_point_at(text, previous).value)) break;
    begin = previous;
  }
  return begin;
}

std::size_t leading_white_space(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size()) {
    const CodePoint point = code_point_at(text, end);
    if (!is_white_space(point.value)) break;
    end += point.length;
  }
  return end;
}

}  // namespace jforge
