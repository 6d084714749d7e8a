#pragma once

/// Time of a forward pass by number of tokens. Its plateau shows how large drafts may be at no cost
/// (METHOD.md §6.5).

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "model/transformer/inference_transformer.h"
#include "workers/evaluate/evaluator.h"

namespace jforge {

struct RooflineSettings {
  std::int32_t max_rows = 512;        ///< Measured are 1, 2, 4, … and this.
  std::int64_t context_tokens = 128;  ///< Before the rows, forwarded once.
  std::int32_t repeats = 15;          ///< Per row count.
  std::int32_t warm_up = 3;           ///< Unmeasured passes per row count.
  std::uint64_t seed = 0;

  /// Throws ConfigError naming the setting.
  void validate() const;
  [[nodiscard]] std::vector<std::int32_t> row_counts() const;
  /// Required slot capacity.
  [[nodiscard]] std::int64_t positions() const { return context_tokens + max_rows; }
};

/// A forward pass over `rows` tokens of one sequence, all with predictions.
struct RooflinePoint {
  std::int32_t rows = 0;
  double seconds = 0;  ///< Median.
  double seconds_low = 0;
  double seconds_high = 0;

  bool operator==(const RooflinePoint&) const = default;
};

using SecondsClock = std::function<double()>;
[[nodiscard]] double steady_seconds();

/// Measures in slot 0. Each repeat measures all row counts once, so that a slow phase of the
/// machine affects all of them. `on_pass` is called after every pass; true ends with an empty
/// result. Throws DataError if a slot is smaller than settings.positions(), ConfigError as
/// validate().
[[nodiscard]] std::vector<RooflinePoint> profile_roofline(
    DecodeModel& model, std::int64_t vocabulary_size, const RooflineSettings& settings,
    const std::function<bool()>& on_pass = {}, const SecondsClock& clock = steady_seconds);

/// Uses its own transformer and halves max_rows until the positions suffice. Throws DataError if
/// not even one row fits.
[[nodiscard]] std::vector<RooflinePoint> profile_roofline(const ModelUnderTest& model,
                                                          KernelSet& kernels,
                                                          RooflineSettings settings,
                                                          const std::function<bool()>& on_pass);

/// {"device": "cpu" or "cuda", "threads": of the CPU}.
[[nodiscard]] nlohmann::ordered_json roofline_machine(const KernelSet& kernels);

/// "roofline" in sweep.json: [{"rows", "seconds", "seconds_low", "seconds_high"}, …].
[[nodiscard]] nlohmann::ordered_json to_json(std::span<const RooflinePoint> points);

}  // namespace jforge
