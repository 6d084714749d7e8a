#pragma once

/// Cases of collectives for real and virtual ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/tensor_collectives.h"
#include "tests/distributed/comm/collective_values.h"

namespace jforge::test {

template <class T>
TensorView view_of(std::vector<T>& values) {
  return TensorView(values.data(), {static_cast<std::int64_t>(values.size())});
}
template <class T>
TensorView view_of(std::span<T> values) {
  return TensorView(values.data(), {static_cast<std::int64_t>(values.size())});
}

/// Empty, one, beyond the small path, and several messages per rank.
inline std::vector<std::size_t> block_sizes(int ranks) {
  // Every rank draws all values, which costs ranks³ times the size.
  if (ranks > 16) {
    return {0, 1, 131};
  }
  return {0, 1, 257, ranks <= 4 ? std::size_t{150'001} : std::size_t{5003}};
}

template <class T>
void check_every_operation(const Communicator& comm, Collectives& tested) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto me = static_cast<std::size_t>(comm.rank());
  Collectives* const collectives = &tested;
  EXPECT_EQ(collectives->rank(), comm.rank());
  EXPECT_EQ(collectives->size(), comm.size());
  for (const std::size_t count : block_sizes(comm.size())) {
    const std::vector<T> sum = expected_sum<T>(comm.size(), count * ranks);
    const std::vector<T> input = values_of<T>(comm.rank(), count * ranks);

    std::vector<T> values = input;
    collectives->all_reduce_sum(view_of(values)).wait();
    EXPECT_TRUE(same_bits<T>(values, sum)) << "all-reduce, " << count;

    values = input;
    std::vector<T> block(count);
    collectives->reduce_scatter_sum(view_of(values), view_of(block)).wait();
    const auto wanted = std::span(sum).subspan(me * count, count);
    EXPECT_TRUE(same_bits<T>(block, wanted)) << "reduce-scatter, " << count;
    EXPECT_TRUE(same_bits<T>(values, input)) << "reduce-scatter's input, " << count;

    const auto own = std::span(values).subspan(me * count, count);
    collectives->reduce_scatter_sum(view_of(values), view_of(own)).wait();
    EXPECT_TRUE(same_bits<T>(own, wanted)) << "reduce-scatter in place, " << count;

    // Broadcast in between, so that no memory on the way holds the result.
    const Rank root = comm.size() / 2;
    std::vector<T> given = input;
    collectives->broadcast(view_of(given), root).wait();
    EXPECT_TRUE(same_bits<T>(given, values_of<T>(root, count * ranks))) << "broadcast, " << count;

    std::vector<T> gathered(count * ranks);
    collectives->all_gather(view_of(block), view_of(gathered)).wait();
    EXPECT_TRUE(same_bits<T>(gathered, sum)) << "all-gather, " << count;
    collectives->all_gather(view_of(own), view_of(values)).wait();
    EXPECT_TRUE(same_bits<T>(values, sum)) << "all-gather in place, " << count;
  }
}

template <class T>
void check_every_operation(const Communicator& comm) {
  check_every_operation<T>(comm, *make_host_collectives(comm));
}

/// Runs hundreds of operations while this thread uses its own communicator.
inline void check_many_queued_operations(const Communicator& comm) {
  const std::size_t operations = comm.size() <= 16 ? 200 : 20;
  const auto collectives = make_host_collectives(comm);
  const auto size_of = [](std::size_t i) { return 1 + i * 61 % 5000; };
  std::vector<std::vector<float>> values(operations);
  std::vector<Work> works(operations);
  for (std::size_t i = 0; i < operations; ++i) {
    values[i] = values_of<float>(comm.rank(), size_of(i), i);
    works[i] = collectives->all_reduce_sum(view_of(values[i]));
    if (i % 10 == 0) {
      auto mine = values_of<float>(comm.rank(), 3000, i + 1);
      all_reduce_sum<float>(comm, mine);
      EXPECT_TRUE(same_bits<float>(mine, expected_sum<float>(comm.size(), 3000, i + 1)));
    }
  }
  // Operations complete in order: wait for the last one first.
  works.back().wait();
  for (std::size_t i = 0; i < operations; ++i) {
    EXPECT_TRUE(works[i].done()) << i;
    works[i].wait();
    EXPECT_TRUE(same_bits<float>(values[i], expected_sum<float>(comm.size(), size_of(i), i))) << i;
  }
  EXPECT_GE(collectives->waited_seconds(), 0);
}

inline void check_payload_of(const Communicator& comm, Collectives& tested) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  Collectives* const collectives = &tested;
  std::vector<float> whole(ranks * 10);
  std::vector<BFloat16> half(ranks * 10);
  std::vector<float> block(10);
  collectives->all_reduce_sum(view_of(whole)).wait();
  collectives->all_reduce_sum(view_of(half)).wait();
  collectives->reduce_scatter_sum(view_of(whole), view_of(block)).wait();
  collectives->all_gather(view_of(block), view_of(whole)).wait();
  collectives->broadcast(view_of(whole), 0).wait();
  const PayloadBytes bytes = collectives->bytes();
  EXPECT_EQ(bytes.all_reduce, (ranks - 1) * 10 * (8 + 4));
  EXPECT_EQ(bytes.reduce_scatter, (ranks - 1) * 40);
  EXPECT_EQ(bytes.all_gather, (ranks - 1) * 40);
  EXPECT_EQ(bytes.broadcast, (ranks - 1) * 40);
  EXPECT_EQ(bytes.total(), (ranks - 1) * 240);
}

inline void check_payload(const Communicator& comm) {
  check_payload_of(comm, *make_host_collectives(comm));
}

/// Returns this rank's results as bytes, to compare real with virtual ranks.
inline std::vector<std::byte> all_results(const Communicator& comm) {
  std::vector<std::byte> bytes;
  const auto keep = [&](auto& values) {
    const auto raw = std::as_bytes(std::span(values));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  };
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto collectives = make_host_collectives(comm);
  for (const std::size_t count : {std::size_t{5}, std::size_t{2003}, std::size_t{400'009}}) {
    auto values = values_of<float>(comm.rank(), count * ranks);
    std::vector<float> block(count);
    collectives->reduce_scatter_sum(view_of(values), view_of(block)).wait();
    keep(block);
    collectives->all_reduce_sum(view_of(values)).wait();
    keep(values);
    auto half = values_of<BFloat16>(comm.rank(), count);
    collectives->all_reduce_sum(view_of(half)).wait();
    keep(half);
    auto doubles = values_of<double>(comm.rank(), count);
    all_reduce_sum<double>(comm, doubles);
    keep(doubles);
    all_reduce_max<float>(comm, values);
    keep(values);
  }
  return bytes;
}

}  // namespace jforge::test
