#include "runtime/text_seal.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

constexpr std::string_view kJsonKey = "\"checksum\":";
constexpr std::string_view kTomlKey = "\n# checksum: ";
constexpr std::size_t kDigits = 16;

/// Removes `suffix` from the end of `text`; false if it is not there.
bool cut(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) {
    return false;
  }
  text.remove_suffix(suffix.size());
  return true;
}

/// Checks the digits at the end of `text`, after `key` and `before_digits`.
TextSeal compare(std::string_view text, std::string_view key, std::string_view before_digits) {
  if (text.size() < kDigits) {
    return TextSeal::absent;
  }
  const auto sealed = parse_hash_hex(text.substr(text.size() - kDigits));
  text.remove_suffix(kDigits);
  std::string_view front = text;
  if (!sealed || !cut(front, before_digits) || !cut(front, key)) {
    return TextSeal::absent;
  }
  return hash64(text) == *sealed ? TextSeal::holds : TextSeal::broken;
}

[[noreturn]] void throw_damaged(const std::string& what, TextSeal seal) {
  throw DataError(what + (seal == TextSeal::broken
                              ? " is damaged: its content does not match its checksum"
                              : " has no checksum: it is damaged, or of an earlier version"));
}

}  // namespace

std::string seal_json(std::string_view object) {
  const bool line = cut(object, "\n");
  expect(cut(object, "}"), "only JSON objects can be sealed");
  const bool indented = cut(object, "\n");
  const bool empty = object.ends_with('{');
  std::string text(object);
  text += empty ? "" : ",";
  // Formatted as nlohmann's other members: one per line, or without blanks.
  const std::size_t second_line = object.find('\n');
  const std::size_t name = object.find_first_not_of(" \n", second_line);
  text += indented && second_line != std::string_view::npos
              ? std::string(object.substr(second_line, name - second_line))
              : "";
  text += kJsonKey;
  text += indented ? " \"" : "\"";
  text += hash_hex(hash64(std::string_view(text)));
  text += indented ? "\"\n}" : "\"}";
  text += line ? "\n" : "";
  return text;
}

std::string seal_toml(std::string_view document) {
  std::string text(document);
  text += kTomlKey.substr(text.empty() || text.ends_with('\n') ? 1 : 0);
  text += hash_hex(hash64(std::string_view(text)));
  text += '\n';
  return text;
}

TextSeal examine_seal(std::string_view text) {
  const bool line = cut(text, "\n");
  if (cut(text, "\"\n}")) {
    return compare(text, kJsonKey, " \"");
  }
  if (cut(text, "\"}")) {
    return compare(text, kJsonKey, "\"");
  }
  if (!line) {
    return TextSeal::absent;
  }
  // The seal of an empty document has no line feed before it.
  return text.starts_with(kTomlKey.substr(1)) && text.size() == kTomlKey.size() - 1 + kDigits
             ? compare(text, kTomlKey.substr(1), "")
             : compare(text, kTomlKey, "");
}

void refuse_broken_seal(std::string_view text, const std::string& name) {
  if (examine_seal(text) == TextSeal::broken) {
    throw_damaged(name, TextSeal::broken);
  }
}

std::string read_sealed(const std::filesystem::path& path) {
  std::string text = read_file(path);
  refuse_broken_seal(text, path.string());
  return text;
}

std::string verify_sealed(const std::filesystem::path& path) {
  std::string text = read_file(path);
  if (const TextSeal seal = examine_seal(text); seal != TextSeal::holds) {
    throw_damaged(path.string(), seal);
  }
  return text;
}

void verify_sealed_lines(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const auto line = std::string_view(text).substr(begin, end - begin);
    const std::string place = fmt::format("{}:{}", path.string(), number);
    if (end < text.size()) {
      if (const TextSeal seal = examine_seal(line); seal != TextSeal::holds) {
        throw_damaged(place, seal);
      }
    } else if (examine_seal(line.substr(0, line.size() - 1)) == TextSeal::holds) {
      // A sealed line and one more byte, which was the newline.
      throw_damaged(place, TextSeal::broken);
    }
    begin = end + 1;
  }
}

}  // namespace jforge
