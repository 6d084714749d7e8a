#pragma once

/// Byte-level byte-pair tokenizer, read from a Hugging Face directory.
///
/// Two forms are read, the first wins where both are there:
///  * tokenizer.json (tokenizer_config.json beside it adds eos and pad). Supported:
///      normalizer      null, NFC, Sequence of NFC
///      pre_tokenizer   ByteLevel (GPT-2's expression), or Sequence[Split(Regex, Isolated) or
///                      Digits, …, ByteLevel with or without use_regex]; add_prefix_space false
///      model           BPE; merges as "a b" or ["a", "b"]; no dropout, unk_token, prefix or
///      suffix,
///                      fuse_unk, byte_fallback; ignore_merges or not
///      added_tokens    special or not, lstrip, rstrip, normalized; no single_word
///      decoder         ByteLevel
///      post_processor  null, ByteLevel (which changes offsets only), TemplateProcessing that
///                      puts nothing but special tokens before a text, or a Sequence of these
///      truncation, padding  null
///  * vocab.json + merges.txt (either also .gz) + tokenizer_config.json with tokenizer_class
///    Qwen2Tokenizer, which implies NFC and Qwen2's split expression; `added_tokens_decoder` gives
///    the added tokens.
/// Anything else is a DataError that names the file and the field: ids are exact or refused.

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

/// Text to token ids and back. Immutable and cheap to copy (copies share the tables); every method
/// may be called from many threads at once.
class BytePairTokenizer {
 public:
  /// Reads the tokenizer of `model_directory`. DataError naming file and field for files that are
  /// missing, malformed, contradictory or use what is not supported.
  static BytePairTokenizer load(const std::filesystem::path& model_directory);

  /// True when `model_directory` holds the files of one of the two forms.
  static bool present(const std::filesystem::path& model_directory);

  /// Token ids of `utf8_text`. Added tokens in the text are recognised (longest match); nothing is
  /// added before or after. Time is O(n log n) at worst, whatever the text. DataError when the text
  /// is not valid UTF-8, naming the byte offset.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view utf8_text) const;

  /// As encode() of a text that no chat template has rendered, such as one to be completed: after
  /// the tokens that the post-processor puts before it (Llama 3's bos). A rendered conversation has
  /// them from its template.
  [[nodiscard]] std::vector<TokenId> encode_alone(std::string_view utf8_text) const;

  /// The exact bytes of `ids`, which need not be valid UTF-8 where a character is cut between
  /// tokens; decode(encode(x)) is x normalised as the tokenizer does it. `skip_special` leaves
  /// special tokens out. Ids without a token (see has_token) yield no bytes, because models have
  /// more output rows than their tokenizer has tokens; a negative id is a DataError.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  /// Whether `id` names a token, ordinary or added.
  [[nodiscard]] bool has_token(TokenId id) const;

  /// Whether encode() finds a special token in `utf8_text`, such as "<|im_end|>".
  [[nodiscard]] bool holds_special_token(std::string_view utf8_text) const;

  /// Highest id + 1 (ids need not be contiguous; a model's embedding may be larger).
  [[nodiscard]] std::int64_t vocabulary_size() const;

  /// Id of an added token by its exact text ("<|im_end|>").
  [[nodiscard]] std::optional<TokenId> token_id(std::string_view added_token) const;

  /// End-of-text token of tokenizer_config.json, if it names one.
  [[nodiscard]] std::optional<TokenId> eos() const;
  /// Padding token of tokenizer_config.json, if it names one.
  [[nodiscard]] std::optional<TokenId> pad() const;

  /// 16 hex digits: XXH3 over the names and uncompressed bytes of the tokenizer's files, the chat
  /// template included. Part of a run's identity.
  [[nodiscard]] const std::string& content_hash() const;

 private:
  struct Tables;
  explicit BytePairTokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace jforge
