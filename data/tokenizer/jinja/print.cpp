#include <fmt/format.h>
#include <unicode/uchar.h>

#include <algorithm>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/unicode.h"

/// Values as text: Python's str() and repr(), and JSON.

namespace jforge::jinja {
namespace {

struct Style {
  bool json = false;
  bool ascii_only = false;
};

/// Applies str.isprintable().
bool is_printable(char32_t c) {
  return c == ' ' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

class Writer {
 public:
  Writer(Runtime& runtime, std::string& out, const Style& style)
      : runtime_(runtime), out_(out), style_(style) {}

  void write(const Value& value) {
    runtime_.charge(1);
    switch (value.kind) {
      case Kind::none:
        return add(style_.json ? "null" : "None");
      case Kind::boolean:
        if (style_.json) return add(value.boolean ? "true" : "false");
        return add(value.boolean ? "True" : "False");
      case Kind::integer:
        return add(std::to_string(value.integer));
      case Kind::string:
        if (!style_.json) expect_plain(value);
        return write_text(value.text);
      case Kind::tuple:
        if (!style_.json) {
          const auto& items = value.sequence->items;
          return write_all(items, "(", items.size() == 1 ? ",)" : ")");
        }
        [[fallthrough]];
      case Kind::list:
        return write_all(value.sequence->items, "[", "]");
      case Kind::mapping:
        return write_all(value.mapping->entries, "{", "}");
      default:
        if (style_.json) fail(fmt::format("a {} has no JSON", type_name(value.kind)));
        if (value.is(Kind::undefined)) return add("Undefined");
        fail(fmt::format("printing a {} is not supported", type_name(value.kind)));
    }
  }

 private:
  void add(std::string_view text) {
    runtime_.charge_bytes(text.size());
    out_ += text;
    // Shared sublists can multiply the text.
    if (out_.size() > kMaxBytes) fail("a value is too long");
  }

  void write(const Entry& entry) {
    if (style_.json && !entry.key.is(Kind::string)) fail("only strings are keys in JSON here");
    write(entry.key);
    add(": ");
    write(entry.value);
  }

  template <typename Item>
  void write_all(std::span<const Item> items, std::string_view open, std::string_view close) {
    add(open);
    {
      const Nesting nesting(depth_, kMaxValueDepth);
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) add(", ");
        write(items[i]);
      }
    }
    add(close);
  }

  void write_text(std::string_view text) {
    constexpr std::string_view kShort = "\\\n\r\t\f\b";
    constexpr std::string_view kLetters = "\\nrtfb";
    const std::string_view letters = kShort.substr(0, style_.json ? 6 : 4);
    const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
    const char quote = single && !style_.json ? '\'' : '"';
    std::string quoted(1, quote);
    for (std::size_t at = 0; at < text.size();) {
      const char byte = text[at];  // Fast path.
      if (byte >= ' ' && byte < 0x7F && byte != quote && byte != '\\') {
        quoted += byte;
        ++at;
        continue;
      }
      const auto [c, size] = code_point_at(text, at);
      const std::size_t letter = c < 0x80 ? letters.find(static_cast<char>(c)) : text.npos;
      if (letter != text.npos || c == static_cast<char32_t>(quote)) {
        quoted += '\\';
        quoted += letter == text.npos ? quote : kLetters[letter];
      } else if (style_.json ? c >= 0x20 && !(style_.ascii_only && c >= 0x7F) : is_printable(c)) {
        quoted += text.substr(at, size);
      } else {
        append_code(quoted, static_cast<std::uint32_t>(c));
      }
      at += size;
    }
    add(quoted += quote);
  }

  void append_code(std::string& quoted, std::uint32_t c) const {
    if (style_.json && c >= 0x10000) {
      quoted += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10),
                            0xDC00 + ((c - 0x10000) & 0x3FF));
    } else if (style_.json || (c >= 0x100 && c < 0x10000)) {
      quoted += fmt::format("\\u{:04x}", c);
    } else {
      quoted += c < 0x100 ? fmt::format("\\x{:02x}", c) : fmt::format("\\U{:08x}", c);
    }
  }

  Runtime& runtime_;
  std::string& out_;
  const Style& style_;
  int depth_ = 0;
};

}  // namespace

void append_text(Runtime& runtime, std::string& out, const Value& value) {
  if (value.is(Kind::string)) {
    out += value.text;
  } else if (!value.is(Kind::undefined)) {
    const Style style;
    Writer(runtime, out, style).write(value);
  }
}

Value to_json(Runtime& runtime, const Value& value, const Parameters& given) {
  const Style style{.json = true, .ascii_only = given.flag(0, false)};
  std::string out;
  Writer(runtime, out, style).write(value);
  return runtime.text(out);
}

}  // namespace jforge::jinja
