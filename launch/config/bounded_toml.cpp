#include "launch/config/bounded_toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "runtime/error.h"

namespace jforge {

namespace {

constexpr std::size_t kMaxDepth = 64;

/// Where the string or comment that begins at `at` ends: its last character, or the text's end.
std::size_t skip(std::string_view text, std::size_t at) {
  const char mark = text[at];
  if (mark == '#') {
    return std::min(text.find('\n', at), text.size());
  }
  const std::string_view three = text.substr(at, 3);
  const bool several_lines = three.size() == 3 && three[1] == mark && three[2] == mark;
  const std::string_view end = several_lines ? three : three.substr(0, 1);
  for (at += end.size(); at < text.size(); ++at) {
    if (text[at] == '\\' && mark == '"') {
      ++at;
    } else if (text.substr(at, end.size()) == end || (text[at] == '\n' && !several_lines)) {
      return at + end.size() - 1;
    }
  }
  return text.size();
}

/// The line in which more than kMaxDepth brackets are open or a key has more parts.
std::optional<std::ptrdiff_t> line_nested_too_deeply(std::string_view text) {
  std::size_t depth = 0;
  std::size_t dots = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '"':
      case '\'':
      case '#':
        at = skip(text, at);
        break;
      case '.':
        ++dots;
        break;
      case '[':
      case '{':
        ++depth;
        break;
      case ']':
      case '}':
        depth -= depth > 0 ? 1 : 0;
        break;
      case '=':
      case ',':
      case '\n':
        dots = 0;
        break;
      default:
        break;
    }
    if (depth > kMaxDepth || dots >= kMaxDepth) {
      const auto end = text.begin() + static_cast<std::ptrdiff_t>(at);
      return 1 + std::count(text.begin(), end, '\n');
    }
  }
  return std::nullopt;
}

}  // namespace

toml::table parse_bounded_toml(const std::string& text, const std::string& file_name) {
  if (const auto line = line_nested_too_deeply(text)) {
    throw ConfigError(
        fmt::format("{}:{}: nested more than {} levels deep", file_name, *line, kMaxDepth));
  }
  try {
    return file_name.empty() ? toml::parse(text) : toml::parse(text, file_name);
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        fmt::format("{}:{}: {}", file_name, error.source().begin.line, error.description()));
  }
}

}  // namespace jforge
