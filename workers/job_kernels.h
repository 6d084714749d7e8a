#pragma once

/// The kernels of a job. All ranks use the same kind of device.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "checkpoints/identity.h"
#include "model/kernels/device_choice.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"

namespace jforge {

/// Collective. Throws EnvironmentError on every rank unless all pass the same device: otherwise
/// results would depend on the rank, and the slowest device would set the pace.
void expect_common_device(const Communicator& comm, Device device);

/// Collective. Returns the order of sums of a new run on the CPU: groups if all ranks' processors
/// have AMX. Throws EnvironmentError on every rank if one's JFORGE_CPU names nothing known.
[[nodiscard]] BFloat16Sums common_bfloat16_sums(const Communicator& comm);
/// kBFloat16SumsFact as it is recorded.
[[nodiscard]] BFloat16Sums bfloat16_sums_of(const Identity& identity);
void record_bfloat16_sums(BFloat16Sums sums, Identity& identity);

/// Collective. Returns a kernel set with a device of the rank's own on its host. Rank 0 logs the
/// device. If `automatic` falls back to the CPU although the host seems to have a device, the
/// host's first rank warns with the reason. Throws EnvironmentError on every rank if one lacks the
/// device, or if `automatic` finds different kinds.
[[nodiscard]] std::unique_ptr<KernelSet> make_job_kernels(const Communicator& comm,
                                                          DeviceChoice choice, BFloat16Sums sums);

/// A rank's part of the health check: the digest of a product whose bits are equal on all healthy
/// ranks, whether the bytes of the rank before arrived unchanged, and the times of both.
struct RankFigures {
  std::uint64_t digest = 0;
  bool received = true;
  double product_seconds = 0;
  double ring_seconds = 0;
};
/// Names wrong ranks in an error, and in a warning those that take more than three times the median
/// and at least 1 ms more. Empty: none.
struct RankVerdict {
  std::string error;
  std::string warning;
};
[[nodiscard]] RankVerdict judge_ranks(std::span<const RankFigures> ranks,
                                      std::span<const std::string> hosts);
/// Collective. Takes some 20 ms. Throws the error as an EnvironmentError on every rank; rank 0 logs
/// the warning. Fault places: "check.product" and "check.ring".
void check_ranks(const Communicator& comm, KernelSet& kernels);

/// Throws EnvironmentError if attention on `device` does not support the model's heads
/// (expect_heads). Call before weights are loaded.
void expect_attention(Device device, const TransformerConfig& model);

/// Warns, on the first rank of a host whose processor multiplies bfloat16 more slowly than float32.
/// Does nothing for a device.
void warn_of_slow_bfloat16(const Communicator& comm, const KernelSet& kernels);

/// Rank 0 warns if decoding rounds the model (rounds()).
void warn_of_rounding(const Communicator& comm, WeightStorage decode_weights);

}  // namespace jforge
