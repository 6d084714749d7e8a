/// tokenizer.json: reads what changes ids or text, refuses what is unsupported.

#include <fmt/core.h>

#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"

namespace jforge {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& origin, std::string_view field, const json& value) {
  std::string shown = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
  throw DataError(
      fmt::format("{}: {} = {} is not supported; take a model of a supported family (Qwen2, "
                  "Qwen2.5, Qwen3, Llama 3, SmolLM2, SmolLM3 or Mistral Nemo)",
                  origin, field, shown));
}

std::string type_of(const json& object, const std::string& origin, std::string_view where) {
  if (!object.is_object()) throw DataError(fmt::format("{}: {} must be an object", origin, where));
  return json_string(json_member(object, "type"), origin, fmt::format("{}.type", where));
}

/// Refuses values other than null, false, zero or an empty string.
void require_unset(const json& object, const std::string& key, const std::string& origin) {
  const json& value = json_member(object, key);
  const bool unset = value.is_null() || value == false || value == "" ||
                     (value.is_number() && value.get<double>() == 0.0);
  if (!unset) refuse(origin, key, value);
}

const json& array_of(const json& object, const std::string& key, const std::string& origin) {
  const json& value = json_member(object, key);
  if (!value.is_array()) throw DataError(fmt::format("{}: {} must be an array", origin, key));
  return value;
}

void read_normalizer(const json& normalizer, const std::string& origin,
                     TokenizerDefinition& definition) {
  if (normalizer.is_null()) return;
  const std::string type = type_of(normalizer, origin, "normalizer");
  if (type == "NFC") {
    definition.nfc = true;
  } else if (type == "Sequence") {
    for (const json& part : array_of(normalizer, "normalizers", origin)) {
      read_normalizer(part, origin, definition);
    }
  } else {
    refuse(origin, "normalizer", normalizer);
  }
}

/// Returns true if it splits by GPT-2's expression.
bool read_byte_level(const json& part, const std::string& origin) {
  json_only_known(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, origin,
                  "pre_tokenizer ByteLevel");
  if (json_flag(part, "add_prefix_space", true, origin)) {
    refuse(origin, "pre_tokenizer ByteLevel.add_prefix_space", true);
  }
  return json_flag(part, "use_regex", true, origin);
}

std::string read_split(const json& part, const std::string& origin) {
  json_only_known(part, {"type", "pattern", "behavior", "invert"}, origin, "pre_tokenizer Split");
  const json& pattern = json_member(part, "pattern");
  if (!pattern.is_object() || !json_member(pattern, "Regex").is_string()) {
    refuse(origin, "pre_tokenizer Split.pattern", pattern);
  }
  if (json_member(part, "behavior") != "Isolated") {
    refuse(origin, "pre_tokenizer Split.behavior", json_member(part, "behavior"));
  }
  require_unset(part, "invert", origin);
  return json_member(pattern, "Regex").get<std::string>();
}

/// Returns an equivalent expression.
std::string read_digits(const json& part, const std::string& origin) {
  json_only_known(part, {"type", "individual_digits"}, origin, "pre_tokenizer Digits");
  return std::string(json_flag(part, "individual_digits", false, origin) ? kSingleDigits
                                                                         : kDigitRuns);
}

void read_pre_tokenizer(const json& value, const std::string& origin,
                        TokenizerDefinition& definition) {
  const std::string type = type_of(value, origin, "pre_tokenizer");
  if (type == "ByteLevel") {
    if (!read_byte_level(value, origin)) refuse(origin, "pre_tokenizer", value);
    definition.split_expressions = {std::string(kGpt2Split)};
    return;
  }
  if (type != "Sequence") refuse(origin, "pre_tokenizer", value);
  for (const json& part : array_of(value, "pretokenizers", origin)) {
    const std::string kind = type_of(part, origin, "a part of pre_tokenizer");
    if (&part == &value["pretokenizers"].back()) {
      if (kind != "ByteLevel") refuse(origin, "pre_tokenizer", value);
      if (read_byte_level(part, origin)) definition.split_expressions.emplace_back(kGpt2Split);
    } else if (kind == "Split") {
      definition.split_expressions.push_back(read_split(part, origin));
    } else if (kind == "Digits") {
      definition.split_expressions.push_back(read_digits(part, origin));
    } else {
      refuse(origin, "pre_tokenizer", value);
    }
  }
  if (definition.split_expressions.empty()) refuse(origin, "pre_tokenizer", value);
}

void read_template_token(const json& processor, const json& piece, const std::string& origin,
                         std::vector<TokenId>& ids) {
  const std::string name = json_string(json_member(json_member(piece, "SpecialToken"), "id"),
                                       origin, "post_processor SpecialToken.id");
  const json& tokens = json_member(processor, "special_tokens");
  const json& token = tokens.is_object() ? json_member(tokens, name) : tokens;
  if (!token.is_object()) refuse(origin, "post_processor TemplateProcessing.single", piece);
  for (const json& id : array_of(token, "ids", origin)) {
    ids.push_back(json_token_id(id, origin, name));
  }
}

/// Accepts only special tokens before a text.
void read_template(const json& processor, const std::string& origin,
                   TokenizerDefinition& definition) {
  const json& pieces = array_of(processor, "single", origin);
  const auto holds = [&](const json& piece, const char* kind) {
    return piece.is_object() && json_member(piece, kind).is_object();
  };
  const bool text_last = !pieces.empty() && holds(pieces.back(), "Sequence") &&
                         json_member(json_member(pieces.back(), "Sequence"), "id") == "A";
  if (!text_last) refuse(origin, "post_processor TemplateProcessing.single", pieces);
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
    if (!holds(pieces[i], "SpecialToken")) {
      refuse(origin, "post_processor TemplateProcessing.single", pieces);
    }
    read_template_token(processor, pieces[i], origin, definition.prefix);
  }
}

/// Reads the prefix; ByteLevel only trims offsets.
void read_post_processor(const json& value, const std::string& origin,
                         TokenizerDefinition& definition) {
  const std::string type = type_of(value, origin, "post_processor");
  if (type == "Sequence") {
    for (const json& part : array_of(value, "processors", origin)) {
      read_post_processor(part, origin, definition);
    }
    return;
  }
  if (type == "TemplateProcessing") {
    // The order of two prefixes would be ambiguous.
    if (!definition.prefix.empty()) refuse(origin, "post_processor", value);
    read_template(value, origin, definition);
    return;
  }
  if (type != "ByteLevel") refuse(origin, "post_processor", value);
}

std::pair<std::string, std::string> read_merge(const json& entry, std::size_t rank,
                                               const std::string& origin) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  }
  if (entry.is_string()) {
    const auto& text = entry.get_ref<const std::string&>();
    const std::size_t blank = text.find(' ');
    if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos) {
      return {text.substr(0, blank), text.substr(blank + 1)};
    }
  }
  throw DataError(
      fmt::format("{}: merge {} must be \"left right\" or [left, right]", origin, rank));
}

void read_model(const json& model, const std::string& origin, TokenizerDefinition& definition) {
  json_only_known(
      model,
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
      origin, "model");
  if (json_member(model, "type") != "BPE") refuse(origin, "model.type", json_member(model, "type"));
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                          "byte_fallback", "unk_token"}) {
    require_unset(model, key, origin);
  }
  definition.ignore_merges = json_flag(model, "ignore_merges", false, origin);
  const json& vocabulary = json_member(model, "vocab");
  if (!vocabulary.is_object()) {
    throw DataError(fmt::format("{}: model.vocab must be an object", origin));
  }
  definition.vocabulary.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    definition.vocabulary.emplace_back(token, json_token_id(id, origin, token));
  }
  const json& merges = array_of(model, "merges", origin);
  definition.merges.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    definition.merges.push_back(read_merge(merges[rank], rank, origin));
  }
}

}  // namespace

void parse_tokenizer_json(const std::string& text, const std::string& origin,
                          TokenizerDefinition& definition) {
  const json root = parse_json_object(text, origin);
  json_only_known(root,
                  {"version", "truncation", "padding", "added_tokens", "normalizer",
                   "pre_tokenizer", "post_processor", "decoder", "model"},
                  origin, "the tokenizer");
  definition.origin = origin;
  // "truncation" and "padding" only record transformers' last call and are ignored.
  read_normalizer(json_member(root, "normalizer"), origin, definition);
  read_pre_tokenizer(json_member(root, "pre_tokenizer"), origin, definition);
  const json& post_processor = json_member(root, "post_processor");
  if (!post_processor.is_null()) read_post_processor(post_processor, origin, definition);
  const json& decoder = json_member(root, "decoder");
  if (type_of(decoder, origin, "decoder") != "ByteLevel") refuse(origin, "decoder", decoder);
  read_model(json_member(root, "model"), origin, definition);
  const json& added = json_member(root, "added_tokens");
  if (added.is_null()) return;
  for (const json& entry : array_of(root, "added_tokens", origin)) {
    if (!entry.is_object()) {
      throw DataError(fmt::format("{}: an added token must be an object", origin));
    }
    const TokenId id = json_token_id(json_member(entry, "id"), origin, "an added token");
    definition.added.push_back(json_added_token(entry, id, origin));
  }
}

}  // namespace jforge
