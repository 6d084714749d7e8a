#pragma once

/// Settings of decoding methods, as in [evaluate], method variants and [sweep].

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace jforge {

/// Has the type of the key's default.
using DecodingValue = std::variant<std::int64_t, double, std::string>;
using DecodingSettings = std::map<std::string, DecodingValue, std::less<>>;

struct DecodingKey {
  std::string name;
  DecodingValue fallback;  ///< Its type is the key's type.
  double minimum = 1;
  double maximum = std::numeric_limits<double>::max();
  std::vector<std::string> words = {};  ///< Allowed values of a text key.
  std::string meaning;                  ///< For the configuration reference.
};

/// Returns every key of every method, sorted.
[[nodiscard]] const std::vector<DecodingKey>& decoding_keys();
/// Requires: the key exists.
[[nodiscard]] const DecodingKey& decoding_key(std::string_view name);
[[nodiscard]] DecodingSettings default_decoding_settings();
/// Sets a key from "KEY=VALUE". Throws ConfigError for an unknown key or a value of another type.
void assign_decoding_setting(DecodingSettings& settings, std::string_view assignment);
/// Returns a command's block size and assignments. Throws as above, for a key given twice, and for
/// one that `method` lacks; block_size is always allowed, because every command has one.
[[nodiscard]] DecodingSettings command_settings(std::string_view method, std::int32_t block_size,
                                                std::span<const std::string> assignments);
/// Returns text such as "8" or "0.85".
[[nodiscard]] std::string to_string(const DecodingValue& value);
/// Throws ConfigError, naming `section` and key, for unknown keys or words, wrong types and numbers
/// out of bounds or of 2^31 and more.
void validate_decoding_settings(const DecodingSettings& settings, const std::string& section);

}  // namespace jforge
