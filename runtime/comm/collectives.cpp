#include "runtime/comm/collectives.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "runtime/comm/transport_internal.h"
#include "runtime/error.h"
#include "runtime/tensor/bfloat16.h"

namespace jforge {

using detail::InCollective;
using detail::Operation;
using Handle = Communicator::Handle;

namespace {
/// A reduction piece stays in the cache and moves about three times as fast as whole tensors.
constexpr std::size_t kReducePieceBytes = detail::kMessageBytes;
/// Up to this size every rank gathers all values in one step, because latency dominates.
constexpr std::size_t kSmallReduceBytes = std::size_t{1} << 12;

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
/// NaN on any rank gives NaN everywhere, in any order.
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

template <class T>
std::byte* bytes_of(T* values) {
  return reinterpret_cast<std::byte*>(values);
}
template <class T>
const std::byte* bytes_of(const T* values) {
  return reinterpret_cast<const std::byte*>(values);
}

/// One thread's exchange buffer, kept between calls because the hot loop must not allocate.
template <class T>
std::vector<T>& staging(std::size_t elements) {
  thread_local std::vector<T> buffer;
  if (buffer.size() < elements) {
    buffer.resize(elements);
  }
  return buffer;
}

/// Kept between calls for the same reason.
template <class T>
struct ReduceLists {
  std::vector<Handle::Outgoing> outgoing;
  std::vector<Handle::Incoming> incoming;
  std::vector<const T*> inputs;
  std::vector<const T*> blocks;
  std::vector<std::size_t> lengths;
  std::vector<std::size_t> byte_counts;
  std::vector<std::size_t> byte_places;
};

template <class T>
ReduceLists<T>& reduce_lists(std::size_t ranks) {
  thread_local ReduceLists<T> lists;
  lists.inputs.assign(ranks, nullptr);
  lists.blocks.assign(ranks, nullptr);
  lists.lengths.assign(ranks, 0);
  lists.byte_counts.assign(ranks, 0);
  lists.byte_places.assign(ranks, 0);
  return lists;
}

/// The last blocks may be shorter or empty.
template <class T>
void cut_into_blocks(ReduceLists<T>& lists, const T* values, std::size_t count) {
  const std::size_t ranks = lists.lengths.size();
  const std::size_t share = (count + ranks - 1) / ranks;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t first = std::min(count, r * share);
    lists.lengths[r] = std::min(count, first + share) - first;
    lists.blocks[r] = values + first;
    lists.byte_places[r] = first * sizeof(T);
    lists.byte_counts[r] = lists.lengths[r] * sizeof(T);
  }
}

/// bfloat16 is added in float32 and rounded once.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <class T>
Accumulator<T> widened(T value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_float(value);
  } else {
    return value;
  }
}

template <class T>
T narrowed(Accumulator<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(value);
  } else {
    return value;
  }
}

/// output[i] = rank 0's value ∘ rank 1's ∘ …; `output` may be one of `inputs`.
template <class T, class Combine>
void combine_in_rank_order(std::span<const T* const> inputs, T* output, std::size_t elements,
                           Combine combine) {
  if (inputs.size() == 2) {
    const T* const first = inputs[0];
    const T* const second = inputs[1];
    // Each element is read before it is written, even if output is an input.
#pragma GCC ivdep
    for (std::size_t i = 0; i < elements; ++i) {
      output[i] = narrowed<T>(combine(widened(first[i]), widened(second[i])));
    }
    return;
  }
  constexpr std::size_t kBlock = 1024;
  std::array<Accumulator<T>, kBlock> sum;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    std::transform(inputs[0] + begin, inputs[0] + begin + count, sum.data(), widened<T>);
    for (const T* input : inputs.subspan(1)) {
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] = combine(sum[i], widened(input[begin + i]));
      }
    }
    std::transform(sum.data(), sum.data() + count, output + begin, narrowed<T>);
  }
}

/// One step: every rank sends its part of each block (lists.blocks, lists.lengths) to the owner,
/// which combines in rank order and writes `output`.
template <class T, class Combine>
void reduce_piece(Handle& handle, ReduceLists<T>& lists, T* output, Combine combine) {
  const auto ranks = static_cast<std::size_t>(handle.size);
  const auto me = static_cast<std::size_t>(handle.rank);
  const std::size_t mine = lists.lengths[me];
  std::vector<T>& arrived = staging<T>(mine * ranks);
  lists.incoming.clear();
  lists.outgoing.clear();
  for (std::size_t step = 1; step < ranks; ++step) {
    const std::size_t from = (me + ranks - step) % ranks;
    T* const place = arrived.data() + from * mine;
    lists.inputs[from] = place;
    if (mine > 0) {
      lists.incoming.push_back({static_cast<Rank>(from), bytes_of(place), mine * sizeof(T)});
    }
    const std::size_t to = (me + step) % ranks;
    if (lists.lengths[to] > 0) {
      lists.outgoing.push_back(
          {static_cast<Rank>(to), bytes_of(lists.blocks[to]), lists.lengths[to] * sizeof(T)});
    }
  }
  handle.exchange(lists.outgoing, lists.incoming);
  lists.inputs[me] = lists.blocks[me];
  combine_in_rank_order<T>(lists.inputs, output, mine, combine);
  note_progress();
}

/// Pipelined ring reduction: the sum of block b starts at rank b + 1 and passes from neighbour to
/// neighbour to rank b, so that each rank sends to one other only, in messages of about
/// detail::kMessageBytes. Partial sums travel as Accumulator<T>. One piece travels while the
/// previous one is added.
template <class T, class Combine>
class RingReducer {
 public:
  /// `output` gets this rank's result and may be its own block.
  RingReducer(Handle& handle, const ReduceLists<T>& lists, T* output, Combine combine)
      : handle_(handle),
        lists_(lists),
        output_(output),
        combine_(combine),
        ranks_(lists.lengths.size()),
        me_(static_cast<std::size_t>(handle.rank)),
        longest_(*std::max_element(lists.lengths.begin(), lists.lengths.end())) {
    // At least two pieces travel at once, unless they would be tiny.
    constexpr std::size_t kTiny = (std::size_t{1} << 16) / sizeof(Partial);
    constexpr std::size_t kPiece = detail::kMessageBytes / sizeof(Partial);
    piece_ = std::max<std::size_t>(
        1, longest_ <= kTiny ? longest_ : std::min(kPiece, (longest_ + 1) / 2));
    sums_ = staging<Partial>(4 * piece_).data();
  }

  void run() {
    const std::size_t pieces = (longest_ + piece_ - 1) / piece_;
    const std::size_t units = pieces * (ranks_ - 1);
    post(unit(0, pieces));
    for (std::size_t i = 0; i < units; ++i) {
      const Unit now = unit(i, pieces);
      handle_.finish();
      const bool more = i + 1 < units;
      const Unit next = more ? unit(i + 1, pieces) : now;
      // The other lane's message does not depend on this sum; the same lane's next one does.
      if (more && next.lane != now.lane) {
        post(next);
      }
      add(now);
      if (more && next.lane == now.lane) {
        post(next);
      }
      note_progress();
    }
  }

 private:
  using Partial = Accumulator<T>;
  /// A step of one piece. Two pieces travel at once, one per lane.
  struct Unit {
    std::size_t begin = 0;  ///< Of the piece, within a block.
    std::size_t step = 0;
    std::size_t lane = 0;
  };

  [[nodiscard]] Unit unit(std::size_t index, std::size_t pieces) const {
    const std::size_t steps = ranks_ - 1;
    const std::size_t pair = index / (2 * steps);
    const std::size_t lanes = 2 * pair + 1 < pieces ? 2 : 1;
    const std::size_t within = index - pair * 2 * steps;
    return {(2 * pair + within % lanes) * piece_, within / lanes, within % lanes};
  }

  [[nodiscard]] std::size_t length(std::size_t block, const Unit& unit) const {
    const std::size_t whole = lists_.lengths[block];
    return whole <= unit.begin ? 0 : std::min(piece_, whole - unit.begin);
  }
  [[nodiscard]] std::size_t given(const Unit& unit) const {
    return (me_ + 2 * ranks_ - 1 - unit.step) % ranks_;
  }
  [[nodiscard]] std::size_t taken(const Unit& unit) const {
    return (me_ + 2 * ranks_ - 2 - unit.step) % ranks_;
  }
  /// Holds the sum received in a step until the next step has sent it.
  [[nodiscard]] Partial* sum(const Unit& unit, std::size_t step) const {
    return sums_ + (2 * unit.lane + step % 2) * piece_;
  }

  void post(const Unit& unit) {
    const std::size_t out_length = length(given(unit), unit);
    const std::size_t in_length = length(taken(unit), unit);
    Partial* outgoing = sum(unit, unit.step + 1);
    if (unit.step == 0) {
      const T* const own = lists_.blocks[given(unit)] + unit.begin;
      std::transform(own, own + out_length, outgoing, widened<T>);
    }
    const Handle::Outgoing out{static_cast<Rank>((me_ + 1) % ranks_), bytes_of(outgoing),
                               out_length * sizeof(Partial)};
    const Handle::Incoming in{static_cast<Rank>((me_ + ranks_ - 1) % ranks_),
                              bytes_of(sum(unit, unit.step)), in_length * sizeof(Partial)};
    handle_.post(std::span(&out, out_length > 0 ? 1 : 0), std::span(&in, in_length > 0 ? 1 : 0));
  }

  void add(const Unit& unit) {
    const std::size_t block = taken(unit);
    const std::size_t count = length(block, unit);
    const T* const own = lists_.blocks[block] + unit.begin;
    Partial* const partial = sum(unit, unit.step);
    if (block != me_) {
      for (std::size_t i = 0; i < count; ++i) {
        partial[i] = combine_(partial[i], widened(own[i]));
      }
      return;
    }
    T* const result = output_ + unit.begin;
    // Each element is read before it is written, even if the result is in the own block.
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
      result[i] = narrowed<T>(combine_(partial[i], widened(own[i])));
    }
  }

  Handle& handle_;
  const ReduceLists<T>& lists_;
  T* output_;
  Combine combine_;
  std::size_t ranks_;
  std::size_t me_;
  std::size_t longest_;
  std::size_t piece_ = 1;
  Partial* sums_ = nullptr;
};

/// Depends only on these values, so that all operations on a vector add in the same order.
bool takes_ring(std::size_t ranks, std::size_t bytes) {
  return ranks >= detail::kRingRanks && bytes > kSmallReduceBytes;
}

template <class T, class Combine>
void all_reduce_small(Handle& handle, std::span<T> values, Combine combine) {
  const auto ranks = static_cast<std::size_t>(handle.size);
  std::vector<T>& all = staging<T>(values.size() * ranks);
  std::copy(values.begin(), values.end(),
            all.data() + static_cast<std::size_t>(handle.rank) * values.size());
  handle.all_gather(bytes_of(all.data()), values.size_bytes(), values.size_bytes());
  std::vector<const T*>& inputs = reduce_lists<T>(ranks).inputs;
  for (std::size_t r = 0; r < ranks; ++r) {
    inputs[r] = all.data() + r * values.size();
  }
  combine_in_rank_order<T>(inputs, values.data(), values.size(), combine);
}

/// Every rank owns a block, as in reduce_scatter_sum().
template <class T, class Combine>
void all_reduce_ring(Handle& handle, std::span<T> values, Combine combine) {
  const auto ranks = static_cast<std::size_t>(handle.size);
  ReduceLists<T>& lists = reduce_lists<T>(ranks);
  cut_into_blocks(lists, values.data(), values.size());
  T* const own =
      values.data() + lists.byte_places[static_cast<std::size_t>(handle.rank)] / sizeof(T);
  RingReducer<T, Combine>(handle, lists, own, combine).run();
  // MPI's own all-gather takes int displacements.
  handle.Handle::all_gather_blocks(bytes_of(values.data()), lists.byte_counts, lists.byte_places);
}

/// Owners combine their part of each piece, then share it. The order of addition is the same for
/// every splitting, so results equal reduce_scatter_sum()'s bit for bit.
template <class T, class Combine>
void all_reduce(const Communicator& comm, std::span<T> values, Operation operation,
                Combine combine) {
  const InCollective in(comm, operation, values.size_bytes());
  counted.all_reduce += values.size_bytes();
  Handle& handle = comm.handle();
  if (handle.size == 1 || values.empty()) {
    return;
  }
  if (values.size_bytes() <= kSmallReduceBytes) {
    all_reduce_small(handle, values, combine);
    return;
  }
  const auto ranks = static_cast<std::size_t>(handle.size);
  if (takes_ring(ranks, values.size_bytes())) {
    all_reduce_ring(handle, values, combine);
    return;
  }
  ReduceLists<T>& lists = reduce_lists<T>(ranks);
  constexpr std::size_t kPiece = kReducePieceBytes / sizeof(T);
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    T* piece = values.data() + begin;
    const std::size_t count = std::min(kPiece, values.size() - begin);
    cut_into_blocks(lists, piece, count);
    const auto me = static_cast<std::size_t>(handle.rank);
    reduce_piece(handle, lists, piece + (lists.blocks[me] - piece), combine);
    handle.all_gather_blocks(bytes_of(piece), lists.byte_counts, lists.byte_places);
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
  if (takes_ring(ranks, input.size_bytes())) {
    cut_into_blocks<T>(lists, input.data(), input.size());
    RingReducer<T, Sum>(comm.handle(), lists, output.data(), Sum{}).run();
    return;
  }
  const std::size_t piece = std::max<std::size_t>(1, kReducePieceBytes / sizeof(T) / ranks);
  for (std::size_t begin = 0; begin < output.size(); begin += piece) {
    const std::size_t count = std::min(piece, output.size() - begin);
    for (std::size_t r = 0; r < ranks; ++r) {
      lists.blocks[r] = input.data() + r * output.size() + begin;
      lists.lengths[r] = count;
    }
    reduce_piece(comm.handle(), lists, output.data() + begin, Sum{});
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
  constexpr std::size_t kPiece = detail::kCopyPieceBytes / sizeof(T);
  for (std::size_t begin = 0; begin < input.size(); begin += kPiece) {
    // Blocks are a whole input apart, even if a piece is shorter.
    const std::size_t count = std::min(kPiece, input.size() - begin);
    comm.handle().all_gather(bytes_of(output.data() + begin), count * sizeof(T),
                             input.size_bytes());
    note_progress();
  }
}

template <class T>
void broadcast(const Communicator& comm, std::span<T> values, Rank root) {
  expect(0 <= root && root < comm.size(), "broadcast: no such root");
  const InCollective in(comm, Operation::broadcast, values.size_bytes(), root);
  counted.broadcast += comm.rank() == root ? values.size_bytes() : 0;
  if (comm.size() > 1) {
    comm.handle().broadcast(bytes_of(values.data()), values.size_bytes(), root);
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
template void all_reduce_sum<BFloat16>(const Communicator&, std::span<BFloat16>);
template void reduce_scatter_sum<BFloat16>(const Communicator&, std::span<BFloat16>,
                                           std::span<BFloat16>);

}  // namespace jforge
