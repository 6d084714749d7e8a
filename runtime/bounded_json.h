#pragma once

/// JSON from outside: the way in which the program parses it into a nlohmann tree. Text that is
/// nested without bound is refused before a tree is made of it, since a tree is copied, compared
/// and written by recursion. (Limits of their own have a safetensors header, which counts while it
/// is parsed, and the parsers that make no such tree: data/tasks/code/json_tree.h, and simdjson's.)

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace jforge {

/// Brackets that JSON text may have open at once. No file that the program reads has more than ten.
inline constexpr std::size_t kMaxJsonDepth = 64;

/// Whether `text` has more than `limit` brackets open at once, those inside strings not counted.
[[nodiscard]] bool nested_deeper_than(std::string_view text, std::size_t limit);

/// The value that `text` is. DataError "ORIGIN: not valid JSON: …", one line, for anything else and
/// for text nested deeper than kMaxJsonDepth.
template <class Json = nlohmann::json>
[[nodiscard]] Json parse_bounded_json(std::string_view text, const std::string& origin);

/// As parse_bounded_json, but a discarded value instead of an error: for callers that have their
/// own words for it.
template <class Json = nlohmann::json>
[[nodiscard]] Json try_bounded_json(std::string_view text);

/// The whole number that `value` is, as an Integer. Throws nlohmann's type_error for a fraction, an
/// exponent, another kind of value and a number outside Integer. (`get<Integer>()` cuts fractions
/// and high digits off, and is undefined for a double outside Integer.)
template <std::integral Integer, class Json>
[[nodiscard]] Integer json_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    if (const auto number = value.template get<std::uint64_t>(); std::in_range<Integer>(number)) {
      return static_cast<Integer>(number);
    }
  } else if (value.is_number_integer()) {
    if (const auto number = value.template get<std::int64_t>(); std::in_range<Integer>(number)) {
      return static_cast<Integer>(number);
    }
  }
  throw Json::type_error::create(302, value.dump() + " is not a whole number in range", &value);
}

/// `value`, or null where there is none.
[[nodiscard]] inline nlohmann::ordered_json json_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

extern template nlohmann::json parse_bounded_json(std::string_view, const std::string&);
extern template nlohmann::ordered_json parse_bounded_json(std::string_view, const std::string&);
extern template nlohmann::json try_bounded_json(std::string_view);
extern template nlohmann::ordered_json try_bounded_json(std::string_view);

}  // namespace jforge
