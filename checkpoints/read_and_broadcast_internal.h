#pragma once

/// Loads a model's weights on one rank and broadcasts them.

#include <functional>
#include <span>

#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Collective. For each group of `table`, rank 0 fills its part of `flat` (padding included) with
/// `read(group, part)` and broadcasts it. Uses no memory besides `flat`. If `read` throws, all
/// ranks throw instead of waiting for the broadcast.
void read_and_broadcast(const Communicator& comm, const ParameterTable& table,
                        const TensorView& flat,
                        const std::function<void(const ParameterGroup&, std::span<float>)>& read);

}  // namespace jforge
