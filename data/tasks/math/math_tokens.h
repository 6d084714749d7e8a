#pragma once

/// Tokens of an answer: LaTeX as models write it, or plain text.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

struct MathToken {
  enum class Kind : std::uint8_t {
    number,  ///< "12", "0.5", ".5", "3." before \overline; separators of thousands are gone, blanks
             ///< ("1 000") among them.
    name,    ///< One letter.
    word,    ///< Several letters in plain text: "cm", "sin".
    command,  ///< "\frac", "\{"; spelling variants have one name (\dfrac is \frac).
    text,     ///< Content of \text{…} and its relatives, trimmed.
    symbol,   ///< Any other character.
  };
  Kind kind = Kind::symbol;
  std::string text;
  bool space_before = false;
  bool dollars = false;  ///< "\$" stands before it, or behind it at the end of the answer.

  [[nodiscard]] bool is_symbol(char c) const {
    return kind == Kind::symbol && text.size() == 1 && text[0] == c;
  }
  [[nodiscard]] bool is_command(std::string_view name) const {
    return kind == Kind::command && text == name;
  }
};

using MathTokens = std::span<const MathToken>;

/// How a plain comma between a digit and three digits is read outside brackets.
enum class CommaReading : std::uint8_t { thousands, list };

inline constexpr std::size_t kMaxMathTokens = 2000;

/// Splits an answer. Spacing, sizes (\left, \big), styles and "$" are left out. MathRefusal when it
/// has more than kMaxMathTokens tokens or a \text without end.
[[nodiscard]] std::vector<MathToken> math_tokens(std::string_view answer, CommaReading commas);

/// Change of bracket depth at a token: +1 for ( [ { \{ \langle \begin, -1 for their partners, else
/// 0.
[[nodiscard]] int bracket_step(const MathToken& token);

}  // namespace jforge
