#pragma once

/// Cuts text into the pieces (words, numbers, runs of punctuation or space) inside which byte pairs
/// are merged, by a regular expression in the dialect of Hugging Face's tokenizers (Oniguruma).

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// The Qwen2 family's expression: contractions, words with one leading sign, single digits, runs of
/// punctuation, line ends, white space (the last blank before a word goes with the word).
inline constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// GPT-2's expression, which a `ByteLevel` pre-tokenizer with `use_regex` implies.
inline constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// What a `Digits` pre-tokenizer takes for a digit: every character with a numeric value.
inline constexpr std::string_view kSingleDigits = R"(\p{N})";
inline constexpr std::string_view kDigitRuns = R"(\p{N}+)";

/// Rewrites an Oniguruma expression for PCRE2 so that both match the same text: `\s` and `\S`
/// become the explicit White_Space set (PCRE2's own also holds U+180E). DataError for what the two
/// dialects read differently (anchors, \w, \b, \h, nested sets, `{n}+`, `(?m)`, …), naming it and
/// `origin`.
std::string translate_split_expression(std::string_view expression, const std::string& origin);

/// Compiled expressions. Immutable: `split` may run in many threads at once.
class PreTokenizer {
 public:
  /// DataError naming `origin` when an expression does not compile or is not supported.
  PreTokenizer(std::span<const std::string> expressions, const std::string& origin);

  /// Calls `emit` for every match and for every stretch between matches, in order, of the last
  /// expression in the pieces that the others have cut likewise; together they are exactly `text`,
  /// which is well-formed UTF-8.
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
