#pragma once

/// Settings of a method's figures, as recorded with them in summary.json.

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// A method's own settings, in the order of reports.
inline constexpr std::array kMethodSettings = {
    "block_size", "window",       "blocks",           "spawn_ratio",     "verification_size",
    "ngram_pool", "match_length", "lookahead_window", "lookahead_ngram", "lookahead_guesses",
    "variant",    "seed",         "max_new_tokens",   "decode_weights"};
/// Settings of sampling, with their neutral values.
inline constexpr std::array<std::pair<const char*, const char*>, 5> kSamplingSettings = {
    {{"temperature", "0"},
     {"top_p", "1"},
     {"top_k", "0"},
     {"repetition_penalty", "1"},
     {"samples_per_problem", "1"}}};

/// Returns the value that `figures` record under `key` ("64", "0.85", "running"), or "–".
[[nodiscard]] std::string recorded_setting(const ReportJson& figures, const std::string& key);
/// Returns a key as displayed: "spawn ratio".
[[nodiscard]] std::string setting_name(std::string key);
/// Returns "temperature 1, top p 0.9, samples per problem 3": sampling settings that have an
/// effect, except the keys in `but`; empty for one greedy answer per problem.
[[nodiscard]] std::string sampling_text(const ReportJson& figures,
                                        const std::vector<std::string>& but = {});
/// Returns differing settings, "temperature – → 1, max_new_tokens 24 → 1"; empty if there are none.
[[nodiscard]] std::string differing_settings(const ReportJson& first, const ReportJson& second);

}  // namespace jforge
