#pragma once

/// One rank reads a model's weights, all get them.

#include <functional>
#include <span>

#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Collective. For each group of `table`: rank 0 fills its part of `flat` (padding included) with
/// `read(group, part)`, all agree, and the part is broadcast. No memory beside `flat`; what `read`
/// throws is everybody's error, and nobody waits for a broadcast that does not come.
void read_and_broadcast(const Communicator& comm, const ParameterTable& table,
                        const TensorView& flat,
                        const std::function<void(const ParameterGroup&, std::span<float>)>& read);

}  // namespace jforge
