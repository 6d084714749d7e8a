#pragma once

/// Access to the tokenizer's JSON files. All functions throw DataError naming file and field.

#include <fmt/core.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "data/tokenizer/added_tokens.h"
#include "runtime/bounded_json.h"
#include "runtime/error.h"
#include "runtime/ids.h"

namespace jforge {

inline nlohmann::json parse_json_object(const std::string& text, const std::string& origin) {
  nlohmann::json root = parse_bounded_json(text, origin);
  if (!root.is_object()) throw DataError(fmt::format("{}: expected a JSON object", origin));
  return root;
}

/// Returns null if `key` is absent.
inline const nlohmann::json& json_member(const nlohmann::json& object, const std::string& key) {
  static const nlohmann::json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

/// Requires a string; `what` names the field.
inline const std::string& json_string(const nlohmann::json& value, const std::string& origin,
                                      std::string_view what) {
  if (!value.is_string()) throw DataError(fmt::format("{}: {} must be a string", origin, what));
  return value.get_ref<const std::string&>();
}

/// Returns `fallback` if `key` is absent or null.
inline bool json_flag(const nlohmann::json& object, const std::string& key, bool fallback,
                      const std::string& origin) {
  const nlohmann::json& value = json_member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) {
    throw DataError(fmt::format("{}: {} must be true or false", origin, key));
  }
  return value.get<bool>();
}

/// Accepts integers in [0, 2^31 − 2].
inline TokenId json_token_id(const nlohmann::json& value, const std::string& origin,
                             std::string_view what) {
  constexpr std::int64_t kLargest = std::numeric_limits<TokenId>::max() - 1;
  const bool integer = value.is_number_integer();
  if (!integer || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > kLargest) {
    throw DataError(fmt::format("{}: the id of {} must be an integer between 0 and {}", origin,
                                what, kLargest));
  }
  return static_cast<TokenId>(value.get<std::int64_t>());
}

/// Refuses members that are not in `known`.
inline void json_only_known(const nlohmann::json& object,
                            std::initializer_list<std::string_view> known,
                            const std::string& origin, std::string_view where) {
  if (!object.is_object()) throw DataError(fmt::format("{}: {} must be an object", origin, where));
  for (const auto& member : object.items()) {
    bool found = false;
    for (const std::string_view key : known) found = found || key == member.key();
    if (!found) {
      throw DataError(
          fmt::format("{}: {} has '{}', which is not supported", origin, where, member.key()));
    }
  }
}

inline AddedToken json_added_token(const nlohmann::json& entry, TokenId id,
                                   const std::string& origin) {
  json_only_known(
      entry,
      {"id", "content", "special", "lstrip", "rstrip", "normalized", "single_word", "__type"},
      origin, fmt::format("added token {}", id));
  AddedToken token;
  token.id = id;
  token.content = json_string(json_member(entry, "content"), origin,
                              fmt::format("the content of added token {}", id));
  if (json_flag(entry, "single_word", false, origin)) {
    throw DataError(fmt::format("{}: added token {} '{}' has single_word, which is not supported",
                                origin, id, token.content));
  }
  token.special = json_flag(entry, "special", false, origin);
  token.lstrip = json_flag(entry, "lstrip", false, origin);
  token.rstrip = json_flag(entry, "rstrip", false, origin);
  token.normalized = json_flag(entry, "normalized", !token.special, origin);
  return token;
}

}  // namespace jforge
