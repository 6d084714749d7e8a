#pragma once

/// What a Hugging Face directory says about its tokenizer, read but not yet turned into tables.

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "runtime/ids.h"

namespace jforge {

/// A byte-pair tokenizer as its files describe it.
struct TokenizerDefinition {
  /// Token in GPT-2's spelling (byte_level.h) and its id.
  std::vector<std::pair<std::string, TokenId>> vocabulary;
  /// Left and right part in GPT-2's spelling; the rank is the place in the list.
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added;
  /// Oniguruma dialect (pre_tokenizer.h); each cuts the pieces that the one before it has left.
  std::vector<std::string> split_expressions;
  /// A piece that is a token as a whole is that token, whatever the merges make of it.
  bool ignore_merges = false;
  std::vector<TokenId> prefix;     ///< Put before a text of its own, such as a bos.
  bool nfc = false;                ///< Text is brought to NFC before it is cut.
  std::optional<std::string> eos;  ///< Content of an added token.
  std::optional<std::string> pad;  ///< Content of an added token.
  std::string content_hash;        ///< 16 hex digits, XXH3 over names and uncompressed bytes.
  std::string origin;              ///< The file that messages name.
};

/// True when `directory` holds tokenizer.json, or vocab.json + merges.txt + tokenizer_config.json
/// (vocab.json and merges.txt also as .gz).
bool tokenizer_files_present(const std::filesystem::path& directory);

/// Reads the tokenizer of `directory`; tokenizer.json wins where both forms are there. DataError
/// naming file and field for anything missing, malformed or not supported.
TokenizerDefinition read_tokenizer_files(const std::filesystem::path& directory);

/// Parses the text of a tokenizer.json into `definition` (everything but eos, pad and hash);
/// `origin` names the file in messages. DataError as above.
void parse_tokenizer_json(const std::string& text, const std::string& origin,
                          TokenizerDefinition& definition);

/// The bytes of a file, unpacked when its name ends in .gz. DataError naming the file when it
/// cannot be read or its compressed stream is damaged.
std::string read_file_or_gz(const std::filesystem::path& file);

}  // namespace jforge
