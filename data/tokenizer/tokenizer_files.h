#pragma once

/// Reads the tokenizer files of a Hugging Face directory.

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "runtime/ids.h"

namespace jforge {

struct TokenizerDefinition {
  /// Tokens in GPT-2's spelling (byte_level.h) with their ids.
  std::vector<std::pair<std::string, TokenId>> vocabulary;
  /// Left and right part in GPT-2's spelling, by rank.
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added;
  /// In Oniguruma's dialect (pre_tokenizer.h), applied one after another.
  std::vector<std::string> split_expressions;
  /// A piece that is a token is not merged.
  bool ignore_merges = false;
  std::vector<TokenId> prefix;     ///< Tokens before a text, such as bos.
  bool nfc = false;                ///< Normalise text to NFC before splitting.
  std::optional<std::string> eos;  ///< Content of an added token.
  std::optional<std::string> pad;  ///< Content of an added token.
  std::string content_hash;        ///< 16 hex digits, XXH3 over names and uncompressed bytes.
  std::string origin;              ///< File named in messages.
};

/// Returns true if `directory` holds tokenizer.json, or vocab.json, merges.txt (both optionally
/// .gz) and tokenizer_config.json.
bool tokenizer_files_present(const std::filesystem::path& directory);

/// Reads the tokenizer; tokenizer.json takes precedence. Throws DataError naming file and field for
/// anything missing, malformed or unsupported.
TokenizerDefinition read_tokenizer_files(const std::filesystem::path& directory);

/// Parses a tokenizer.json into `definition` (all but eos, pad and hash); throws likewise.
void parse_tokenizer_json(const std::string& text, const std::string& origin,
                          TokenizerDefinition& definition);

/// Returns a file's bytes, unpacked if its name ends in .gz. Throws DataError if it cannot be read
/// or is damaged.
std::string read_file_or_gz(const std::filesystem::path& file);

}  // namespace jforge
