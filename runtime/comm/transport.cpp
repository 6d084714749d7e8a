#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "runtime/comm/collectives.h"
#include "runtime/comm/transport_internal.h"
#include "runtime/error.h"

namespace jforge {

namespace {
std::atomic<bool> checks_on{false};

/// A rank's next collective, as sent.
struct Announcement {
  std::int64_t sequence = 0;
  std::int64_t operation = 0;
  std::int64_t bytes = 0;
  std::int64_t root = 0;
  bool operator==(const Announcement&) const = default;
};

std::string describe(Rank rank, const Announcement& said) {
  return fmt::format("rank {}: #{} {} of {} bytes, root {}", rank, said.sequence,
                     detail::operation_name(static_cast<detail::Operation>(said.operation)),
                     said.bytes, said.root);
}
}  // namespace

void enable_collective_checks(bool on) { checks_on.store(on); }

namespace detail {

std::string_view operation_name(Operation operation) noexcept {
  constexpr std::array<std::string_view, 12> kNames{
      "barrier",        "duplicate",          "close",      "all_reduce_sum",
      "all_reduce_max", "reduce_scatter_sum", "all_gather", "broadcast",
      "broadcast_text", "gather_texts",       "agree",      "pass_to_next"};
  const auto index = static_cast<std::size_t>(operation);
  return index < kNames.size() ? kNames[index] : "unknown";
}

InCollective::InCollective(const Communicator& comm, Operation operation, std::size_t bytes,
                           Rank root) {
  if (!checks_on.load(std::memory_order_relaxed)) [[likely]] {
    return;
  }
  Communicator::Handle& handle = comm.handle();
  const Announcement mine{++handle.sequence, static_cast<std::int64_t>(operation),
                          static_cast<std::int64_t>(bytes), root};
  std::vector<Announcement> all(static_cast<std::size_t>(handle.size));
  all_gather_values<Announcement>(handle, mine, all);
  for (std::size_t other = 1; other < all.size(); ++other) {
    if (all[other] != all[0]) {
      throw CommError("the ranks are not in the same collective: " + describe(0, all[0]) + "; " +
                      describe(static_cast<Rank>(other), all[other]));
    }
  }
}

}  // namespace detail

using detail::kMessageBytes;
using detail::kRingRanks;

void Communicator::Handle::all_gather(std::byte* all, std::size_t bytes, std::size_t stride) {
  const auto ranks = static_cast<std::size_t>(size);
  bytes_.assign(ranks, bytes);
  places_.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    places_[r] = r * stride;
  }
  Handle::all_gather_blocks(all, bytes_, places_);
}

void Communicator::Handle::all_gather_blocks(std::byte* all, std::span<const std::size_t> bytes,
                                             std::span<const std::size_t> places) {
  const auto ranks = static_cast<std::size_t>(size);
  // Small blocks are latency-bound: sent all at once, not round the ring.
  constexpr std::size_t kSmallBlock = std::size_t{1} << 12;
  if (ranks >= kRingRanks && *std::max_element(bytes.begin(), bytes.end()) > kSmallBlock) {
    all_gather_ring(all, bytes, places);
    return;
  }
  const auto me = static_cast<std::size_t>(rank);
  outgoing_.clear();
  incoming_.clear();
  for (std::size_t step = 1; step < ranks; ++step) {
    const std::size_t from = (me + ranks - step) % ranks;
    if (bytes[from] > 0) {
      incoming_.push_back({static_cast<Rank>(from), all + places[from], bytes[from]});
    }
    if (bytes[me] > 0) {
      outgoing_.push_back({static_cast<Rank>((me + step) % ranks), all + places[me], bytes[me]});
    }
  }
  exchange(outgoing_, incoming_);
}

void Communicator::Handle::all_gather_ring(std::byte* all, std::span<const std::size_t> bytes,
                                           std::span<const std::size_t> places) {
  const auto ranks = static_cast<std::size_t>(size);
  const auto me = static_cast<std::size_t>(rank);
  const auto next = static_cast<Rank>((me + 1) % ranks);
  const auto previous = static_cast<Rank>((me + ranks - 1) % ranks);
  const std::size_t longest = *std::max_element(bytes.begin(), bytes.end());
  for (std::size_t begin = 0; begin < longest; begin += kMessageBytes) {
    const auto piece = [&](std::size_t owner) {
      return bytes[owner] <= begin ? 0 : std::min(kMessageBytes, bytes[owner] - begin);
    };
    for (std::size_t step = 0; step + 1 < ranks; ++step) {
      const std::size_t given = (me + ranks - step) % ranks;
      const std::size_t taken = (me + 2 * ranks - step - 1) % ranks;
      const Outgoing out{next, all + places[given] + begin, piece(given)};
      const Incoming in{previous, all + places[taken] + begin, piece(taken)};
      exchange(std::span(&out, out.bytes > 0 ? 1 : 0), std::span(&in, in.bytes > 0 ? 1 : 0));
    }
    note_progress();
  }
}

void Communicator::Handle::broadcast(std::byte* data, std::size_t bytes, Rank root) {
  // A chain sends each byte once per rank, but its last rank waits for as many messages as there
  // are ranks; a tree's waits for the whole block a few times.
  if (bytes / kMessageBytes >= static_cast<std::size_t>(size)) {
    broadcast_chain(data, bytes, root);
  } else if (bytes > 0) {
    broadcast_tree(data, bytes, root);
  }
}

void Communicator::Handle::broadcast_chain(std::byte* data, std::size_t bytes, Rank root) {
  const int place = (rank + size - root) % size;
  const auto piece = [&](std::size_t begin) { return std::min(kMessageBytes, bytes - begin); };
  // Receives one piece while it sends the previous one.
  for (std::size_t begin = 0; begin < bytes + kMessageBytes; begin += kMessageBytes) {
    const bool takes = place > 0 && begin < bytes;
    const bool gives = place + 1 < size && begin > 0;
    const Incoming in =
        takes ? Incoming{(rank + size - 1) % size, data + begin, piece(begin)} : Incoming{};
    const Outgoing out = gives ? Outgoing{(rank + 1) % size, data + begin - kMessageBytes,
                                          piece(begin - kMessageBytes)}
                               : Outgoing{};
    exchange(std::span(&out, gives ? 1 : 0), std::span(&in, takes ? 1 : 0));
    note_progress();
  }
}

void Communicator::Handle::broadcast_tree(std::byte* data, std::size_t bytes, Rank root) {
  const int place = (rank + size - root) % size;
  for (int reached = 1; reached < size; reached *= 2) {
    if (place < reached && place + reached < size) {
      const Outgoing out{(rank + reached) % size, data, bytes};
      exchange(std::span(&out, 1), {});
    } else if (reached <= place && place < 2 * reached) {
      const Incoming in{(rank + size - reached) % size, data, bytes};
      exchange({}, std::span(&in, 1));
    }
    note_progress();
  }
}

void Communicator::Handle::barrier() {
  const std::byte out_byte{};
  std::byte in_byte{};
  for (int distance = 1; distance < size; distance *= 2) {
    const Outgoing out{(rank + distance) % size, &out_byte, 1};
    const Incoming in{(rank + size - distance) % size, &in_byte, 1};
    exchange(std::span(&out, 1), std::span(&in, 1));
  }
}

}  // namespace jforge
