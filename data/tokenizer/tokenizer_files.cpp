#define XXH_INLINE_ALL
#include "data/tokenizer/tokenizer_files.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>

#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/model_directory.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/unpacked_file.h"
#include "runtime/contained_file.h"
#include "runtime/read_file.h"

namespace jforge {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string read_gz(const fs::path& file) {
  UnpackedFile unpacked(file);
  if (!unpacked.is_packed()) {
    throw DataError(fmt::format("{} is not gzip data: copy it again", file.string()));
  }
  std::string bytes;
  std::array<char, 1 << 16> buffer{};
  while (const std::size_t count = unpacked.read(buffer)) {
    bytes.append(buffer.data(), count);
  }
  return bytes;
}

/// Returns an empty path if neither `name` nor `name.gz` exists.
fs::path find_plain_or_gz(const fs::path& directory, const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"}) {
    if (holds_contained_file(directory, candidate)) return directory / candidate;
  }
  return {};
}

class ContentHash {
 public:
  void add(const std::string& name, const std::string& content) {
    hash_ = XXH3_64bits_withSeed(name.data(), name.size(), hash_);
    hash_ = XXH3_64bits_withSeed(content.data(), content.size(), hash_);
  }
  [[nodiscard]] std::string hex() const { return fmt::format("{:016x}", hash_); }

 private:
  XXH64_hash_t hash_ = 0;
};

void read_vocab_json(const std::string& text, const std::string& origin,
                     TokenizerDefinition& definition) {
  const json vocabulary = parse_json_object(text, origin);
  definition.vocabulary.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    definition.vocabulary.emplace_back(token, json_token_id(id, origin, token));
  }
}

void read_merges_txt(const std::string& text, const std::string& origin,
                     TokenizerDefinition& definition) {
  require_valid_utf8(text, origin);
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line.starts_with("#version")) continue;
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || blank == 0 || blank + 1 == line.size() ||
        line.find(' ', blank + 1) != std::string_view::npos) {
      throw DataError(fmt::format("{}: line {} is not two tokens with one blank between: '{}'",
                                  origin, number, line.substr(0, 60)));
    }
    definition.merges.emplace_back(line.substr(0, blank), line.substr(blank + 1));
  }
}

/// Reads "text" or {"content": "text", …}.
std::optional<std::string> token_content(const json& value, const std::string& origin,
                                         const std::string& what) {
  if (value.is_null()) return std::nullopt;
  if (value.is_object()) return json_string(json_member(value, "content"), origin, what);
  return json_string(value, origin, what);
}

/// Adds tokens that tokenizer.json lacks. Throws DataError if both disagree.
void merge_added_tokens(const json& config, const std::string& origin,
                        TokenizerDefinition& definition) {
  const json& decoder = json_member(config, "added_tokens_decoder");
  if (decoder.is_null()) return;
  if (!decoder.is_object()) {
    throw DataError(fmt::format("{}: added_tokens_decoder must be an object", origin));
  }
  for (const auto& [key, entry] : decoder.items()) {
    std::int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size()) id = -1;
    const AddedToken token = json_added_token(
        entry, json_token_id(id, origin, fmt::format("added token '{}'", key)), origin);
    const auto same = [&](const AddedToken& other) {
      return other.id == token.id || other.content == token.content;
    };
    const auto known = std::find_if(definition.added.begin(), definition.added.end(), same);
    if (known == definition.added.end()) {
      definition.added.push_back(token);
    } else if (!(*known == token)) {
      throw DataError(fmt::format("{}: added token {} '{}' is declared differently a second time",
                                  origin, token.id, token.content));
    }
  }
}

bool is_added(const TokenizerDefinition& definition, const std::string& content) {
  return std::any_of(definition.added.begin(), definition.added.end(),
                     [&](const AddedToken& token) { return token.content == content; });
}

void require_added(const TokenizerDefinition& definition, const std::string& content,
                   const std::string& origin, std::string_view what) {
  if (!is_added(definition, content)) {
    throw DataError(
        fmt::format("{}: {} '{}' is not among the added tokens: declare it in "
                    "added_tokens_decoder",
                    origin, what, content));
  }
}

/// Reads the fields that name tokens or change ids.
void read_tokenizer_config(const json& config, const std::string& origin,
                           TokenizerDefinition& definition) {
  merge_added_tokens(config, origin, definition);
  for (const char* key : {"add_prefix_space", "add_eos_token", "split_special_tokens"}) {
    if (json_flag(config, key, false, origin)) {
      throw DataError(fmt::format("{}: {} = true is not supported", origin, key));
    }
  }
  const bool prefixed = !definition.prefix.empty();
  if (json_flag(config, "add_bos_token", prefixed, origin) != prefixed) {
    throw DataError(fmt::format(
        "{}: add_bos_token = {}, but the post_processor of tokenizer.json {}: make them agree",
        origin, !prefixed, prefixed ? "adds a token" : "adds none"));
  }
  for (const char* key : {"eos_token", "pad_token", "bos_token", "unk_token"}) {
    const auto content = token_content(json_member(config, key), origin, key);
    if (!content) continue;
    require_added(definition, *content, origin, key);
    if (std::string_view(key) == "eos_token") definition.eos = content;
    if (std::string_view(key) == "pad_token") definition.pad = content;
  }
  // The last two keys are transformers 5's; an object maps names to tokens.
  for (const char* key :
       {"additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"}) {
    const json& tokens = json_member(config, key);
    if (tokens.is_null()) continue;
    if (!tokens.is_array() && !tokens.is_object()) {
      throw DataError(fmt::format("{}: {} must be an array or an object", origin, key));
    }
    for (const json& entry : tokens) {
      const auto content = token_content(entry, origin, key);
      if (content) require_added(definition, *content, origin, key);
    }
  }
}

/// Derives normalisation and splitting from the class if there is no tokenizer.json.
void apply_tokenizer_class(const json& config, const std::string& origin,
                           TokenizerDefinition& definition) {
  const std::string name =
      json_string(json_member(config, "tokenizer_class"), origin, "tokenizer_class");
  if (name != "Qwen2Tokenizer" && name != "Qwen2TokenizerFast") {
    throw DataError(
        fmt::format("{}: tokenizer_class '{}' is not supported without a "
                    "tokenizer.json: known is Qwen2Tokenizer",
                    origin, name));
  }
  definition.split_expressions = {std::string(kQwen2Split)};
  definition.nfc = true;
}

}  // namespace

std::string read_file_or_gz(const fs::path& file) {
  if (file.extension() == ".gz") return read_gz(file);
  std::ifstream stream = open_input(file);
  std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream) {
    throw DataError(fmt::format("cannot read {}: check path and permissions", file.string()));
  }
  return bytes;
}

bool tokenizer_files_present(const fs::path& directory) {
  return holds_contained_file(directory, "tokenizer.json") ||
         (!find_plain_or_gz(directory, "vocab.json").empty() &&
          !find_plain_or_gz(directory, "merges.txt").empty() &&
          holds_contained_file(directory, "tokenizer_config.json"));
}

TokenizerDefinition read_tokenizer_files(const fs::path& directory) {
  expect_model_directory(directory);
  if (!tokenizer_files_present(directory)) {
    throw DataError(
        fmt::format("{} holds no tokenizer: expected tokenizer.json, or vocab.json, "
                    "merges.txt and tokenizer_config.json",
                    directory.string()));
  }
  TokenizerDefinition definition;
  ContentHash hash;
  const auto read = [&](const std::string& name, const fs::path& file) {
    std::string text = read_file_or_gz(file);
    expect_no_lfs_pointer(file, text);
    hash.add(name, text);
    return text;
  };
  const fs::path config_path = directory / "tokenizer_config.json";
  const bool whole = holds_contained_file(directory, "tokenizer.json");
  if (whole) {
    const fs::path file = directory / "tokenizer.json";
    parse_tokenizer_json(read("tokenizer.json", file), file.string(), definition);
  } else {
    const fs::path vocab = find_plain_or_gz(directory, "vocab.json");
    const fs::path merges = find_plain_or_gz(directory, "merges.txt");
    definition.origin = vocab.string();
    read_vocab_json(read("vocab.json", vocab), vocab.string(), definition);
    read_merges_txt(read("merges.txt", merges), merges.string(), definition);
  }
  if (holds_contained_file(directory, "tokenizer_config.json")) {
    const std::string origin = config_path.string();
    const json config = parse_json_object(read("tokenizer_config.json", config_path), origin);
    if (!whole) apply_tokenizer_class(config, origin, definition);
    read_tokenizer_config(config, origin, definition);
  }
  if (holds_contained_file(directory, "added_tokens.json")) {
    const fs::path added = directory / "added_tokens.json";
    const json tokens = parse_json_object(read("added_tokens.json", added), added.string());
    for (const auto& [content, id] : tokens.items()) {
      require_added(definition, content, added.string(), "token");
    }
  }
  // Part of the identity, because it shapes every prompt.
  const fs::path chat_template = directory / "chat_template.jinja";
  if (holds_contained_file(directory, "chat_template.jinja"))
    read("chat_template.jinja", chat_template);
  definition.content_hash = hash.hex();
  return definition;
}

}  // namespace jforge
