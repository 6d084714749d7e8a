#pragma once

/// What a decoding method's source file adds to the registry in decoding_method.cpp.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoding/decoding_method.h"

namespace jforge {

// Upper bounds far beyond what pays, so that a mistyped value is reported by its key instead of by
// the memory that it takes.
inline constexpr double kMaxDraftTokens = 1 << 20;
inline constexpr double kMaxDrafts = 1024;

/// One method.
struct MethodEntry {
  std::string name;
  std::vector<DecodingKey> keys;  ///< Besides the keys of sampling, which every method has.
  /// Returns the method without name, label and sampling. The settings hold all of its keys.
  DecodingMethod (*make)(const DecodingSettings& settings, std::uint64_t seed);
};

/// Checks `options` and returns the method whose decoders `make` builds with them.
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

// Keys that several methods have.
[[nodiscard]] DecodingKey block_size_key();
[[nodiscard]] DecodingKey match_length_key();

// Values of keys. Require: the settings hold the key with a value of this type.
[[nodiscard]] double real_number(const DecodingSettings& settings, std::string_view key);
[[nodiscard]] std::int32_t whole_number(const DecodingSettings& settings, std::string_view key);
[[nodiscard]] const std::string& text(const DecodingSettings& settings, std::string_view key);

// The methods of each source file.
[[nodiscard]] std::vector<MethodEntry> greedy_methods();
[[nodiscard]] std::vector<MethodEntry> jacobi_methods();
[[nodiscard]] std::vector<MethodEntry> lookahead_methods();
[[nodiscard]] std::vector<MethodEntry> multi_block_methods();
[[nodiscard]] std::vector<MethodEntry> prompt_lookup_methods();

}  // namespace jforge
