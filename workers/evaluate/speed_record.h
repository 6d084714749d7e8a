#pragma once

/// Measured decoding speeds. A repeat decodes the same problems with each method in turn, greedy
/// first, and every repeat takes the task's next problems. So a slow phase of the machine affects
/// both sides of a ratio, and the spread of ratios shows how far to trust it, also for other
/// problems.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/machine_load.h"

namespace jforge {

/// One method over the problems of a repeat, on all ranks.
struct SpeedPass {
  std::string method;          ///< DecodingMethod::label
  std::int64_t sequences = 0;  ///< Sum over ranks.
  std::int64_t tokens = 0;     ///< Including each first token.
  double decode_seconds = 0;   ///< Without prefill, summed over ranks.
  double prefill_seconds = 0;

  bool operator==(const SpeedPass&) const = default;
};

/// Extremes over all hosts, at begin and end of a repeat.
struct SpeedLoad {
  std::optional<double> load_per_core;  ///< Maximum.
  std::optional<double> slowest_megahertz;
  std::optional<double> fastest_megahertz;

  bool operator==(const SpeedLoad&) const = default;
};

/// A line of MODEL/TASK.speed.
struct SpeedRepeat {
  std::string settings;            ///< 16 hex digits over everything compared.
  std::string place;               ///< Ranks, threads, device, host.
  std::int32_t batch_prompts = 0;  ///< Per rank.
  std::int32_t problems = 0;       ///< Per pass and rank.
  std::int32_t ranks = 0;
  std::int32_t threads = 0;  ///< Per rank.
  std::int32_t repeat = 0;   ///< From 0.
  SpeedLoad load = {};
  std::vector<SpeedPass> passes = {};

  bool operator==(const SpeedRepeat&) const = default;
};

[[nodiscard]] std::string to_line(const SpeedRepeat& repeat);
/// Throws DataError naming `origin`.
[[nodiscard]] SpeedRepeat parse_speed_repeat(std::string_view line, const std::string& origin);

/// One task's repeats; for rank 0 only.
class SpeedFile {
 public:
  explicit SpeedFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// Returns the repeats with `settings` that a measurement of `repeats` at each of `batches`
  /// continues: each (repeat, batch) once, in order, all from `place`, unless only another place
  /// has all of them. Ignores repeats beyond `repeats`, a torn last line and, with a warning,
  /// broken seals. Throws DataError for other malformed lines.
  [[nodiscard]] std::vector<SpeedRepeat> read(const std::string& settings, const std::string& place,
                                              std::size_t batches, std::int32_t repeats) const;
  /// Replaces the file durably by `found`, the result of read().
  void restart(const std::vector<SpeedRepeat>& found) const;
  void append(const SpeedRepeat& repeat) const;

 private:
  std::filesystem::path path_;
};

/// 95 % interval.
struct SpeedInterval {
  double mean = 0;
  double low = 0;
  double high = 0;
};

/// Geometric mean of one positive value per repeat, with the Student's t interval of the mean
/// logarithm. Nothing below two values or if one is not positive and finite.
[[nodiscard]] std::optional<SpeedInterval> geometric_interval(std::span<const double> values);

/// Figures of `method` over repeats of one batch size:
///   batch_prompts, problems, repeats, ranks, threads
///   tokens_per_second, …_low, …_high    Σ(tokens − 1) / decoding seconds of one rank (mean)
///   tokens_per_second_with_prefill      Σ tokens / all seconds of one rank
///   speed_up, …_low, …_high             over `baseline` in the same repeats (tokens_per_second)
///   speed_up_with_prefill, …_low, …_high
///   remark                              load_remark(), or null
/// Missing figures are null, as are speed_up figures of or without the baseline.
[[nodiscard]] nlohmann::ordered_json speed_figures(std::span<const SpeedRepeat> repeats,
                                                   const std::string& method,
                                                   const std::string& baseline);

/// "load average of 3.1 per core", "clock between 1200 and 3400 MHz", or both; nothing if quiet.
[[nodiscard]] std::optional<std::string> load_remark(std::span<const SpeedRepeat> repeats);

}  // namespace jforge
