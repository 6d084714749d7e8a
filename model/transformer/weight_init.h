#pragma once

/// Random starting weights for pre-training and tests.

#include <cstdint>

#include "model/transformer/parameter_table.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Fills the flat float32 vector of `table`: matrices normal(0, 0.02), the two projections that
/// write into the residual stream (o_proj, down_proj) scaled by 1/√(2·num_layers), norms 1, biases
/// and padding 0. Each tensor draws from its own stream (seed, weight_init, tensor number), so the
/// values of a tensor do not depend on the shard count.
void initialise_weights(const ParameterTable& table, TensorView flat, std::uint64_t seed,
                        std::int64_t num_layers);

}  // namespace jforge
