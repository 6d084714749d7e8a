#pragma once

#include <cstdint>

#include "model/transformer/parameter_table.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Fills the flat float32 vector: matrices with normal(0, 0.02), o_proj and down_proj scaled by
/// 1/√(2·num_layers), norms with 1, biases and padding with 0; of an adapter, A with normal(0,
/// 1/√K) and B with 0, so that it begins as the model. The values do not depend on the shard count,
/// because each tensor has its own random stream.
void initialise_weights(const ParameterTable& table, TensorView flat, std::uint64_t seed,
                        std::int64_t num_layers);

}  // namespace jforge
