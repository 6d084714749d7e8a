#pragma once

/// JSON as Python's json module reads it. Benchmark files were written by Python: they hold
/// integers of any length, Infinity, NaN and lone surrogates, which strict parsers refuse.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// One JSON value with all that is inside it.
struct JsonNode {
  enum class Kind : std::uint8_t { null, boolean, number, text, array, object };
  Kind kind = Kind::null;
  /// Text: UTF-8, a lone surrogate in its three-byte form. Number: as it stands ("-12", "1e5",
  /// "NaN", "Infinity", "-Infinity").
  std::string text;
  std::string_view raw;           ///< The value as it stands in the parsed text.
  std::vector<std::string> keys;  ///< Of an object, one for each of `items`.
  std::vector<JsonNode> items;    ///< Elements of an array, values of an object.

  /// Value of the last member `key` of an object; null when there is none.
  [[nodiscard]] const JsonNode* find(std::string_view key) const;
};

/// The one JSON value that `text` is, nested at most 512 deep; nothing when it is none. `text` must
/// outlive the nodes' `raw`.
[[nodiscard]] std::optional<JsonNode> parse_json(std::string_view text);

}  // namespace jforge
