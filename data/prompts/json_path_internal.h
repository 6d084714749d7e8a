#pragma once

#include <simdjson.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// Returns nullopt if `object` has no such key or is not an object. The last of duplicate keys
/// counts, as in Python.
[[nodiscard]] std::optional<simdjson::dom::element> json_member(simdjson::dom::element object,
                                                                std::string_view key);

/// A field name ("input") or JSON pointer ("/a/b/0"; "" is the whole record; ~0 and ~1 encode ~ and
/// /). "!" after a component enters a string that holds JSON: "/llm_judgement!/score".
class JsonPath {
 public:
  /// Throws ConfigError if a component is malformed.
  explicit JsonPath(std::string_view text);

  [[nodiscard]] const std::string& text() const { return text_; }

  /// Parsers of strings that hold JSON, one per nesting level.
  class Scratch {
   public:
    simdjson::dom::parser& at(std::size_t level);

   private:
    std::vector<std::unique_ptr<simdjson::dom::parser>> parsers_;
  };

  /// Returns nullopt if the path is missing or an entered string is not JSON. The element is valid
  /// until `scratch` is used again.
  [[nodiscard]] std::optional<simdjson::dom::element> find(simdjson::dom::element root,
                                                           Scratch& scratch) const;

 private:
  struct Part {
    std::string key;
    bool enter = false;
  };
  std::string text_;
  std::vector<Part> parts_;
};

/// A literal and the field after it, if any.
struct TextPart {
  std::string literal;
  std::string name;              ///< As written; empty if there is none.
  std::vector<JsonPath> fields;  ///< From parse_fields().
};

/// Parses "… {FIELD} …" with "{{" and "}}" as literal braces. Throws ConfigError if a brace is
/// unpaired or there is no field.
[[nodiscard]] std::vector<TextPart> parse_text_template(std::string_view text);

/// Parses "PATH | PATH …", of which the first existing one counts.
[[nodiscard]] std::vector<JsonPath> parse_fields(std::string_view text);

}  // namespace jforge
