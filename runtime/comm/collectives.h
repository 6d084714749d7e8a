#pragma once

/// Typed collectives over spans with 64-bit sizes; large messages are split. All ranks must pass
/// equal sizes. T is float, double, std::int32_t, std::int64_t or std::uint8_t; sums also take
/// BFloat16, which is added in float32 in the same order and rounded once. Each throws CommError.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/mpi_session.h"

namespace jforge {

/// In place. Fewer than 16 ranks, or at most 4096 bytes, are added in rank order. Otherwise the
/// vector is cut into one block per rank (equal, the last ones may be shorter or empty), and block
/// b's sum starts at rank b + 1 and goes round the ring to rank b. So an all-reduce has the bits of
/// a reduce-scatter with an all-gather.
template <class T>
void all_reduce_sum(const Communicator& comm, std::span<T> values);
/// In place.
template <class T>
void all_reduce_max(const Communicator& comm, std::span<T> values);
/// output = this rank's block of the sum of all inputs; input.size() == output.size() ·
/// comm.size(). `output` may be that block of `input`.
template <class T>
void reduce_scatter_sum(const Communicator& comm, std::span<T> input, std::span<T> output);
/// output = all inputs in rank order; output.size() == input.size() · comm.size(). `input` may be
/// this rank's block of `output`.
template <class T>
void all_gather(const Communicator& comm, std::span<const T> input, std::span<T> output);
template <class T>
void broadcast(const Communicator& comm, std::span<T> values, Rank root);

/// Returns root's text; sizes may differ.
[[nodiscard]] std::string broadcast_text(const Communicator& comm, const std::string& text,
                                         Rank root);
/// Returns all texts in rank order at root, nothing elsewhere; sizes may differ.
[[nodiscard]] std::vector<std::string> gather_texts(const Communicator& comm,
                                                    const std::string& text, Rank root);

/// Bytes that this process contributed to collectives.
struct CollectiveBytes {
  std::uint64_t all_reduce = 0;
  std::uint64_t reduce_scatter = 0;
  std::uint64_t all_gather = 0;
  std::uint64_t broadcast = 0;
};
[[nodiscard]] CollectiveBytes collective_bytes();
/// Compares sequence number, operation, bytes and root over all ranks before each collective, and
/// throws CommError naming a difference. Costs a small all-gather.
void enable_collective_checks(bool on);

}  // namespace jforge
