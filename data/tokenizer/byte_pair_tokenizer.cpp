#include "data/tokenizer/byte_pair_tokenizer.h"

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/merge_table.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/unicode.h"
#include "runtime/error.h"

namespace jforge {
namespace {

using SpellingMap = std::unordered_map<std::string_view, TokenId>;

// Above any real vocabulary; a bad id cannot exhaust memory.
constexpr TokenId kLargestId = (1 << 24) - 1;

struct IdTable {
  enum class Kind : std::uint8_t { none, ordinary, added, special };
  std::vector<std::string> bytes;
  std::vector<Kind> kinds;

  void set(TokenId id, std::string token, Kind kind) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= bytes.size()) {
      bytes.resize(index + 1);
      kinds.resize(index + 1, Kind::none);
    }
    bytes[index] = std::move(token);
    kinds[index] = kind;
  }
  [[nodiscard]] Kind kind(TokenId id) const {
    const auto index = static_cast<std::size_t>(id);
    return id >= 0 && index < kinds.size() ? kinds[index] : Kind::none;
  }
};

void check_id(TokenId id, const std::string& token, const std::string& origin) {
  if (id > kLargestId) {
    throw DataError(fmt::format("{}: token '{}' has id {}, above the limit of {}", origin, token,
                                id, kLargestId));
  }
}

IdTable build_ids(const TokenizerDefinition& definition) {
  IdTable table;
  std::vector<TokenId> unspelled;
  for (const auto& [token, id] : definition.vocabulary) {
    check_id(id, token, definition.origin);
    if (table.kind(id) != IdTable::Kind::none) {
      throw DataError(fmt::format("{}: id {} belongs to '{}' and to another token",
                                  definition.origin, id, token));
    }
    auto bytes = bytes_of_spelling(token);
    // Valid only if it is also an added token.
    if (!bytes) unspelled.push_back(id);
    table.set(id, bytes ? *std::move(bytes) : token, IdTable::Kind::ordinary);
  }
  for (const AddedToken& added : definition.added) {
    check_id(added.id, added.content, definition.origin);
    const IdTable::Kind taken = table.kind(added.id);
    if (taken == IdTable::Kind::added || taken == IdTable::Kind::special ||
        (taken == IdTable::Kind::ordinary &&
         table.bytes[static_cast<std::size_t>(added.id)] != added.content)) {
      throw DataError(fmt::format("{}: added token '{}' has the id {} of another token",
                                  definition.origin, added.content, added.id));
    }
    table.set(added.id, added.content,
              added.special ? IdTable::Kind::special : IdTable::Kind::added);
  }
  for (const TokenId id : unspelled) {
    if (table.kind(id) == IdTable::Kind::ordinary) {
      throw DataError(fmt::format("{}: token '{}' (id {}) is not spelled in byte-level characters",
                                  definition.origin, table.bytes[static_cast<std::size_t>(id)],
                                  id));
    }
  }
  return table;
}

std::array<TokenId, 256> build_byte_ids(const SpellingMap& ids, const std::string& origin) {
  std::array<TokenId, 256> byte_ids{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::string spelling = spell_bytes(std::string(1, static_cast<char>(byte)));
    const auto found = ids.find(spelling);
    byte_ids[byte] = found == ids.end() ? -1 : found->second;
    // Real vocabularies lack control bytes and lead bytes of planes without characters, which are
    // dropped, as in Hugging Face's tokenizers.
    const bool control =
        (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
    const bool lead = byte == 0xC0 || byte == 0xC1 || byte >= 0xF1;
    if (found == ids.end() && !control && !lead) {
      throw DataError(
          fmt::format("{}: the vocabulary has no token '{}' for byte 0x{:02x}: not a byte-level "
                      "vocabulary",
                      origin, spelling, byte));
    }
  }
  return byte_ids;
}

MergeTable build_merges(const TokenizerDefinition& definition) {
  SpellingMap ids;
  ids.reserve(definition.vocabulary.size());
  for (const auto& [token, id] : definition.vocabulary) ids.emplace(token, id);
  const auto id_of = [&](const std::string& token, std::size_t rank) {
    const auto found = ids.find(token);
    if (found == ids.end()) {
      throw DataError(fmt::format("{}: the vocabulary has no token '{}', which merge rule {} needs",
                                  definition.origin, token, rank));
    }
    return found->second;
  };
  std::vector<MergeTable::Rule> rules;
  rules.reserve(definition.merges.size());
  for (std::size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const auto& [left, right] = definition.merges[rank];
    rules.push_back({id_of(left, rank), id_of(right, rank), id_of(left + right, rank)});
  }
  return {build_byte_ids(ids, definition.origin), rules};
}

/// Returns the tokens matched in raw or in normalised text, the latter with normalised contents.
std::vector<AddedToken> select_added(const TokenizerDefinition& definition, bool normalized) {
  std::vector<AddedToken> selected;
  for (const AddedToken& token : definition.added) {
    if (token.normalized != normalized) continue;
    selected.push_back(token);
    if (normalized && definition.nfc) selected.back().content = to_nfc(token.content);
  }
  return selected;
}

/// Lets maps be searched by string_view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>{}(text);
  }
};
using WholePieces = std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>>;

/// Returns tokens by their bytes; empty unless ignore_merges.
WholePieces build_whole_pieces(const TokenizerDefinition& definition) {
  WholePieces pieces;
  if (definition.ignore_merges) {
    for (const auto& [token, id] : definition.vocabulary) {
      if (auto bytes = bytes_of_spelling(token)) pieces.emplace(*std::move(bytes), id);
    }
  }
  return pieces;
}

}  // namespace

struct BytePairTokenizer::Tables {
  explicit Tables(const TokenizerDefinition& definition)
      : ids(build_ids(definition)),
        merges(build_merges(definition)),
        whole_pieces(build_whole_pieces(definition)),
        pre_tokenizer(definition.split_expressions, definition.origin),
        raw_added(select_added(definition, false)),
        normalised_added(select_added(definition, true)),
        prefix(definition.prefix),
        nfc(definition.nfc),
        content_hash(definition.content_hash) {
    for (const AddedToken& token : definition.added) {
      if (!added_ids.emplace(token.content, token.id).second) {
        throw DataError(fmt::format("{}: added token '{}' is declared twice", definition.origin,
                                    token.content));
      }
    }
    for (const TokenId id : prefix) {
      if (ids.kind(id) == IdTable::Kind::none) {
        throw DataError(fmt::format("{}: the post_processor adds token {}, which does not exist",
                                    definition.origin, id));
      }
    }
    if (definition.eos) eos = added_ids.at(*definition.eos);
    if (definition.pad) pad = added_ids.at(*definition.pad);
  }

  void encode_ordinary(std::string_view text, std::vector<TokenId>& out) const {
    pre_tokenizer.split(text, [&](std::string_view piece) {
      const auto whole = whole_pieces.find(piece);
      if (whole != whole_pieces.end()) {
        out.push_back(whole->second);
      } else {
        merges.encode_piece(piece, out);
      }
    });
  }

  void encode_normalised(std::string_view text, std::vector<TokenId>& out) const {
    normalised_added.split(text, [&](std::string_view part, const AddedToken* token) {
      if (token != nullptr) {
        out.push_back(token->id);
      } else {
        encode_ordinary(part, out);
      }
    });
  }

  IdTable ids;
  MergeTable merges;
  WholePieces whole_pieces;
  PreTokenizer pre_tokenizer;
  AddedTokenMatcher raw_added;
  AddedTokenMatcher normalised_added;
  std::unordered_map<std::string, TokenId> added_ids;
  std::optional<TokenId> eos;
  std::optional<TokenId> pad;
  std::vector<TokenId> prefix;
  bool nfc;
  std::string content_hash;
};

BytePairTokenizer BytePairTokenizer::load(const std::filesystem::path& model_directory) {
  return BytePairTokenizer(std::make_shared<const Tables>(read_tokenizer_files(model_directory)));
}

bool BytePairTokenizer::present(const std::filesystem::path& model_directory) {
  return tokenizer_files_present(model_directory);
}

std::vector<TokenId> BytePairTokenizer::encode(std::string_view utf8_text) const {
  require_valid_utf8(utf8_text, "text to tokenize");
  std::vector<TokenId> out;
  out.reserve(utf8_text.size() / 3);
  tables_->raw_added.split(utf8_text, [&](std::string_view part, const AddedToken* token) {
    if (token != nullptr) {
      out.push_back(token->id);
    } else if (tables_->nfc) {
      tables_->encode_normalised(to_nfc(part), out);
    } else {
      tables_->encode_normalised(part, out);
    }
  });
  return out;
}

std::vector<TokenId> BytePairTokenizer::encode_alone(std::string_view utf8_text) const {
  std::vector<TokenId> ids = tables_->prefix;
  const std::vector<TokenId> text = encode(utf8_text);
  ids.insert(ids.end(), text.begin(), text.end());
  return ids;
}

std::string BytePairTokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string text;
  for (const TokenId id : ids) {
    if (id < 0) throw DataError(fmt::format("token id {} is negative", id));
    const IdTable::Kind kind = tables_->ids.kind(id);
    if (kind == IdTable::Kind::none) continue;
    if (skip_special && kind == IdTable::Kind::special) continue;
    text += tables_->ids.bytes[static_cast<std::size_t>(id)];
  }
  return text;
}

bool BytePairTokenizer::holds_special_token(std::string_view utf8_text) const {
  bool found = false;
  const auto look = [&](std::string_view /*part*/, const AddedToken* token) {
    found = found || (token != nullptr && token->special);
  };
  tables_->raw_added.split(utf8_text, look);
  if (!tables_->normalised_added.empty()) {
    tables_->normalised_added.split(tables_->nfc ? to_nfc(utf8_text) : std::string(utf8_text),
                                    look);
  }
  return found;
}

std::int64_t BytePairTokenizer::vocabulary_size() const {
  return static_cast<std::int64_t>(tables_->ids.bytes.size());
}

std::optional<TokenId> BytePairTokenizer::token_id(std::string_view added_token) const {
  const auto found = tables_->added_ids.find(std::string(added_token));
  if (found == tables_->added_ids.end()) return std::nullopt;
  return found->second;
}

std::optional<TokenId> BytePairTokenizer::eos() const { return tables_->eos; }
std::optional<TokenId> BytePairTokenizer::pad() const { return tables_->pad; }
const std::string& BytePairTokenizer::content_hash() const { return tables_->content_hash; }

}  // namespace jforge
