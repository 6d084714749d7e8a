#include "data/tasks/code/json_tree.h"

#include "data/tokenizer/unicode.h"
#include "runtime/ascii.h"

namespace jforge {
namespace {

constexpr int kMaxTreeDepth = 512;

bool is_surrogate(char32_t unit) { return unit >= 0xD800 && unit <= 0xDFFF; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::optional<JsonNode> whole() {
    JsonNode node;
    if (!value(node, 0)) {
      return std::nullopt;
    }
    skip_space();
    if (at_ != text_.size()) {
      return std::nullopt;
    }
    return node;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) {
      ++at_;
    }
  }
  bool take(char c) {
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) {
      return false;
    }
    at_ += word.size();
    return true;
  }

  bool value(JsonNode& node, int depth) {
    skip_space();
    if (at_ == text_.size() || depth > kMaxTreeDepth) {
      return false;
    }
    const std::size_t begin = at_;
    if (!body(node, depth)) {
      return false;
    }
    node.raw = text_.substr(begin, at_ - begin);
    if (node.kind == JsonNode::Kind::number) {
      node.text = node.raw;
    }
    return true;
  }

  bool body(JsonNode& node, int depth) {
    switch (text_[at_]) {
      case '{':
        return members(node, depth);
      case '[':
        return elements(node, depth);
      case '"':
        node.kind = JsonNode::Kind::text;
        return string(node.text);
      case 'n':
        return take_word("null");
      case 't':
      case 'f':
        node.kind = JsonNode::Kind::boolean;
        return take_word(text_[at_] == 't' ? "true" : "false");
      default:
        node.kind = JsonNode::Kind::number;
        return number();
    }
  }

  bool elements(JsonNode& node, int depth) {
    node.kind = JsonNode::Kind::array;
    ++at_;
    skip_space();
    if (take(']')) {
      return true;
    }
    do {
      node.items.emplace_back();
      if (!value(node.items.back(), depth + 1)) {
        return false;
      }
      skip_space();
    } while (take(','));
    return take(']');
  }

  bool members(JsonNode& node, int depth) {
    node.kind = JsonNode::Kind::object;
    ++at_;
    skip_space();
    if (take('}')) {
      return true;
    }
    do {
      skip_space();
      node.keys.emplace_back();
      node.items.emplace_back();
      if (at_ == text_.size() || text_[at_] != '"' || !string(node.keys.back())) {
        return false;
      }
      skip_space();
      if (!take(':') || !value(node.items.back(), depth + 1)) {
        return false;
      }
      skip_space();
    } while (take(','));
    return take('}');
  }

  bool digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) {
      ++at_;
    }
    return at_ > begin;
  }

  bool number() {
    if (take_word("NaN")) {
      return true;
    }
    take('-');
    if (take_word("Infinity")) {
      return true;
    }
    if (!take('0') && !digits()) {
      return false;
    }
    if (take('.') && !digits()) {
      return false;
    }
    if (take('e') || take('E')) {
      if (!take('+')) {
        take('-');
      }
      return digits();
    }
    return true;
  }

  bool hex_unit(char32_t& unit) {
    if (text_.size() - at_ < 4) {
      return false;
    }
    unit = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = text_[at_++];
      const std::size_t digit =
          std::string_view("0123456789abcdef").find(static_cast<char>(c | 32));
      if (digit == std::string_view::npos || (!is_digit(c) && (c | 32) < 'a')) {
        return false;
      }
      unit = unit * 16 + static_cast<char32_t>(digit);
    }
    return true;
  }

  /// Reads a code point after "\u"; a surrogate pair has two units.
  bool unicode_escape(std::string& out) {
    char32_t unit = 0;
    if (!hex_unit(unit)) {
      return false;
    }
    if (unit >= 0xD800 && unit <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
      const std::size_t second = at_;
      char32_t low = 0;
      at_ += 2;
      if (!hex_unit(low)) {
        return false;
      }
      if (low >= 0xDC00 && low <= 0xDFFF) {
        append_utf8(out, 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00));
        return true;
      }
      at_ = second;
    }
    if (is_surrogate(unit)) {
      out += static_cast<char>(0xED);
      out += static_cast<char>(0x80 | ((unit >> 6) & 0x3F));
      out += static_cast<char>(0x80 | (unit & 0x3F));
    } else {
      append_utf8(out, unit);
    }
    return true;
  }

  bool escape(std::string& out) {
    if (at_ == text_.size()) {
      return false;
    }
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kBytes = "\"\\/\b\f\n\r\t";
    const char c = text_[at_++];
    if (c == 'u') {
      return unicode_escape(out);
    }
    const std::size_t which = kNames.find(c);
    if (which == std::string_view::npos) {
      return false;
    }
    out += kBytes[which];
    return true;
  }

  bool string(std::string& out) {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') {
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) {
        return false;
      }
      if (c != '\\') {
        out += c;
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

const JsonNode* JsonNode::find(std::string_view key) const {
  for (std::size_t i = keys.size(); i > 0; --i) {
    if (keys[i - 1] == key) {
      return &items[i - 1];
    }
  }
  return nullptr;
}

std::optional<JsonNode> parse_json(std::string_view text) { return Parser(text).whole(); }

}  // namespace jforge
