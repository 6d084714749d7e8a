#pragma once

/// `jforge sweep`: evaluates combinations of decoding settings and writes sweep.json.

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
  DecodingValue kind;  ///< The key's default and type.
  std::vector<DecodingValue> values;
};

/// [sweep] of the configuration.
struct SweepConfig {
  std::string method = "jacobi";
  /// All decoding keys; those with values form the grid.
  std::map<std::string, SweepAxis, std::less<>> axes = empty_axes();

  [[nodiscard]] static std::map<std::string, SweepAxis, std::less<>> empty_axes();
  /// Throws ConfigError naming the key: unknown method, no axis, key not of the method, value out
  /// of range or repeated.
  void validate() const;
  [[nodiscard]] std::vector<std::string> keys() const;
  /// All combinations; the first key varies slowest.
  [[nodiscard]] std::vector<DecodingSettings> points() const;
};

/// Returns the method with `varied` over `fixed`, labelled by `varied`.
[[nodiscard]] DecodingMethod varied_method(std::string_view name, const DecodingSettings& fixed,
                                           const DecodingSettings& varied, std::uint64_t seed);
/// The baseline, then one method per point. `fixed`: settings of no axis. Throws ConfigError as
/// validate().
[[nodiscard]] std::vector<DecodingMethod> sweep_methods(const SweepConfig& sweep,
                                                        const DecodingSettings& fixed,
                                                        std::uint64_t seed);

/// For rank 0. Writes directory/sweep.json from the figures (summary.json) of a finished evaluation
/// of sweep_methods() and returns the object of the first task, with the others' as
/// "further_tasks":
///   {"model", "task", "method", "keys": ["block_size", …],
///    "baseline": figures of "ar",
///    "points": [{"settings": {"block_size": 8}, figures…}, …]}
nlohmann::ordered_json write_sweep(const SweepConfig& sweep, const std::vector<std::string>& tasks,
                                   const std::string& model,
                                   const std::filesystem::path& directory);

}  // namespace jforge
