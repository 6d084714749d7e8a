#pragma once

#include <functional>
#include <span>

#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// Collective. For each group, rank 0 fills its part of `flat` (padding included) with `read` and
/// broadcasts it, without extra memory. If `read` throws, all ranks throw.
void read_and_broadcast(const Communicator& comm, const ParameterTable& table,
                        const TensorView& flat,
                        const std::function<void(const ParameterGroup&, std::span<float>)>& read);

}  // namespace jforge
