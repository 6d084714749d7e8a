#pragma once

/// What a method's source file registers in decoding_method.cpp.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoding/decoding_method.h"

namespace jforge {

// Far above useful values: a typo is reported with its key instead of exhausting memory.
inline constexpr double kMaxDraftTokens = 1 << 20;
inline constexpr double kMaxDrafts = 1024;

struct MethodEntry {
  std::string name;
  std::vector<DecodingKey> keys;  ///< Without the sampling keys.
  /// Returns the method without name, label and sampling. Requires: `settings` has all keys.
  DecodingMethod (*make)(const DecodingSettings& settings, std::uint64_t seed);
};

/// Validates `options` and returns the method whose decoders `make` builds with them.
template <class Options>
[[nodiscard]] DecodingMethod method_of(const Options& options,
                                       std::unique_ptr<SequenceDecoder> (*make)(DecodeRequest,
                                                                                const Options&),
                                       nlohmann::ordered_json settings) {
  options.validate();
  DecodingMethod method;
  method.settings = std::move(settings);
  method.make = [make, options](DecodeRequest request) {
    return make(std::move(request), options);
  };
  return method;
}

// Keys of several methods.
[[nodiscard]] DecodingKey block_size_key();
[[nodiscard]] DecodingKey match_length_key();

// Return a key's value. Require: the settings hold it with this type.
[[nodiscard]] double real_number(const DecodingSettings& settings, std::string_view key);
[[nodiscard]] std::int32_t whole_number(const DecodingSettings& settings, std::string_view key);
[[nodiscard]] const std::string& text(const DecodingSettings& settings, std::string_view key);

[[nodiscard]] std::vector<MethodEntry> drafted_methods();
[[nodiscard]] std::vector<MethodEntry> greedy_methods();
[[nodiscard]] std::vector<MethodEntry> jacobi_methods();
[[nodiscard]] std::vector<MethodEntry> multi_block_methods();
[[nodiscard]] std::vector<MethodEntry> prompt_lookup_methods();

}  // namespace jforge
