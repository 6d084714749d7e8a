#pragma once

/// JSON as Python's json writes it in benchmark files: with integers of any length, Infinity, NaN
/// and lone surrogates, which strict parsers reject.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

struct JsonNode {
  enum class Kind : std::uint8_t { null, boolean, number, text, array, object };
  Kind kind = Kind::null;
  /// Text: UTF-8, lone surrogates in three-byte form. Number: as written ("1e5", "NaN",
  /// "-Infinity").
  std::string text;
  std::string_view raw;           ///< As written.
  std::vector<std::string> keys;  ///< An object's, parallel to `items`.
  std::vector<JsonNode> items;    ///< Elements of an array or object.

  /// Returns the value of an object's last member `key`, or null.
  [[nodiscard]] const JsonNode* find(std::string_view key) const;
};

/// Parses a value nested at most 512 deep. Requires: `text` outlives `raw`.
[[nodiscard]] std::optional<JsonNode> parse_json(std::string_view text);

}  // namespace jforge
