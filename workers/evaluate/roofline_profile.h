#pragma once

/// How long a forward pass takes against how many tokens it decodes in parallel, on this machine:
/// the plateau says how large a draft may be before it costs (METHOD.md §6.5).

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "model/transformer/inference_transformer.h"
#include "workers/evaluate/evaluator.h"

namespace jforge {

struct RooflineSettings {
  std::int32_t max_rows = 512;  ///< Largest number of tokens; measured are 1, 2, 4, … and it.
  std::int64_t context_tokens = 128;  ///< Positions before them, forwarded once.
  std::int32_t repeats = 15;          ///< Measurements of each number.
  std::int32_t warm_up = 3;           ///< Passes of each number before them.
  std::uint64_t seed = 0;             ///< Of the tokens.

  /// Throws ConfigError naming the setting.
  void validate() const;
  /// 1, 2, 4, … and max_rows, ascending.
  [[nodiscard]] std::vector<std::int32_t> row_counts() const;
  /// Positions that a slot must hold.
  [[nodiscard]] std::int64_t positions() const { return context_tokens + max_rows; }
};

/// Seconds of one forward pass over `rows` tokens of one sequence, each with a prediction.
struct RooflinePoint {
  std::int32_t rows = 0;
  double seconds = 0;       ///< Median of the repeats.
  double seconds_low = 0;   ///< First quartile.
  double seconds_high = 0;  ///< Third quartile.

  bool operator==(const RooflinePoint&) const = default;
};

/// Seconds since some fixed moment.
using SecondsClock = std::function<double()>;
[[nodiscard]] double steady_seconds();

/// Measures in slot 0 of `model`. The repeats are interleaved (every number of rows once, then all
/// again), so that a slow spell of the machine does not fall on one number alone. `on_pass` is
/// called after every pass; true ends the profile early with no points. Throws DataError when a
/// slot does not hold settings.positions(), ConfigError as validate().
[[nodiscard]] std::vector<RooflinePoint> profile_roofline(
    DecodeModel& model, std::int64_t vocabulary_size, const RooflineSettings& settings,
    const std::function<bool()>& on_pass = {}, const SecondsClock& clock = steady_seconds);

/// As above in a transformer of its own over `model`'s weights; max_rows is halved until the model
/// has the positions. Throws DataError when it has not even one behind the context.
[[nodiscard]] std::vector<RooflinePoint> profile_roofline(const ModelUnderTest& model,
                                                          KernelSet& kernels,
                                                          RooflineSettings settings,
                                                          const std::function<bool()>& on_pass);

/// What a roofline depends on besides the model: {"device": "cpu" or "cuda", "threads": of the
/// CPU}.
[[nodiscard]] nlohmann::ordered_json roofline_machine(const KernelSet& kernels);

/// [{"rows", "seconds", "seconds_low", "seconds_high"}, …]: the "roofline" of sweep.json.
[[nodiscard]] nlohmann::ordered_json to_json(std::span<const RooflinePoint> points);

}  // namespace jforge
