#pragma once

/// Byte-level byte-pair tokenizer, read from a Hugging Face directory.
///
/// Reads tokenizer.json if it exists (tokenizer_config.json adds eos and pad). Supported:
///  normalizer      null, NFC, Sequence of NFC
///  pre_tokenizer   ByteLevel (GPT-2's expression), or Sequence[Split(Regex, Isolated) or
///                  Digits, …, ByteLevel with or without use_regex]; add_prefix_space false
///  model           BPE; merges as "a b" or ["a", "b"]; ignore_merges; no dropout, unk_token,
///                  prefix, suffix, fuse_unk or byte_fallback
///  added_tokens    all flags but single_word
///  decoder         ByteLevel
///  post_processor  null, ByteLevel (changes only offsets), TemplateProcessing that only puts
///                  special tokens before a text, or a Sequence of these
///  truncation, padding  ignored
/// Otherwise reads vocab.json and merges.txt (optionally .gz) with tokenizer_config.json, whose
/// tokenizer_class must be Qwen2Tokenizer (NFC, Qwen2's split expression). Throws DataError for
/// anything else, so that ids are exact.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Immutable, thread-safe and cheap to copy (shared tables).
class BytePairTokenizer {
 public:
  /// Throws DataError naming file and field if anything is missing, malformed, contradictory or
  /// unsupported.
  static BytePairTokenizer load(const std::filesystem::path& model_directory);

  /// Returns true if the files of one of the two forms exist.
  static bool present(const std::filesystem::path& model_directory);

  /// Recognises added tokens. O(n log n). Throws DataError if the text is not valid UTF-8.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view utf8_text) const;

  /// Encodes after the post-processor's prefix (Llama 3's bos), which chat templates contain
  /// themselves.
  [[nodiscard]] std::vector<TokenId> encode_alone(std::string_view utf8_text) const;

  /// Returns bytes, which may end inside a character. decode(encode(x)) is x normalised. Ids
  /// without a token yield no bytes, because models may have more output rows; a negative id throws
  /// DataError.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  /// Returns true if encode() would find a special token.
  [[nodiscard]] bool holds_special_token(std::string_view utf8_text) const;

  /// Returns the highest id + 1. Ids may have gaps; a model's embedding may be larger.
  [[nodiscard]] std::int64_t vocabulary_size() const;

  /// Looks up an added token by its exact text ("<|im_end|>").
  [[nodiscard]] std::optional<TokenId> token_id(std::string_view added_token) const;

  [[nodiscard]] std::optional<TokenId> eos() const;
  [[nodiscard]] std::optional<TokenId> pad() const;

  /// Returns 16 hex digits: XXH3 over names and unpacked bytes of tokenizer files and chat
  /// template; part of a run's identity.
  [[nodiscard]] const std::string& content_hash() const;

 private:
  struct Tables;
  explicit BytePairTokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace jforge
