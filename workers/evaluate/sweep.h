#pragma once

/// `jforge sweep`: evaluates every combination of some decoding settings as a method of one
/// evaluation and writes sweep.json.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/decoding/decoding_method.h"
#include "model/decoding/decoding_settings.h"

namespace jforge {

struct SweepAxis {
  DecodingValue kind;  ///< The key's default; defines the type.
  std::vector<DecodingValue> values;
};

/// [sweep] of the configuration.
struct SweepConfig {
  std::string method = "jacobi";
  std::vector<std::string> tasks;  ///< Empty: as [evaluate].
  bool include_ar = true;          ///< Also measure the baseline in the same run.
  /// All decoding keys; those with values are the axes of the grid.
  std::map<std::string, SweepAxis, std::less<>> axes = empty_axes();

  [[nodiscard]] static std::map<std::string, SweepAxis, std::less<>> empty_axes();
  /// Throws ConfigError naming the key for an unknown method, no axis, a key that the method lacks,
  /// or a value that is out of range or repeated.
  void validate() const;
  /// Keys with values, sorted.
  [[nodiscard]] std::vector<std::string> keys() const;
  /// All combinations; the first key varies slowest.
  [[nodiscard]] std::vector<DecodingSettings> points() const;
};

/// The baseline, if included, then one method per point. `fixed`: settings that no axis varies.
/// Throws ConfigError as validate().
[[nodiscard]] std::vector<DecodingMethod> sweep_methods(const SweepConfig& sweep,
                                                        const DecodingSettings& fixed,
                                                        std::uint64_t seed);

/// For rank 0. Writes directory/sweep.json from the figures of a finished evaluation of
/// sweep_methods() under `directory`, and returns it: the object of the first task, with those of
/// the others as "further_tasks":
///   {"model", "task", "method", "keys": ["block_size", …],
///    "baseline": figures of "ar" or null,
///    "points": [{"settings": {"block_size": 8}, figures…}, …]}
/// Figures are those of summary.json (evaluation_summary.h, evaluation_store.h). `roofline`, an
/// array of roofline_profile.h, becomes "roofline"; null keeps that of an earlier sweep.json with
/// the same model and `machine` (roofline_machine(), stored with it). Throws DataError if the
/// earlier file is malformed.
nlohmann::ordered_json write_sweep(const SweepConfig& sweep, const std::vector<std::string>& tasks,
                                   const std::string& model, const std::filesystem::path& directory,
                                   const nlohmann::ordered_json& machine,
                                   const nlohmann::ordered_json& roofline = nullptr);

}  // namespace jforge
