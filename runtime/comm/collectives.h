#pragma once

/// Typed collectives over spans; sizes are 64-bit and large messages are split. All are collective
/// over `comm` and all ranks must pass equal sizes (in debug mode — enable_collective_checks — a
/// mismatch is named: sequence number, operation, bytes). T is float, double, std::int32_t,
/// std::int64_t or std::uint8_t; sums also take BFloat16, which is added in float32 in the same
/// order and rounded once. Each throws CommError.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// In place: every rank ends with the sum. Sums are added in rank order by fewer than 16 ranks, and
/// where the whole vector has at most 4096 bytes. Otherwise the vector is cut into one block for
/// each rank (equal, the last ones may be shorter or empty), and block b's sum begins at rank b + 1
/// and goes round, over the last rank and rank 0, to rank b. So an all-reduce and a reduce-scatter
/// with an all-gather have equal bits.
template <class T>
void all_reduce_sum(const Communicator& comm, std::span<T> values);
/// In place: every rank ends with the maximum.
template <class T>
void all_reduce_max(const Communicator& comm, std::span<T> values);
/// output = this rank's block of the element-wise sum of all inputs; input.size() == output.size()
/// · comm.size(). `output` may be the matching block of `input`.
template <class T>
void reduce_scatter_sum(const Communicator& comm, std::span<T> input, std::span<T> output);
/// output = all ranks' inputs, in rank order; output.size() == input.size() · comm.size(). `input`
/// may be the matching block of `output`.
template <class T>
void all_gather(const Communicator& comm, std::span<const T> input, std::span<T> output);
/// Root's values reach every rank.
template <class T>
void broadcast(const Communicator& comm, std::span<T> values, Rank root);

/// Root's text reaches every rank (sizes need not agree).
[[nodiscard]] std::string broadcast_text(const Communicator& comm, const std::string& text,
                                         Rank root);
/// All ranks' texts in rank order at root; empty elsewhere. Sizes may differ.
[[nodiscard]] std::vector<std::string> gather_texts(const Communicator& comm,
                                                    const std::string& text, Rank root);

/// Bytes this process handed to collectives so far (payload of its own contribution), by operation
/// name.
struct CollectiveBytes {
  std::uint64_t all_reduce = 0;
  std::uint64_t reduce_scatter = 0;
  std::uint64_t all_gather = 0;
  std::uint64_t broadcast = 0;
};
[[nodiscard]] CollectiveBytes collective_bytes();
/// Before each collective, compare sequence number, operation and bytes over all ranks (costs a
/// small all-reduce).
void enable_collective_checks(bool on);

}  // namespace jforge
