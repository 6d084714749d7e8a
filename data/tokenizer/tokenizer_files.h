#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "runtime/ids.h"

namespace jforge {

struct TokenizerDefinition {
  std::vector<std::pair<std::string, TokenId>> vocabulary;  ///< In GPT-2's spelling (byte_level.h).
  std::vector<std::pair<std::string, std::string>> merges;  ///< In GPT-2's spelling, by rank.
  std::vector<AddedToken> added;
  /// Oniguruma's dialect (pre_tokenizer.h), applied in turn.
  std::vector<std::string> split_expressions;
  bool ignore_merges = false;      ///< A piece that is a token is not merged.
  std::vector<TokenId> prefix;     ///< Tokens before a text, such as bos.
  bool nfc = false;                ///< Normalise before splitting.
  std::optional<std::string> eos;  ///< Content of an added token.
  std::optional<std::string> pad;  ///< Content of an added token.
  std::string content_hash;        ///< 16 hex digits; XXH3 of names and unpacked bytes.
  std::string origin;              ///< For messages.
};

/// Returns true if tokenizer.json, or vocab.json, merges.txt (both optionally .gz) and
/// tokenizer_config.json exist.
bool tokenizer_files_present(const std::filesystem::path& directory);

/// Prefers tokenizer.json. Throws DataError naming file and field for anything missing, malformed
/// or unsupported.
TokenizerDefinition read_tokenizer_files(const std::filesystem::path& directory);

/// Sets all of `definition` but eos, pad and hash. Throws likewise.
void parse_tokenizer_json(const std::string& text, const std::string& origin,
                          TokenizerDefinition& definition);

/// Unpacks files that end in .gz. Throws DataError if `file` is unreadable or damaged.
std::string read_file_or_gz(const std::filesystem::path& file);

}  // namespace jforge
