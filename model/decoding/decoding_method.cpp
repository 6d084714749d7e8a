#include "model/decoding/decoding_method.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <iterator>
#include <limits>
#include <map>
#include <ranges>
#include <set>
#include <string>
#include <utility>

#include "model/decoding/method_entry_internal.h"
#include "runtime/error.h"

namespace jforge {

namespace {

const std::vector<DecodingKey>& sampling_keys() {
  static const std::vector<DecodingKey> keys{
      {.name = "repetition_penalty",
       .fallback = SamplingOptions{}.repetition_penalty,
       .minimum = 0,
       .meaning = "Divides logits of tokens of prompt and answer (multiplies negative ones), above "
                  "0; 1: none"},
      {.name = "temperature",
       .fallback = SamplingOptions{}.temperature,
       .minimum = 0,
       .meaning = "Sampling temperature of every method; 0: the most probable token (greedy)"},
      {.name = "top_k",
       .fallback = std::int64_t{SamplingOptions{}.top_k},
       .minimum = 0,
       .meaning = "Sampling takes so many most probable tokens, before top-p; 0: all"},
      {.name = "top_p",
       .fallback = SamplingOptions{}.top_p,
       .minimum = 0,
       .maximum = 1,
       .meaning = "Share of probability that the most probable tokens sampled from reach, the one "
                  "that crosses it included; above 0"},
  };
  return keys;
}

const char* kind_name(const DecodingValue& value) {
  constexpr std::array kNames{"whole number", "real number", "text"};
  return kNames.at(value.index());
}

SamplingOptions sampling_options(const DecodingSettings& settings, std::uint64_t seed) {
  SamplingOptions sampling{.temperature = real_number(settings, "temperature"),
                           .top_p = real_number(settings, "top_p"),
                           .top_k = whole_number(settings, "top_k"),
                           .repetition_penalty = real_number(settings, "repetition_penalty"),
                           .seed = seed};
  sampling.validate();
  return sampling;
}

/// Makes the method's requests sample with `sampling`. Options without effect stay out of the
/// settings, because greedy decoding does not depend on, for example, top_p.
void apply_sampling(const SamplingOptions& sampling, DecodingMethod& method) {
  method.sampling = sampling;
  if (sampling.draws()) {
    method.settings["temperature"] = sampling.temperature;
    method.settings["top_p"] = sampling.top_p;
    method.settings["top_k"] = sampling.top_k;
    method.settings["seed"] = sampling.seed;
  }
  if (sampling.penalises()) {
    method.settings["repetition_penalty"] = sampling.repetition_penalty;
  }
  method.make = [make = std::move(method.make), sampling](DecodeRequest request) {
    request.sampling = sampling;
    return make(std::move(request));
  };
}

/// All methods by name.
const std::map<std::string, MethodEntry, std::less<>>& registry() {
  static const std::map<std::string, MethodEntry, std::less<>> methods = [] {
    std::map<std::string, MethodEntry, std::less<>> all;
    for (const auto& of_one_file : {drafted_methods(), greedy_methods(), jacobi_methods(),
                                    multi_block_methods(), prompt_lookup_methods()}) {
      for (const MethodEntry& entry : of_one_file) {
        all.emplace(entry.name, entry);
      }
    }
    return all;
  }();
  return methods;
}

const MethodEntry& entry(std::string_view name) {
  const auto found = registry().find(name);
  if (found == registry().end()) {
    throw ConfigError(fmt::format("unknown decoding method \"{}\"; known are {}", name,
                                  fmt::join(decoding_method_names(), ", ")));
  }
  return found->second;
}

}  // namespace

DecodingKey block_size_key() {
  return {.name = "block_size",
          .fallback = std::int64_t{64},
          .minimum = 1,
          .maximum = kMaxDraftTokens,
          .meaning = "Tokens drafted at once; of a block of `mr`"};
}

DecodingKey match_length_key() {
  return {.name = "match_length",
          .fallback = std::int64_t{3},
          .minimum = 1,
          .maximum = kMaxDraftTokens,
          .meaning =
              "Last tokens that the methods ending in `lookup` look for in prompt and answer, "
              "at most"};
}

double real_number(const DecodingSettings& settings, std::string_view key) {
  return std::get<double>(settings.find(key)->second);
}

std::int32_t whole_number(const DecodingSettings& settings, std::string_view key) {
  return static_cast<std::int32_t>(std::get<std::int64_t>(settings.find(key)->second));
}

const std::string& text(const DecodingSettings& settings, std::string_view key) {
  return std::get<std::string>(settings.find(key)->second);
}

const std::vector<DecodingKey>& decoding_keys() {
  static const std::vector<DecodingKey> keys = [] {
    std::map<std::string, DecodingKey> by_name;
    for (const DecodingKey& key : sampling_keys()) {
      by_name.emplace(key.name, key);
    }
    for (const auto& [name, method] : registry()) {
      for (const DecodingKey& key : method.keys) {
        by_name.emplace(key.name, key);
      }
    }
    const auto sorted = std::views::values(by_name);
    return std::vector<DecodingKey>(sorted.begin(), sorted.end());
  }();
  return keys;
}

const DecodingKey& decoding_key(std::string_view name) {
  const auto found = std::ranges::find(decoding_keys(), name, &DecodingKey::name);
  if (found == decoding_keys().end()) {
    throw InternalError(fmt::format("no decoding method has a setting \"{}\"", name));
  }
  return *found;
}

DecodingSettings default_decoding_settings() {
  DecodingSettings settings;
  for (const DecodingKey& key : decoding_keys()) {
    settings.emplace(key.name, key.fallback);
  }
  return settings;
}

void assign_decoding_setting(DecodingSettings& settings, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string_view name = assignment.substr(0, equals);
  const auto key = std::ranges::find(decoding_keys(), name, &DecodingKey::name);
  if (equals == std::string_view::npos || key == decoding_keys().end()) {
    throw ConfigError(fmt::format(
        "\"{}\" is no setting of a decoding method; write KEY=VALUE with one of {}", assignment,
        fmt::join(decoding_keys() | std::views::transform(&DecodingKey::name), ", ")));
  }
  const std::string_view text = assignment.substr(equals + 1);
  DecodingValue value = key->fallback;
  const bool read = std::visit(
      [&]<class T>(T& held) {
        if constexpr (std::same_as<T, std::string>) {
          held = text;
          return true;
        } else {
          const auto [end, error] = std::from_chars(text.begin(), text.end(), held);
          return error == std::errc() && end == text.end();
        }
      },
      value);
  if (!read) {
    throw ConfigError(fmt::format("{} must be a {}, not \"{}\"", name, kind_name(value), text));
  }
  settings.insert_or_assign(std::string(name), value);
}

DecodingSettings command_settings(std::string_view method, std::int32_t block_size,
                                  std::span<const std::string> assignments) {
  DecodingSettings settings{{"block_size", std::int64_t{block_size}}};
  std::set<std::string> given;
  for (const std::string& assignment : assignments) {
    const std::string key = assignment.substr(0, assignment.find('='));
    if (!given.insert(key).second) {
      throw ConfigError(fmt::format("{} is given twice, the second time as {}", key, assignment));
    }
    assign_decoding_setting(settings, assignment);
    if (key != "block_size") {
      expect_method_has(method, key, "--setting " + key);
    }
  }
  return settings;
}

std::string to_string(const DecodingValue& value) {
  return std::visit([](const auto& held) { return fmt::format("{}", held); }, value);
}

void validate_decoding_settings(const DecodingSettings& settings, const std::string& section) {
  for (const auto& [name, value] : settings) {
    const auto key = std::ranges::find(decoding_keys(), name, &DecodingKey::name);
    if (key == decoding_keys().end()) {
      throw ConfigError(fmt::format("{}.{}: no decoding method has such a setting", section, name));
    }
    if (value.index() != key->fallback.index()) {
      throw ConfigError(fmt::format("{}.{} must be a {}", section, name, kind_name(key->fallback)));
    }
    if (const auto* word = std::get_if<std::string>(&value)) {
      if (std::ranges::find(key->words, *word) == key->words.end()) {
        throw ConfigError(fmt::format("{}.{} is \"{}\"; it must be one of {}", section, name, *word,
                                      fmt::join(key->words, ", ")));
      }
      continue;
    }
    const double number = value.index() == 0 ? static_cast<double>(std::get<std::int64_t>(value))
                                             : std::get<double>(value);
    // Also true for NaN.
    if (!(number >= key->minimum)) {
      throw ConfigError(fmt::format("{}.{} is {}; it must be at least {}", section, name,
                                    to_string(value), key->minimum));
    }
    if (number > key->maximum) {
      throw ConfigError(fmt::format("{}.{} is {}; it must be at most {}", section, name,
                                    to_string(value), key->maximum));
    }
    if (value.index() == 0 && !std::in_range<std::int32_t>(std::get<std::int64_t>(value))) {
      throw ConfigError(fmt::format("{}.{} is {}; it must be at most {}", section, name,
                                    to_string(value), std::numeric_limits<std::int32_t>::max()));
    }
  }
}

DecodingMethod make_decoding_method(std::string_view name, const DecodingSettings& settings,
                                    std::uint64_t seed) {
  const MethodEntry& registered = entry(name);
  validate_decoding_settings(settings, "evaluate");
  DecodingSettings own = default_decoding_settings();
  for (const auto& [key, value] : settings) {
    own.insert_or_assign(key, value);
  }
  DecodingMethod method = registered.make(own, seed);
  method.name = registered.name;
  method.label = registered.name;
  apply_sampling(sampling_options(own, seed), method);
  return method;
}

std::vector<std::string> decoding_method_names() {
  std::vector<std::string> names;
  for (const auto& [name, description] : registry()) {
    names.push_back(name);
  }
  return names;
}

std::vector<std::string> decoding_method_keys(std::string_view name) {
  std::vector<std::string> keys;
  std::ranges::transform(entry(name).keys, std::back_inserter(keys), &DecodingKey::name);
  std::ranges::transform(sampling_keys(), std::back_inserter(keys), &DecodingKey::name);
  std::ranges::sort(keys);
  return keys;
}

void expect_method_has(std::string_view method, const std::string& key, const std::string& shown) {
  const std::vector<std::string> own = decoding_method_keys(method);
  if (std::ranges::find(own, key) == own.end()) {
    throw ConfigError(fmt::format("{}: method \"{}\" has no such setting; it has {}", shown, method,
                                  fmt::join(own, ", ")));
  }
}

std::string variant_label(std::string_view name, const DecodingSettings& settings) {
  std::string label(name);
  for (const auto& [key, value] : settings) {
    label += fmt::format(".{}={}", key, to_string(value));
  }
  return label;
}

}  // namespace jforge
