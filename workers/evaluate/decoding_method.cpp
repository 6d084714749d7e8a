#include "workers/evaluate/decoding_method.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <ranges>
#include <set>
#include <string>
#include <utility>

#include "runtime/error.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

/// A method: the keys it has, and how it is made from them. The settings hold all of its keys.
struct MethodEntry {
  std::vector<std::string> keys;  // sorted; sampling_keys() besides
  DecodingMethod (*make)(const DecodingSettings&, std::uint64_t seed);
};

double real_number(const DecodingSettings& settings, std::string_view key) {
  return std::get<double>(settings.find(key)->second);
}

std::int32_t whole_number(const DecodingSettings& settings, std::string_view key) {
  return static_cast<std::int32_t>(std::get<std::int64_t>(settings.find(key)->second));
}

DecodingMethod make_greedy(const DecodingSettings& /*settings*/, std::uint64_t /*seed*/) {
  DecodingMethod method;
  method.settings = Json{{"block_size", 1}, {"window", "none"}};
  method.make = [](DecodeRequest request) { return make_greedy_decoder(std::move(request)); };
  return method;
}

template <DraftWindow window>
DecodingMethod make_jacobi(const DecodingSettings& settings, std::uint64_t seed) {
  const JacobiOptions options{
      .block_size = whole_number(settings, "block_size"), .window = window, .seed = seed};
  options.validate();
  DecodingMethod method;
  method.settings = Json{{"block_size", options.block_size},
                         {"window", window == DraftWindow::running ? "running" : "shrinking"},
                         {"seed", seed}};
  method.make = [options](DecodeRequest request) {
    return make_jacobi_decoder(std::move(request), options);
  };
  return method;
}

DecodingMethod make_multi_block(MultiBlockOptions options, const DecodingSettings& settings,
                                std::uint64_t seed) {
  options.block_size = whole_number(settings, "block_size");
  options.blocks = whole_number(settings, "blocks");
  options.spawn_ratio = real_number(settings, "spawn_ratio");
  options.verification_size = whole_number(settings, "verification_size");
  // The authors' pool counts the rows of a forward.
  options.ngram_pool = options.pseudo_on_every_row ? options.verification_size
                                                   : whole_number(settings, "ngram_pool");
  options.seed = seed;
  options.validate();
  DecodingMethod method;
  method.settings = Json{{"block_size", options.block_size},
                         {"window", "multi_block"},
                         {"blocks", options.blocks},
                         {"spawn_ratio", options.spawn_ratio},
                         {"verification_size", options.verification_size},
                         {"ngram_pool", options.ngram_pool},
                         {"seed", seed}};
  method.make = [options](DecodeRequest request) {
    return make_multi_block_decoder(std::move(request), options);
  };
  return method;
}

DecodingMethod make_mr(const DecodingSettings& settings, std::uint64_t seed) {
  return make_multi_block({.spawn = SpawnMode::continuation}, settings, seed);
}
DecodingMethod make_mr_lookup(const DecodingSettings& settings, std::uint64_t seed) {
  const std::int32_t match_length = whole_number(settings, "match_length");
  DecodingMethod method = make_multi_block(
      {.match_length = match_length, .spawn = SpawnMode::continuation}, settings, seed);
  method.settings["match_length"] = match_length;
  return method;
}
DecodingMethod make_mr_paper(const DecodingSettings& settings, std::uint64_t seed) {
  return make_multi_block({.spawn = SpawnMode::clone}, settings, seed);
}
DecodingMethod make_mr_repo(const DecodingSettings& settings, std::uint64_t seed) {
  return make_multi_block({.spawn = SpawnMode::clone, .pseudo_on_every_row = true}, settings, seed);
}

DecodingMethod make_prompt_lookup(const DecodingSettings& settings, std::uint64_t /*seed*/) {
  const PromptLookupOptions options{.block_size = whole_number(settings, "block_size"),
                                    .match_length = whole_number(settings, "match_length")};
  options.validate();
  DecodingMethod method;
  method.settings = Json{{"block_size", options.block_size},
                         {"window", "none"},
                         {"match_length", options.match_length}};
  method.make = [options](DecodeRequest request) {
    return make_prompt_lookup_decoder(std::move(request), options);
  };
  return method;
}

DecodingMethod make_lookahead(const DecodingSettings& settings, std::uint64_t seed) {
  const LookaheadOptions options{.window = whole_number(settings, "lookahead_window"),
                                 .ngram = whole_number(settings, "lookahead_ngram"),
                                 .guesses = whole_number(settings, "lookahead_guesses"),
                                 .seed = seed};
  options.validate();
  DecodingMethod method;
  method.settings = Json{{"block_size", options.ngram},          {"window", "lookahead"},
                         {"lookahead_window", options.window},   {"lookahead_ngram", options.ngram},
                         {"lookahead_guesses", options.guesses}, {"seed", seed}};
  method.make = [options](DecodeRequest request) {
    return make_lookahead_decoder(std::move(request), options);
  };
  return method;
}

/// Keys of every method.
const std::vector<std::string>& sampling_keys() {
  static const std::vector<std::string> keys{"repetition_penalty", "temperature", "top_k", "top_p"};
  return keys;
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

/// Makes the method's requests choose their tokens as `sampling` says. What has no effect does not
/// stand in the settings: greedy decoding is the same whatever top_p is.
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

const std::vector<std::string>& multi_block_keys() {
  static const std::vector<std::string> keys{"block_size", "blocks", "ngram_pool", "spawn_ratio",
                                             "verification_size"};
  return keys;
}

/// Every method of the program: a new one is one line here, and one in decoding_keys() for each key
/// that no other method has yet.
const std::map<std::string, MethodEntry, std::less<>>& registry() {
  static const std::map<std::string, MethodEntry, std::less<>> methods{
      {std::string(kBaselineMethod), {{}, make_greedy}},
      {"jacobi", {{"block_size"}, make_jacobi<DraftWindow::running>}},
      {"jacobi_shrinking", {{"block_size"}, make_jacobi<DraftWindow::shrinking>}},
      {"lookahead", {{"lookahead_guesses", "lookahead_ngram", "lookahead_window"}, make_lookahead}},
      {"mr", {multi_block_keys(), make_mr}},
      {"mr_lookup",
       {{"block_size", "blocks", "match_length", "ngram_pool", "spawn_ratio", "verification_size"},
        make_mr_lookup}},
      {"mr_paper", {multi_block_keys(), make_mr_paper}},
      {"mr_repo", {{"block_size", "blocks", "spawn_ratio", "verification_size"}, make_mr_repo}},
      {"prompt_lookup", {{"block_size", "match_length"}, make_prompt_lookup}},
  };
  return methods;
}

const std::pair<const std::string, MethodEntry>& entry(std::string_view name) {
  const auto found = registry().find(name);
  if (found == registry().end()) {
    throw ConfigError(fmt::format("unknown decoding method \"{}\"; known are {}", name,
                                  fmt::join(decoding_method_names(), ", ")));
  }
  return *found;
}

}  // namespace

const std::vector<DecodingKey>& decoding_keys() {
  // Far beyond what pays: a mistyped one is told by its key, not by the memory it takes.
  constexpr double kMostDraftTokens = 1 << 20;
  constexpr double kMostDrafts = 1024;
  static const std::vector<DecodingKey> keys{
      {.name = "block_size",
       .fallback = std::int64_t{64},
       .minimum = 1,
       .maximum = kMostDraftTokens,
       .meaning = "Tokens drafted at once; of a block of `mr`"},
      {.name = "blocks",
       .fallback = std::int64_t{MultiBlockOptions{}.blocks},
       .minimum = 1,
       .maximum = kMostDrafts,
       .meaning = "Blocks that `mr` refines at once, the one it verifies included"},
      {.name = "lookahead_guesses",
       .fallback = std::int64_t{LookaheadOptions{}.guesses},
       .minimum = 0,
       .maximum = kMostDrafts,
       .meaning = "n-grams that `lookahead` verifies in one forward at most"},
      {.name = "lookahead_ngram",
       .fallback = std::int64_t{LookaheadOptions{}.ngram},
       .minimum = 2,
       .maximum = kMostDraftTokens,
       .meaning = "Tokens of the n-grams of `lookahead`"},
      {.name = "lookahead_window",
       .fallback = std::int64_t{LookaheadOptions{}.window},
       .minimum = 1,
       .maximum = kMostDraftTokens,
       .meaning = "Columns of the window in which `lookahead` makes n-grams"},
      {.name = "match_length",
       .fallback = std::int64_t{PromptLookupOptions{}.match_length},
       .minimum = 1,
       .maximum = kMostDraftTokens,
       .meaning = "Last tokens that `prompt_lookup` and `mr_lookup` look for in prompt and answer, "
                  "at most"},
      {.name = "ngram_pool",
       .fallback = std::int64_t{MultiBlockOptions{}.ngram_pool},
       .minimum = 0,
       .maximum = kMostDraftTokens,
       .meaning = "Rejected sequences that `mr` keeps for each request; 0: it recycles nothing"},
      {.name = "repetition_penalty",
       .fallback = SamplingOptions{}.repetition_penalty,
       .minimum = 0,
       .meaning = "What logits of tokens of prompt and answer are divided by (negative ones "
                  "multiplied with), above 0; 1: none"},
      {.name = "spawn_ratio",
       .fallback = MultiBlockOptions{}.spawn_ratio,
       .minimum = 0,
       .meaning = "Accepted share of its newest block from which `mr` begins the next; above 0, at "
                  "most 1"},
      {.name = "temperature",
       .fallback = SamplingOptions{}.temperature,
       .minimum = 0,
       .meaning = "Of sampling, with every method; 0: the most probable token (greedy)"},
      {.name = "top_k",
       .fallback = std::int64_t{SamplingOptions{}.top_k},
       .minimum = 0,
       .meaning = "Most probable tokens that are sampled from, before top-p; 0: all"},
      {.name = "top_p",
       .fallback = SamplingOptions{}.top_p,
       .minimum = 0,
       .maximum = 1,
       .meaning = "Share of probability that the most probable tokens sampled from reach, the one "
                  "that crosses it included; above 0"},
      {.name = "verification_size",
       .fallback = std::int64_t{MultiBlockOptions{}.verification_size},
       .minimum = 1,
       .maximum = kMostDrafts,
       .meaning = "Drafts that `mr` verifies in one forward, the plain one included"},
  };
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
      [&](auto& number) {
        const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
        return error == std::errc() && end == text.end();
      },
      value);
  if (!read) {
    throw ConfigError(fmt::format("{} must be a {} number, not \"{}\"", name,
                                  value.index() == 0 ? "whole" : "real", text));
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
  return std::visit([](auto number) { return fmt::format("{}", number); }, value);
}

void validate_decoding_settings(const DecodingSettings& settings, const std::string& section) {
  for (const auto& [name, value] : settings) {
    const auto key = std::ranges::find(decoding_keys(), name, &DecodingKey::name);
    if (key == decoding_keys().end()) {
      throw ConfigError(fmt::format("{}.{}: no decoding method has such a setting", section, name));
    }
    if (value.index() != key->fallback.index()) {
      throw ConfigError(fmt::format("{}.{} must be a {} number", section, name,
                                    key->fallback.index() == 0 ? "whole" : "real"));
    }
    const double number = std::visit([](auto held) { return static_cast<double>(held); }, value);
    // Written so that NaN is refused too.
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
  const auto& [registered, description] = entry(name);
  validate_decoding_settings(settings, "evaluate");
  DecodingSettings own = default_decoding_settings();
  for (const auto& [key, value] : settings) {
    own.insert_or_assign(key, value);
  }
  DecodingMethod method = description.make(own, seed);
  method.name = registered;
  method.label = registered;
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
  std::vector<std::string> keys = entry(name).second.keys;
  keys.insert(keys.end(), sampling_keys().begin(), sampling_keys().end());
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
