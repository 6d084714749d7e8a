#pragma once

/// Parses JSON from outside into nlohmann trees. Rejects deep nesting, because trees are copied,
/// compared and written recursively.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace jforge {

/// No file that the program reads has more than ten brackets open.
inline constexpr std::size_t kMaxJsonDepth = 64;

/// Returns whether `text` has more than `limit` brackets open at once, outside strings.
[[nodiscard]] bool nested_deeper_than(std::string_view text, std::size_t limit);

/// Throws DataError "ORIGIN: not valid JSON: …", one line, also for nesting beyond kMaxJsonDepth.
template <class Json = nlohmann::json>
[[nodiscard]] Json parse_bounded_json(std::string_view text, const std::string& origin);

/// As parse_bounded_json(), but returns a discarded value, for callers with their own message.
template <class Json = nlohmann::json>
[[nodiscard]] Json try_bounded_json(std::string_view text);

/// Throws nlohmann's type_error unless `value` is a whole number within Integer; `get<Integer>()`
/// would truncate or be undefined.
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

[[nodiscard]] inline nlohmann::ordered_json json_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

extern template nlohmann::json parse_bounded_json(std::string_view, const std::string&);
extern template nlohmann::ordered_json parse_bounded_json(std::string_view, const std::string&);
extern template nlohmann::json try_bounded_json(std::string_view);
extern template nlohmann::ordered_json try_bounded_json(std::string_view);

}  // namespace jforge
