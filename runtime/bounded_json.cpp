#include "runtime/bounded_json.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace jforge {

namespace {

/// nlohmann's message quotes the whole faulty token.
std::string shortened(std::string_view message) {
  constexpr std::size_t kLongest = 200;
  return message.size() <= kLongest ? std::string(message)
                                    : std::string(message.substr(0, kLongest)) + "…";
}

}  // namespace

bool nested_deeper_than(std::string_view text, std::size_t limit) {
  std::size_t depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '[':
      case '{':
        if (++depth > limit) {
          return true;
        }
        break;
      case ']':
      case '}':
        depth -= depth > 0 ? 1 : 0;
        break;
      case '"':
        for (++at; at < text.size() && text[at] != '"'; ++at) {
          at += text[at] == '\\' ? 1 : 0;
        }
        break;
      default:
        break;
    }
  }
  return false;
}

template <class Json>
Json parse_bounded_json(std::string_view text, const std::string& origin) {
  if (nested_deeper_than(text, kMaxJsonDepth)) {
    throw DataError(
        fmt::format("{}: not valid JSON: nested more than {} levels deep", origin, kMaxJsonDepth));
  }
  try {
    return Json::parse(text);
  } catch (const typename Json::exception& error) {
    throw DataError(fmt::format("{}: not valid JSON: {}", origin, shortened(error.what())));
  }
}

template <class Json>
Json try_bounded_json(std::string_view text) {
  return nested_deeper_than(text, kMaxJsonDepth) ? Json(Json::value_t::discarded)
                                                 : Json::parse(text, nullptr, false);
}

template nlohmann::json parse_bounded_json(std::string_view, const std::string&);
template nlohmann::ordered_json parse_bounded_json(std::string_view, const std::string&);
template nlohmann::json try_bounded_json(std::string_view);
template nlohmann::ordered_json try_bounded_json(std::string_view);

}  // namespace jforge
