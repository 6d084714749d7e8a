#pragma once

/// Places inside a JSON record, on simdjson's tree.

#include <simdjson.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// The value of `key`; nothing if `object` is none or lacks it. Of members with the same key the
/// last counts, as in Python.
[[nodiscard]] std::optional<simdjson::dom::element> json_member(simdjson::dom::element object,
                                                                std::string_view key);

/// A field name ("input"), or a JSON pointer ("/a/b/0"; "" is the whole record; ~0 and ~1 stand for
/// ~ and /). A "!" at the end of a pointer's part enters a string that itself holds JSON:
/// "/llm_judgement!/score".
class JsonPath {
 public:
  /// ConfigError when a part is malformed.
  explicit JsonPath(std::string_view text);

  [[nodiscard]] const std::string& text() const { return text_; }

  /// The parsers of strings that hold JSON, one for each level; reused from record to record.
  class Scratch {
   public:
    simdjson::dom::parser& at(std::size_t level);

   private:
    std::vector<std::unique_ptr<simdjson::dom::parser>> parsers_;
  };

  /// The element at this path; nothing when a part is missing or the entered string holds no JSON.
  /// It lives until `scratch` is used again.
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

/// A part of a text that is made of fields.
struct TextPart {
  std::string literal;           ///< Stands before the field.
  std::string name;              ///< The field as it is written; empty: the part is literal.
  std::vector<JsonPath> fields;  ///< As parse_fields() has them.
};

/// The parts of "… {FIELD} …"; "{{" and "}}" are braces. ConfigError quoting a template with a
/// brace that stands alone, or without a field.
[[nodiscard]] std::vector<TextPart> parse_text_template(std::string_view text);

/// The paths of "PATH | PATH …": a record's text is at the first one that it has.
[[nodiscard]] std::vector<JsonPath> parse_fields(std::string_view text);

}  // namespace jforge
