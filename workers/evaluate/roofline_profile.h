#pragma once

/// Time of a forward pass by number of tokens decoded in parallel. The plateau shows how large
/// drafts may be at no cost (METHOD.md §6.5).

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "model/transformer/inference_transformer.h"
#include "workers/evaluate/evaluator.h"

namespace jforge {

struct RooflineSettings {
  std::int32_t max_rows = 512;        ///< Largest row count; measured are 1, 2, 4, … and it.
  std::int64_t context_tokens = 128;  ///< Positions before the rows, forwarded once.
  std::int32_t repeats = 15;          ///< Measurements per row count.
  std::int32_t warm_up = 3;           ///< Unmeasured passes per row count.
  std::uint64_t seed = 0;             ///< For the tokens.

  /// Throws ConfigError naming the setting.
  void validate() const;
  /// 1, 2, 4, … and max_rows, ascending.
  [[nodiscard]] std::vector<std::int32_t> row_counts() const;
  /// Required slot capacity.
  [[nodiscard]] std::int64_t positions() const { return context_tokens + max_rows; }
};

/// One forward pass over `rows` tokens of one sequence, all with predictions.
struct RooflinePoint {
  std::int32_t rows = 0;
  double seconds = 0;       ///< Median of the repeats.
  double seconds_low = 0;   ///< First quartile.
  double seconds_high = 0;  ///< Third quartile.

  bool operator==(const RooflinePoint&) const = default;
};

using SecondsClock = std::function<double()>;
[[nodiscard]] double steady_seconds();

/// Measures in slot 0 of `model`. Each repeat measures all row counts once, so that a slow phase of
/// the machine does not affect one of them alone. `on_pass` is called after every pass; if it
/// returns true, the result is empty. Throws DataError if a slot is smaller than
/// settings.positions(), and ConfigError as validate().
[[nodiscard]] std::vector<RooflinePoint> profile_roofline(
    DecodeModel& model, std::int64_t vocabulary_size, const RooflineSettings& settings,
    const std::function<bool()>& on_pass = {}, const SecondsClock& clock = steady_seconds);

/// Makes a transformer over `model`'s weights and halves max_rows until the positions suffice.
/// Throws DataError if not even one row fits after the context.
[[nodiscard]] std::vector<RooflinePoint> profile_roofline(const ModelUnderTest& model,
                                                          KernelSet& kernels,
                                                          RooflineSettings settings,
                                                          const std::function<bool()>& on_pass);

/// {"device": "cpu" or "cuda", "threads": of the CPU}: what a roofline depends on besides the
/// model.
[[nodiscard]] nlohmann::ordered_json roofline_machine(const KernelSet& kernels);

/// [{"rows", "seconds", "seconds_low", "seconds_high"}, …]: "roofline" in sweep.json.
[[nodiscard]] nlohmann::ordered_json to_json(std::span<const RooflinePoint> points);

}  // namespace jforge
