#pragma once

/// The kernels of a job: every rank computes on the same kind of device.

#include <memory>

#include "model/kernels/device_choice.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Collective. Throws EnvironmentError on every rank when they do not all pass the same device:
/// results would depend on which rank computed them, and the slowest device would set the pace.
void expect_common_device(const Communicator& comm, Device device);

/// Collective. make_kernel_set() on every rank, each with its own device of its host. Rank 0 logs
/// on what; where automatic falls back to the CPU although a CUDA build's host seems to have a
/// device, the first rank of that host warns, with the reason. Throws EnvironmentError on every
/// rank when one has no such device, or automatic finds different kinds.
[[nodiscard]] std::unique_ptr<KernelSet> make_job_kernels(const Communicator& comm,
                                                          DeviceChoice choice);

/// Throws EnvironmentError where attention of `device` does not take the model's heads
/// (expect_heads): before weights are loaded.
void expect_attention(Device device, const TransformerConfig& model);

/// Rank 0 says so where decoding rounds the model (model.decode_weights = "bfloat16").
void warn_of_rounding(const Communicator& comm, WeightStorage decode_weights);

}  // namespace jforge
