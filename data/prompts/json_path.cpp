#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "data/prompts/json_path_internal.h"
#include "runtime/error.h"

namespace jforge {
namespace {

std::string unescape(std::string_view part, std::string_view whole) {
  std::string key;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] != '~') {
      key += part[i];
    } else if (i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      key += part[++i] == '0' ? '~' : '/';
    } else {
      throw ConfigError(
          fmt::format("JSON pointer '{}': '~' must be followed by 0 (for ~) or 1 (for /)", whole));
    }
  }
  return key;
}

std::optional<simdjson::dom::element> child(simdjson::dom::element parent, const std::string& key) {
  if (parent.is_array()) {
    simdjson::dom::element result;
    std::size_t index = 0;
    const char* end = key.data() + key.size();
    const auto parsed = std::from_chars(key.data(), end, index);
    if (parsed.ec == std::errc{} && parsed.ptr == end &&
        parent.at(index).get(result) == simdjson::SUCCESS) {
      return result;
    }
  }
  return json_member(parent, key);
}

}  // namespace

std::optional<simdjson::dom::element> json_member(simdjson::dom::element object,
                                                  std::string_view key) {
  std::optional<simdjson::dom::element> last;
  simdjson::dom::object members;
  if (object.get(members) == simdjson::SUCCESS) {
    for (const auto& [name, value] : members) {
      if (name == key) {
        last = value;
      }
    }
  }
  return last;
}

JsonPath::JsonPath(std::string_view text) : text_(text) {
  if (text.empty()) {
    return;
  }
  if (text.front() != '/') {
    parts_.push_back({std::string(text), false});
    return;
  }
  for (std::size_t begin = 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    std::string_view part = text.substr(begin, end - begin);
    const bool enter = part.ends_with('!');
    if (enter) {
      part.remove_suffix(1);
    }
    parts_.push_back({unescape(part, text), enter});
    begin = end + 1;
  }
}

simdjson::dom::parser& JsonPath::Scratch::at(std::size_t level) {
  while (parsers_.size() <= level) {
    parsers_.push_back(std::make_unique<simdjson::dom::parser>());
  }
  return *parsers_[level];
}

std::optional<simdjson::dom::element> JsonPath::find(simdjson::dom::element root,
                                                     Scratch& scratch) const {
  std::optional<simdjson::dom::element> place = root;
  std::size_t level = 0;
  for (const Part& part : parts_) {
    place = child(*place, part.key);
    if (!place) {
      return std::nullopt;
    }
    if (part.enter) {
      std::string_view inner;
      simdjson::dom::element entered;
      if (place->get_string().get(inner) != simdjson::SUCCESS ||
          scratch.at(level++).parse(inner.data(), inner.size()).get(entered) != simdjson::SUCCESS) {
        return std::nullopt;
      }
      place = entered;
    }
  }
  return place;
}

std::vector<JsonPath> parse_fields(std::string_view text) {
  constexpr std::string_view kSeparator = " | ";
  std::vector<JsonPath> paths;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(kSeparator, begin);
    paths.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) {
      return paths;
    }
    begin = end + kSeparator.size();
  }
}

std::vector<TextPart> parse_text_template(std::string_view text) {
  std::vector<TextPart> parts(1);
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool brace = c == '{' || c == '}';
    if (!brace || text.substr(at + 1, 1) == text.substr(at, 1)) {
      parts.back().literal += c;
      at += brace ? 1 : 0;
      continue;
    }
    const std::size_t end = text.find_first_of("{}", at + 1);
    if (c == '}' || end == std::string_view::npos || text[end] == '{' || end == at + 1) {
      throw ConfigError(fmt::format(
          "prompts.text '{}': write a field as {{FIELD}}, and a brace as {{{{ or }}}}", text));
    }
    parts.back().name = text.substr(at + 1, end - at - 1);
    parts.back().fields = parse_fields(parts.back().name);
    parts.emplace_back();
    at = end;
  }
  if (parts.size() == 1) {
    throw ConfigError(fmt::format("prompts.text '{}' has no field: write it as {{FIELD}}", text));
  }
  return parts;
}

}  // namespace jforge
