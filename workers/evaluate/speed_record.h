#pragma once

/// What was measured of decoding speeds, and what follows from it: pure functions and one file.
///
/// A repeat decodes the same problems with each method in turn, greedy first; repeats follow each
/// other, each with the task's next problems: AR, method, AR, method, … So a slow spell of the
/// machine falls on both sides of a ratio, and the ratios of the repeats say how far it can be
/// trusted, also for other problems.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/machine_load.h"

namespace jforge {

/// Decoding the problems once with one method, all ranks together.
struct SpeedPass {
  std::string method;          ///< DecodingMethod::label
  std::int64_t sequences = 0;  ///< Of all ranks.
  std::int64_t tokens = 0;     ///< Of those, the first of each included.
  double decode_seconds = 0;   ///< In forwards, prefill left out, summed over ranks.
  double prefill_seconds = 0;  ///< The rest of them.

  bool operator==(const SpeedPass&) const = default;
};

/// The load of the hosts when a repeat began and ended: extremes over hosts and both moments.
struct SpeedLoad {
  std::optional<double> load_per_core;  ///< The highest.
  std::optional<double> slowest_megahertz;
  std::optional<double> fastest_megahertz;

  bool operator==(const SpeedLoad&) const = default;
};

/// One repeat: a line of MODEL/TASK.speed.
struct SpeedRepeat {
  std::string settings;            ///< 16 hex digits: everything that is compared.
  std::string place;               ///< Where: ranks, threads, device, host.
  std::int32_t batch_prompts = 0;  ///< Decoded at once per rank.
  std::int32_t problems = 0;       ///< In each pass of each rank.
  std::int32_t ranks = 0;
  std::int32_t threads = 0;  ///< Of each rank.
  std::int32_t repeat = 0;   ///< From 0.
  SpeedLoad load = {};
  std::vector<SpeedPass> passes = {};  ///< In the order of the methods.

  bool operator==(const SpeedRepeat&) const = default;
};

[[nodiscard]] std::string to_line(const SpeedRepeat& repeat);
/// Throws DataError naming `origin` for anything else.
[[nodiscard]] SpeedRepeat parse_speed_repeat(std::string_view line, const std::string& origin);

/// Rank 0's file of one task's repeats.
class SpeedFile {
 public:
  explicit SpeedFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// Those of `settings` that a measurement of `repeats` at each of `batches` goes on from: all
  /// made in one place, in `place` unless another has all of them, each (repeat, batch) once and in
  /// that order. Repeats beyond `repeats`, of a measurement that had more, do not count. A torn
  /// last line is left out, and one whose seal is broken, with a warning; any other line that is no
  /// repeat is a DataError.
  [[nodiscard]] std::vector<SpeedRepeat> read(const std::string& settings, const std::string& place,
                                              std::size_t batches, std::int32_t repeats) const;
  /// Writes durably; `found`, as read() gave it, is all that stays of what was there.
  void restart(const std::vector<SpeedRepeat>& found) const;
  /// Appends durably.
  void append(const SpeedRepeat& repeat) const;

 private:
  std::filesystem::path path_;
};

/// A figure and its 95 % interval.
struct SpeedInterval {
  double mean = 0;
  double low = 0;
  double high = 0;
};

/// Of positive values, one for each repeat: geometric mean, and the interval that Student's t gives
/// the mean of their logarithms. Nothing for fewer than two values or one that is not positive and
/// finite.
[[nodiscard]] std::optional<SpeedInterval> geometric_interval(std::span<const double> values);

/// The figures of `method`, over repeats of one batch size:
///   batch_prompts, problems, repeats, ranks, threads
///   tokens_per_second, …_low, …_high    Σ(tokens − 1) / decoding seconds, of one rank (the mean of
///                                       those that decode side by side)
///   tokens_per_second_with_prefill      Σ tokens / all seconds, of one rank
///   speed_up, …_low, …_high             over `baseline` in the same repeats (tokens_per_second)
///   speed_up_with_prefill, …_low, …_high
///   remark                              why they mean little (load_remark), or null
/// A figure that does not exist is null; those of speed_up are null for the baseline itself and
/// where `baseline` is not among the passes.
[[nodiscard]] nlohmann::ordered_json speed_figures(std::span<const SpeedRepeat> repeats,
                                                   const std::string& method,
                                                   const std::string& baseline);

/// "load average of 3.1 per core", "clock between 1200 and 3400 MHz", or both, of the repeats;
/// nothing where the machine was quiet.
[[nodiscard]] std::optional<std::string> load_remark(std::span<const SpeedRepeat> repeats);

}  // namespace jforge
