#pragma once

/// Checks and counts shared by all Collectives.

#include <cstdint>

#include "runtime/comm/tensor_collectives.h"
#include "runtime/comm/transport_internal.h"
#include "runtime/error.h"

namespace jforge::detail {

inline void expect_sum(const ConstTensorView& view) {
  expect(view.dtype() == DType::float32 || view.dtype() == DType::bfloat16,
         "sums are of float32 or bfloat16");
}

inline void expect_reduce_scatter(const ConstTensorView& input, const ConstTensorView& output,
                                  int ranks) {
  expect_sum(input);
  expect(input.dtype() == output.dtype() && input.elements() == output.elements() * ranks,
         "reduce_scatter_sum: input is not one block of output's size per rank");
}

inline void expect_all_gather(const ConstTensorView& input, const ConstTensorView& output,
                              int ranks) {
  expect(input.dtype() == output.dtype() && output.elements() == input.elements() * ranks,
         "all_gather: output is not one block of input's size per rank");
}

inline void expect_root(Rank root, int ranks) {
  expect(0 <= root && root < ranks, "broadcast: no such root");
}

inline void expect_place(const ConstTensorView& view, Device device) {
  expect(view.device() == device, "a collective's tensors lie elsewhere than its memory");
}

/// Counts an operation over `whole` bytes.
inline void count_payload(PayloadBytes& bytes, Operation operation, std::uint64_t whole,
                          int num_ranks) {
  const auto ranks = static_cast<std::uint64_t>(num_ranks);
  const std::uint64_t sent = whole / ranks * (ranks - 1) + whole % ranks * (ranks - 1) / ranks;
  switch (operation) {
    case Operation::all_reduce_sum:
      bytes.all_reduce += 2 * sent;
      return;
    case Operation::reduce_scatter_sum:
      bytes.reduce_scatter += sent;
      return;
    case Operation::all_gather:
      bytes.all_gather += sent;
      return;
    default:
      bytes.broadcast += sent;
      return;
  }
}

}  // namespace jforge::detail
