#include "data/tokenizer/byte_level.h"

#include <array>

#include "data/tokenizer/unicode.h"

namespace jforge {
namespace {

constexpr std::size_t kSpellingLimit = 0x144;  // 1 + the last code point that spells a byte.

struct SpellingTables {
  std::array<char32_t, 256> character_of_byte{};
  std::array<int, kSpellingLimit> byte_of_character{};
};

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

constexpr SpellingTables make_tables() {
  SpellingTables tables;
  for (int& byte : tables.byte_of_character) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    tables.character_of_byte[static_cast<std::size_t>(byte)] = character;
    tables.byte_of_character[character] = byte;
  }
  return tables;
}

constexpr SpellingTables kTables = make_tables();

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) {
    append_utf8(token, kTables.character_of_byte[static_cast<unsigned char>(byte)]);
  }
  return token;
}

std::optional<std::string> bytes_of_spelling(std::string_view token) {
  std::string bytes;
  for (std::size_t offset = 0; offset < token.size();) {
    const CodePoint point = code_point_at(token, offset);
    const int byte = point.value < kSpellingLimit ? kTables.byte_of_character[point.value] : -1;
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    offset += point.length;
  }
  return bytes;
}

}  // namespace jforge
