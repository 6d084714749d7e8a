#pragma once

/// Measured decoding speeds: figures and one file. A repeat decodes the same problems with each
/// method in turn, greedy first; every repeat takes the task's next problems: AR, method, AR,
/// method, … So a slow phase of the machine affects both sides of a ratio, and the spread of the
/// ratios shows how far it can be trusted, also for other problems.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/machine_load.h"

namespace jforge {

/// One pass of one method over the problems, on all ranks.
struct SpeedPass {
  std::string method;          ///< DecodingMethod::label
  std::int64_t sequences = 0;  ///< On all ranks.
  std::int64_t tokens = 0;     ///< Of these, including each first token.
  double decode_seconds = 0;   ///< In forwards without prefill, summed over ranks.
  double prefill_seconds = 0;  ///< In the other forwards.

  bool operator==(const SpeedPass&) const = default;
};

/// Load of all hosts at begin and end of a repeat.
struct SpeedLoad {
  std::optional<double> load_per_core;  ///< Maximum.
  std::optional<double> slowest_megahertz;
  std::optional<double> fastest_megahertz;

  bool operator==(const SpeedLoad&) const = default;
};

/// A line of MODEL/TASK.speed.
struct SpeedRepeat {
  std::string settings;            ///< 16 hex digits: hash of everything compared.
  std::string place;               ///< Ranks, threads, device, host.
  std::int32_t batch_prompts = 0;  ///< Decoded at once per rank.
  std::int32_t problems = 0;       ///< Per pass and rank.
  std::int32_t ranks = 0;
  std::int32_t threads = 0;  ///< Per rank.
  std::int32_t repeat = 0;   ///< From 0.
  SpeedLoad load = {};
  std::vector<SpeedPass> passes = {};  ///< In the order of the methods.

  bool operator==(const SpeedRepeat&) const = default;
};

[[nodiscard]] std::string to_line(const SpeedRepeat& repeat);
/// Throws DataError naming `origin`.
[[nodiscard]] SpeedRepeat parse_speed_repeat(std::string_view line, const std::string& origin);

/// One task's repeats; for rank 0 only.
class SpeedFile {
 public:
  explicit SpeedFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// Returns the repeats with `settings` from which a measurement of `repeats` at each of `batches`
  /// continues. All are from `place`, unless only another place has all of them; each (repeat,
  /// batch) once, in that order, without repeats beyond `repeats`. Ignores a torn last line and,
  /// with a warning, lines with a broken seal. Throws DataError for other malformed lines.
  [[nodiscard]] std::vector<SpeedRepeat> read(const std::string& settings, const std::string& place,
                                              std::size_t batches, std::int32_t repeats) const;
  /// Replaces the file durably by `found`, the result of read().
  void restart(const std::vector<SpeedRepeat>& found) const;
  void append(const SpeedRepeat& repeat) const;

 private:
  std::filesystem::path path_;
};

/// With its 95 % interval.
struct SpeedInterval {
  double mean = 0;
  double low = 0;
  double high = 0;
};

/// Geometric mean of one positive value per repeat, with the Student's t interval of the mean of
/// their logarithms. Nothing for fewer than two values or one that is not positive and finite.
[[nodiscard]] std::optional<SpeedInterval> geometric_interval(std::span<const double> values);

/// Returns the figures of `method` over repeats of one batch size:
///   batch_prompts, problems, repeats, ranks, threads
///   tokens_per_second, …_low, …_high    Σ(tokens − 1) / decoding seconds of one rank (mean of
///                                       the ranks that decode side by side)
///   tokens_per_second_with_prefill      Σ tokens / all seconds, of one rank
///   speed_up, …_low, …_high             over `baseline` in the same repeats (tokens_per_second)
///   speed_up_with_prefill, …_low, …_high
///   remark                              why they mean little (load_remark), or null
/// Missing figures are null; speed_up is null for the baseline itself and without `baseline`.
[[nodiscard]] nlohmann::ordered_json speed_figures(std::span<const SpeedRepeat> repeats,
                                                   const std::string& method,
                                                   const std::string& baseline);

/// "load average of 3.1 per core", "clock between 1200 and 3400 MHz", or both; nothing for a quiet
/// machine.
[[nodiscard]] std::optional<std::string> load_remark(std::span<const SpeedRepeat> repeats);

}  // namespace jforge
