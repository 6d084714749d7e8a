#include "runtime/comm/collectives.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "runtime/comm/mpi_check.h"
#include "runtime/error.h"

namespace jforge {

using detail::check;
using detail::InCollective;
using detail::Operation;

namespace {
/// Staging memory of one reduction piece: stays in the cache, and 1 MB pieces move about three
/// times as fast as whole tensors.
constexpr std::size_t kReducePieceBytes = std::size_t{1} << 20;
/// Up to this size everybody gets everybody's values in one step: latency counts, not bytes.
constexpr std::size_t kSmallReduceBytes = std::size_t{1} << 12;
/// Copies are split only so that counts fit MPI's int.
constexpr std::size_t kCopyPieceBytes = std::size_t{1} << 24;

struct AtomicBytes {
  std::atomic<std::uint64_t> all_reduce{0};
  std::atomic<std::uint64_t> reduce_scatter{0};
  std::atomic<std::uint64_t> all_gather{0};
  std::atomic<std::uint64_t> broadcast{0};
};
AtomicBytes counted;

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
/// NaN on any rank is NaN everywhere, whatever the order.
struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return b > a || std::isnan(b) ? b : a;
    } else {
      return std::max(a, b);
    }
  }
};

/// A piece of work for one thread's exchange buffers, kept between calls: the hot loop must not
/// allocate.
template <class T>
std::vector<T>& staging(std::size_t elements) {
  thread_local std::vector<T> buffer;
  if (buffer.size() < elements) {
    buffer.resize(elements);
  }
  return buffer;
}

/// What a reduction keeps by rank, kept between calls for the same reason.
template <class T>
struct ReduceLists {
  std::vector<MPI_Request> requests;
  std::vector<const T*> inputs;
  std::vector<const T*> blocks;
  std::vector<std::size_t> lengths;
};

template <class T>
ReduceLists<T>& reduce_lists(std::size_t ranks) {
  thread_local ReduceLists<T> lists;
  lists.requests.assign(2 * ranks, MPI_REQUEST_NULL);
  lists.inputs.assign(ranks, nullptr);
  lists.blocks.assign(ranks, nullptr);
  lists.lengths.assign(ranks, 0);
  return lists;
}

int as_int(std::size_t value) { return static_cast<int>(value); }

/// output[i] = values of rank 0 ∘ rank 1 ∘ … in rank order. `output` may be one of `inputs`.
template <class T, class Combine>
void combine_in_rank_order(std::span<const T* const> inputs, T* output, std::size_t elements,
                           Combine combine) {
  if (inputs.size() == 2) {
    const T* const first = inputs[0];
    const T* const second = inputs[1];
    // Element i is read before it is written and no other element touches it, also when output is
    // an input.
#pragma GCC ivdep
    for (std::size_t i = 0; i < elements; ++i) {
      output[i] = combine(first[i], second[i]);
    }
    return;
  }
  constexpr std::size_t kBlock = 1024;
  std::array<T, kBlock> sum;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    std::copy_n(inputs[0] + begin, count, sum.data());
    for (const T* input : inputs.subspan(1)) {
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] = combine(sum[i], input[begin + i]);
      }
    }
    std::copy_n(sum.data(), count, output + begin);
  }
}

/// One step of a reduction: rank r's block of this piece begins at blocks[r] and has lengths[r]
/// elements, on every rank. Everyone sends each block to its owner, the owner combines in rank
/// order and writes `output`.
template <class T>
class PieceReducer {
 public:
  PieceReducer(const Communicator::Handle& handle, ReduceLists<T>& lists)
      : handle_(handle),
        ranks_(static_cast<std::size_t>(handle.size)),
        requests_(lists.requests),
        inputs_(lists.inputs) {}

  template <class Combine>
  void reduce(std::span<const T* const> blocks, std::span<const std::size_t> lengths, T* output,
              Combine combine) {
    const auto me = static_cast<std::size_t>(handle_.rank);
    const std::size_t mine = lengths[me];
    std::vector<T>& arrived = staging<T>(mine * ranks_);
    int posted = 0;
    for (std::size_t step = 1; step < ranks_; ++step) {
      const std::size_t from = (me + ranks_ - step) % ranks_;
      inputs_[from] = arrived.data() + from * mine;
      if (mine > 0) {
        check(MPI_Irecv(arrived.data() + from * mine, as_int(mine * sizeof(T)), MPI_BYTE,
                        as_int(from), kTag, handle_.collectives,
                        &requests_[static_cast<std::size_t>(posted++)]));
      }
    }
    for (std::size_t step = 1; step < ranks_; ++step) {
      const std::size_t to = (me + step) % ranks_;
      if (lengths[to] > 0) {
        check(MPI_Isend(blocks[to], as_int(lengths[to] * sizeof(T)), MPI_BYTE, as_int(to), kTag,
                        handle_.collectives, &requests_[static_cast<std::size_t>(posted++)]));
      }
    }
    check(MPI_Waitall(posted, requests_.data(), MPI_STATUSES_IGNORE));
    inputs_[me] = blocks[me];
    combine_in_rank_order<T>(inputs_, output, mine, combine);
    note_progress();
  }

 private:
  static constexpr int kTag = 1;
  const Communicator::Handle& handle_;
  std::size_t ranks_;
  std::vector<MPI_Request>& requests_;
  std::vector<const T*>& inputs_;
};

template <class T, class Combine>
void all_reduce_small(const Communicator::Handle& handle, std::span<T> values, Combine combine) {
  const auto ranks = static_cast<std::size_t>(handle.size);
  std::vector<T>& all = staging<T>(values.size() * ranks);
  const int bytes = as_int(values.size_bytes());
  check(MPI_Allgather(values.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE,
                      handle.collectives));
  std::vector<const T*> inputs(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    inputs[r] = all.data() + r * values.size();
  }
  combine_in_rank_order<T>(inputs, values.data(), values.size(), combine);
}

/// Owners combine their part of each piece in rank order, then hand it round. The order of addition
/// is rank order for every element: results do not depend on the splitting, and equal
/// reduce_scatter_sum's bit for bit.
template <class T, class Combine>
void all_reduce(const Communicator& comm, std::span<T> values, Operation operation,
                Combine combine) {
  const InCollective in(comm, operation, values.size_bytes());
  counted.all_reduce += values.size_bytes();
  const Communicator::Handle& handle = comm.handle();
  if (handle.size == 1 || values.empty()) {
    return;
  }
  if (values.size_bytes() <= kSmallReduceBytes) {
    all_reduce_small(handle, values, combine);
    return;
  }
  const auto ranks = static_cast<std::size_t>(handle.size);
  ReduceLists<T>& lists = reduce_lists<T>(ranks);
  PieceReducer<T> reducer(handle, lists);
  auto& [requests, inputs, blocks, lengths] = lists;
  std::vector<int> byte_counts(ranks);
  std::vector<int> byte_places(ranks);
  constexpr std::size_t kPiece = kReducePieceBytes / sizeof(T);
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    T* piece = values.data() + begin;
    const std::size_t count = std::min(kPiece, values.size() - begin);
    const std::size_t share = (count + ranks - 1) / ranks;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::size_t first = std::min(count, r * share);
      lengths[r] = std::min(count, first + share) - first;
      blocks[r] = piece + first;
      byte_places[r] = as_int(first * sizeof(T));
      byte_counts[r] = as_int(lengths[r] * sizeof(T));
    }
    const auto me = static_cast<std::size_t>(handle.rank);
    reducer.reduce(blocks, lengths, piece + (blocks[me] - piece), combine);
    check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, piece, byte_counts.data(), byte_places.data(),
                         MPI_BYTE, handle.collectives));
  }
}
}  // namespace

template <class T>
void all_reduce_sum(const Communicator& comm, std::span<T> values) {
  all_reduce(comm, values, Operation::all_reduce_sum, Sum{});
}

template <class T>
void all_reduce_max(const Communicator& comm, std::span<T> values) {
  all_reduce(comm, values, Operation::all_reduce_max, Maximum{});
}

template <class T>
void reduce_scatter_sum(const Communicator& comm, std::span<T> input, std::span<T> output) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  expect(input.size() == output.size() * ranks,
         "reduce_scatter_sum: input is not one block of output's size per rank");
  const InCollective in(comm, Operation::reduce_scatter_sum, input.size_bytes());
  counted.reduce_scatter += input.size_bytes();
  if (ranks == 1) {
    std::copy_n(input.data(), input.data() == output.data() ? 0 : input.size(), output.data());
    return;
  }
  ReduceLists<T>& lists = reduce_lists<T>(ranks);
  PieceReducer<T> reducer(comm.handle(), lists);
  auto& [requests, inputs, blocks, lengths] = lists;
  const std::size_t piece = std::max<std::size_t>(1, kReducePieceBytes / sizeof(T) / ranks);
  for (std::size_t begin = 0; begin < output.size(); begin += piece) {
    const std::size_t count = std::min(piece, output.size() - begin);
    for (std::size_t r = 0; r < ranks; ++r) {
      blocks[r] = input.data() + r * output.size() + begin;
      lengths[r] = count;
    }
    reducer.reduce(blocks, lengths, output.data() + begin, Sum{});
  }
}

template <class T>
void all_gather(const Communicator& comm, std::span<const T> input, std::span<T> output) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  expect(output.size() == input.size() * ranks,
         "all_gather: output is not one block of input's size per rank");
  const InCollective in(comm, Operation::all_gather, input.size_bytes());
  counted.all_gather += input.size_bytes();
  T* const own = output.data() + static_cast<std::size_t>(comm.rank()) * input.size();
  if (own != input.data()) {
    std::copy_n(input.data(), input.size(), own);
  }
  if (ranks == 1) {
    return;
  }
  const Communicator::Handle& handle = comm.handle();
  constexpr std::size_t kPiece = kCopyPieceBytes / sizeof(T);
  if (input.size() <= kPiece) {
    const int bytes = as_int(input.size_bytes());
    check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, output.data(), bytes, MPI_BYTE,
                        handle.collectives));
    return;
  }
  for (std::size_t begin = 0; begin < input.size(); begin += kPiece) {
    const std::size_t count = std::min(kPiece, input.size() - begin);
    // Blocks of neighbouring ranks lie a whole input apart, also when a piece is shorter.
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Datatype spaced = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(as_int(count * sizeof(T)), MPI_BYTE, &block));
    check(MPI_Type_create_resized(block, 0, static_cast<MPI_Aint>(input.size_bytes()), &spaced));
    check(MPI_Type_commit(&spaced));
    const int code = MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, output.data() + begin, 1, spaced,
                                   handle.collectives);
    check(MPI_Type_free(&spaced));
    check(MPI_Type_free(&block));
    check(code);
    note_progress();
  }
}

template <class T>
void broadcast(const Communicator& comm, std::span<T> values, Rank root) {
  expect(0 <= root && root < comm.size(), "broadcast: no such root");
  const InCollective in(comm, Operation::broadcast, values.size_bytes(), root);
  counted.broadcast += comm.rank() == root ? values.size_bytes() : 0;
  if (comm.size() == 1) {
    return;
  }
  constexpr std::size_t kPiece = kCopyPieceBytes / sizeof(T);
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    const std::size_t count = std::min(kPiece, values.size() - begin);
    check(MPI_Bcast(values.data() + begin, as_int(count * sizeof(T)), MPI_BYTE, root,
                    comm.handle().collectives));
    note_progress();
  }
}

CollectiveBytes collective_bytes() {
  return {counted.all_reduce.load(), counted.reduce_scatter.load(), counted.all_gather.load(),
          counted.broadcast.load()};
}

#define JFORGE_INSTANTIATE(T)                                                           \
  template void all_reduce_sum<T>(const Communicator&, std::span<T>);                   \
  template void all_reduce_max<T>(const Communicator&, std::span<T>);                   \
  template void reduce_scatter_sum<T>(const Communicator&, std::span<T>, std::span<T>); \
  template void all_gather<T>(const Communicator&, std::span<const T>, std::span<T>);   \
  template void broadcast<T>(const Communicator&, std::span<T>, Rank)
JFORGE_INSTANTIATE(float);
JFORGE_INSTANTIATE(double);
JFORGE_INSTANTIATE(std::int32_t);
JFORGE_INSTANTIATE(std::int64_t);
JFORGE_INSTANTIATE(std::uint8_t);
#undef JFORGE_INSTANTIATE

}  // namespace jforge
