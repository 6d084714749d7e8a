#pragma once

/// Settings of decoding methods, by key. The same keys stand in [evaluate], tell the variants of a
/// method apart, and are the axes of [sweep].

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace jforge {

/// A whole number, a real one or a word, as the key's default has it.
using DecodingValue = std::variant<std::int64_t, double, std::string>;
using DecodingSettings = std::map<std::string, DecodingValue, std::less<>>;

/// One key that at least one method has.
struct DecodingKey {
  std::string name;
  DecodingValue fallback;  ///< Value where the configuration names none; its type is the key's.
  double minimum = 1;      ///< Least number allowed.
  double maximum = std::numeric_limits<double>::max();
  std::vector<std::string> words = {};  ///< Values of a word.
  std::string meaning;                  ///< One line for the configuration's reference.
};

/// Every key of every method, sorted by name.
[[nodiscard]] const std::vector<DecodingKey>& decoding_keys();
/// The key of that name, which must exist.
[[nodiscard]] const DecodingKey& decoding_key(std::string_view name);
/// All keys with their defaults.
[[nodiscard]] DecodingSettings default_decoding_settings();
/// Sets what "KEY=VALUE" says. Throws ConfigError for a key that no method has and for a value of
/// another type than the key's.
void assign_decoding_setting(DecodingSettings& settings, std::string_view assignment);
/// Of a command: the block size, then what each "KEY=VALUE" says. Throws as above, for a key that
/// is given twice, and for one that `method` does not have: it would change nothing. The block size
/// alone is any method's, since every command has one.
[[nodiscard]] DecodingSettings command_settings(std::string_view method, std::int32_t block_size,
                                                std::span<const std::string> assignments);
/// "8", "0.85".
[[nodiscard]] std::string to_string(const DecodingValue& value);
/// Refuses unknown keys, values of another type, unknown words, numbers below the key's minimum or
/// above its maximum and whole numbers of 2^31 and more. Throws ConfigError with `section` before
/// the key.
void validate_decoding_settings(const DecodingSettings& settings, const std::string& section);

}  // namespace jforge
