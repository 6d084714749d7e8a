#pragma once

/// A method's settings, as summary.json records them.

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "results/report/report_text.h"

namespace jforge {

/// In the order of reports.
inline constexpr std::array kMethodSettings = {
    "block_size", "window",         "blocks",        "spawn_ratio",     "verification_size",
    "ngram_pool", "match_length",   "tree_rows",     "min_probability", "variant",
    "seed",       "max_new_tokens", "decode_weights"};
/// Sampling settings and their neutral values.
inline constexpr std::array<std::pair<const char*, const char*>, 5> kSamplingSettings = {
    {{"temperature", "0"},
     {"top_p", "1"},
     {"top_k", "0"},
     {"repetition_penalty", "1"},
     {"samples_per_problem", "1"}}};

/// Returns "64", "0.85", "running", or "–" if `figures` have no such key.
[[nodiscard]] std::string recorded_setting(const ReportJson& figures, const std::string& key);
/// Returns "spawn ratio", for example.
[[nodiscard]] std::string setting_name(std::string key);
/// Returns "temperature 1, top p 0.9, samples per problem 3": sampling settings with an effect,
/// except those in `but`.
[[nodiscard]] std::string sampling_text(const ReportJson& figures,
                                        const std::vector<std::string>& but = {});
/// Returns "temperature – → 1, max_new_tokens 24 → 1"; empty if all are equal.
[[nodiscard]] std::string differing_settings(const ReportJson& first, const ReportJson& second);

}  // namespace jforge
