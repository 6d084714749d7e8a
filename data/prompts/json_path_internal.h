#pragma once

#include <simdjson.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// Returns the value of `key`, or nullopt if `object` has no such key or is not an object. The last
/// of duplicate keys counts, as in Python.
[[nodiscard]] std::optional<simdjson::dom::element> json_member(simdjson::dom::element object,
                                                                std::string_view key);

/// A field name ("input") or JSON pointer ("/a/b/0"; "" is the whole record; ~0 and ~1 encode ~ and
/// /). A component that ends in "!" enters a string that holds JSON: "/llm_judgement!/score".
class JsonPath {
 public:
  /// Throws ConfigError if a component is malformed.
  explicit JsonPath(std::string_view text);

  [[nodiscard]] const std::string& text() const { return text_; }

  /// Reusable parsers for strings that hold JSON, one per nesting level.
  class Scratch {
   public:
    simdjson::dom::parser& at(std::size_t level);

   private:
    std::vector<std::unique_ptr<simdjson::dom::parser>> parsers_;
  };

  /// Returns the element at this path, or nullopt if it is missing or an entered string is not
  /// JSON. The element is valid until `scratch` is used again.
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

/// A literal, or a literal followed by a field.
struct TextPart {
  std::string literal;
  std::string name;              ///< The field as written; empty if there is none.
  std::vector<JsonPath> fields;  ///< `name` as read by parse_fields().
};

/// Parses "… {FIELD} …"; "{{" and "}}" are literal braces. Throws ConfigError if a brace is
/// unpaired or there is no field.
[[nodiscard]] std::vector<TextPart> parse_text_template(std::string_view text);

/// Parses "PATH | PATH …". A record's text is at the first path that it has.
[[nodiscard]] std::vector<JsonPath> parse_fields(std::string_view text);

}  // namespace jforge
