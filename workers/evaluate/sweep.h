#pragma once

/// `jforge sweep`: every combination of some decoding settings as a method of one evaluation, and
/// sweep.json, which says what came out.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/decoding/decoding_method.h"
#include "model/decoding/decoding_settings.h"

namespace jforge {

/// A decoding key and the values it takes.
struct SweepAxis {
  DecodingValue kind;  ///< The key's default: says of which type its values are.
  std::vector<DecodingValue> values;
};

/// [sweep] of the configuration.
struct SweepConfig {
  std::string method = "jacobi";
  std::vector<std::string> tasks;  ///< Empty: those of [evaluate].
  bool include_ar = true;          ///< Measure the baseline too, in the same run.
  /// Every decoding key; those with values are the axes of the grid.
  std::map<std::string, SweepAxis, std::less<>> axes = empty_axes();

  [[nodiscard]] static std::map<std::string, SweepAxis, std::less<>> empty_axes();
  /// Throws ConfigError naming the key: an unknown method, no axis, a key that the method does not
  /// have, a value out of range or named twice.
  void validate() const;
  /// Keys with values, sorted.
  [[nodiscard]] std::vector<std::string> keys() const;
  /// Every combination of the axes' values: the first key varies slowest.
  [[nodiscard]] std::vector<DecodingSettings> points() const;
};

/// The baseline, if it is included, then one method for each point; `fixed` are the settings that
/// no axis varies. Throws ConfigError as validate().
[[nodiscard]] std::vector<DecodingMethod> sweep_methods(const SweepConfig& sweep,
                                                        const DecodingSettings& fixed,
                                                        std::uint64_t seed);

/// Rank 0: reads the figures of a finished evaluation of sweep_methods() under `directory` and
/// publishes directory/sweep.json, the object of the first task with those of others, if any, as
/// its "further_tasks":
///   {"model", "task", "method", "keys": ["block_size", …],
///    "baseline": figures of "ar" or null,
///    "points": [{"settings": {"block_size": 8}, figures…}, …]}
/// Figures are those of summary.json (evaluation_summary.h, evaluation_store.h). `machine`: what
/// this job computes on (roofline_machine), the "roofline_machine" of the object where it has a
/// roofline. `roofline`: an array as roofline_profile.h writes it, its "roofline"; null keeps that
/// of an earlier sweep.json of the same model and machine. Returns the object. Throws DataError
/// when an earlier sweep.json is no JSON.
nlohmann::ordered_json write_sweep(const SweepConfig& sweep, const std::vector<std::string>& tasks,
                                   const std::string& model, const std::filesystem::path& directory,
                                   const nlohmann::ordered_json& machine,
                                   const nlohmann::ordered_json& roofline = nullptr);

}  // namespace jforge
