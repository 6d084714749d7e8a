#include "model/transformer/weight_init.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "runtime/random.h"

namespace jforge {

void initialise_weights(const ParameterTable& table, TensorView flat, std::uint64_t seed,
                        std::int64_t num_layers) {
  constexpr double kStandardDeviation = 0.02;
  expect(num_layers >= 1, "num_layers must be at least 1");
  expect(flat.elements() == table.flat_size(), "the flat vector's size differs from the table's");
  const double residual_scale = 1.0 / std::sqrt(2.0 * static_cast<double>(num_layers));
  std::ranges::fill(flat.span<float>(), 0.0F);

  const auto fill_normal = [&](const ParameterEntry& entry, std::size_t index, double scale) {
    RandomStream stream(seed, RandomPurpose::weight_init, 0, index);
    float* const values = flat.data<float>() + entry.offset;
    for (std::int64_t i = 0; i < entry.shape.elements(); ++i) {
      values[i] = static_cast<float>(stream.normal() * scale);
    }
  };
  for (std::size_t index = 0; index < table.entries().size(); ++index) {
    const ParameterEntry& entry = table.entries()[index];
    const std::string_view name = entry.name;
    float* const values = flat.data<float>() + entry.offset;
    if (entry.shape.rank() == 1) {
      if (name.ends_with("norm.weight")) {
        std::fill_n(values, entry.shape.elements(), 1.0F);
      }
      continue;
    }
    if (name.ends_with("lora_B.weight")) {
      continue;
    }
    if (name.ends_with("lora_A.weight")) {
      fill_normal(entry, index, 1.0 / std::sqrt(static_cast<double>(entry.shape[1])));
      continue;
    }
    const bool residual = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    fill_normal(entry, index, kStandardDeviation * (residual ? residual_scale : 1.0));
  }
}

}  // namespace jforge
