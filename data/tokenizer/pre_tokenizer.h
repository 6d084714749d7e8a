#pragma once

/// Splits text into the pieces inside which byte pairs merge, by regular expressions in Hugging
/// Face's dialect (Oniguruma).

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// The Qwen2 family's expression.
inline constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// For `ByteLevel` with `use_regex`.
inline constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// For `Digits`: every character with a numeric value.
inline constexpr std::string_view kSingleDigits = R"(\p{N})";
inline constexpr std::string_view kDigitRuns = R"(\p{N}+)";

/// Immutable and thread-safe.
class PreTokenizer {
 public:
  /// Throws DataError if an expression does not compile or is unsupported.
  PreTokenizer(std::span<const std::string> expressions, const std::string& origin);

  /// Applies each expression to the pieces of the one before; emits matches and gaps in order,
  /// together `text`. Requires: `text` is well-formed UTF-8.
  void split(std::string_view text, const std::function<void(std::string_view)>& emit) const;

 private:
  struct Code;
  static void split_by(const Code& code, std::string_view text,
                       const std::function<void(std::string_view)>& emit);
  void split_from(std::size_t stage, std::string_view text,
                  const std::function<void(std::string_view)>& emit) const;

  std::vector<std::shared_ptr<const Code>> codes_;
};

}  // namespace jforge
