#pragma once

/// How a method's figures were made, as summary.json records it beside them.

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// Keys of a method's own settings, in the order in which reports show them.
inline constexpr std::array kMethodSettings = {
    "block_size", "window",       "blocks",           "spawn_ratio",     "verification_size",
    "ngram_pool", "match_length", "lookahead_window", "lookahead_ngram", "lookahead_guesses",
    "variant",    "seed",         "max_new_tokens",   "decode_weights"};
/// Keys that say how tokens are chosen and how often, each with the value that has no effect.
inline constexpr std::array<std::pair<const char*, const char*>, 5> kSamplingSettings = {
    {{"temperature", "0"},
     {"top_p", "1"},
     {"top_k", "0"},
     {"repetition_penalty", "1"},
     {"samples_per_problem", "1"}}};

/// "64", "0.85", "running": what `figures` record under the key; "–" where they record nothing.
[[nodiscard]] std::string recorded_setting(const ReportJson& figures, const std::string& key);
/// "spawn ratio": a key as a table's head or a sentence has it.
[[nodiscard]] std::string setting_name(std::string key);
/// "temperature 1, top p 0.9, samples per problem 3": how tokens were chosen, as far as it is not
/// one of the keys in `but` and has an effect; empty for one greedy answer to each problem.
[[nodiscard]] std::string sampling_text(const ReportJson& figures,
                                        const std::vector<std::string>& but = {});
/// "temperature – → 1, max_new_tokens 24 → 1": the settings that differ; empty where none does.
[[nodiscard]] std::string differing_settings(const ReportJson& first, const ReportJson& second);

}  // namespace jforge
