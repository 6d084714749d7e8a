#pragma once

/// What carries bytes between ranks. Everything above it (sums, texts, agreements, checks) is
/// written once, so that ranks of MPI and virtual ranks compute equal bits.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/comm/mpi_session.h"
#include "runtime/phase_clock.h"

namespace jforge {

/// One rank's end of a communicator. One thread at a time uses it, but for abandon(). Every call
/// throws CommError.
struct Communicator::Handle {
  struct Outgoing {
    Rank to = 0;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Incoming {
    Rank from = 0;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  struct HostPlace {
    int rank = 0;
    int size = 0;
  };

  Handle() = default;
  virtual ~Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  Rank rank = 0;
  int size = 1;
  /// Collectives announced so far (collective checks).
  std::int64_t sequence = 0;

  /// Begins to send and to receive, at most one block to and from each other rank; finish() waits
  /// for all of it. The blocks must stay until then. The peers' calls name the same blocks with the
  /// same bytes, in the same order.
  virtual void post(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) = 0;
  virtual void finish() = 0;
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    post(outgoing, incoming);
    finish();
  }

  /// In place: rank r's block is all[r · stride, + bytes) on every rank.
  virtual void all_gather(std::byte* all, std::size_t bytes, std::size_t stride);
  /// In place: rank r's block is all[places[r], + bytes[r]).
  virtual void all_gather_blocks(std::byte* all, std::span<const std::size_t> bytes,
                                 std::span<const std::size_t> places);
  virtual void broadcast(std::byte* data, std::size_t bytes, Rank root);
  virtual void barrier();

  /// Collective.
  [[nodiscard]] virtual std::unique_ptr<Handle> duplicate() = 0;
  /// Frees what the handle holds. Waits for nothing but receivers of what was sent.
  virtual void close() = 0;
  virtual void send(Rank destination, int tag, std::span<const std::byte> payload) = 0;
  [[nodiscard]] virtual std::optional<ReceivedMessage> try_receive() = 0;
  /// Collective.
  [[nodiscard]] virtual HostPlace place_on_host() = 0;

  /// From now on every wait sleeps between its looks, of later duplicates too: for a thread beside
  /// the arithmetic, and for ranks that share their cores. All ranks alike.
  virtual void wait_politely() {}
  /// Any thread: a running and every later wait of a polite handle throws CommError.
  virtual void abandon() noexcept = 0;
  /// How long an error's unwinding waits for the other ranks before it abandons a handle that is in
  /// use.
  [[nodiscard]] virtual double patience_seconds() const noexcept = 0;

 private:
  void all_gather_ring(std::byte* all, std::span<const std::size_t> bytes,
                       std::span<const std::size_t> places);
  void broadcast_chain(std::byte* data, std::size_t bytes, Rank root);
  void broadcast_tree(std::byte* data, std::size_t bytes, Rank root);

  // Kept between calls: a training step must not allocate.
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<std::size_t> bytes_;
  std::vector<std::size_t> places_;
};

namespace detail {

/// A large tensor travels in messages of about this size.
constexpr std::size_t kMessageBytes = std::size_t{1} << 20;
/// From so many ranks on everybody talks to its neighbours only.
constexpr std::size_t kRingRanks = 16;

/// The operation of a collective, for byte counts and checks. The values travel between ranks of
/// one job only.
enum class Operation : std::int64_t {
  barrier,
  duplicate,
  close,
  all_reduce_sum,
  all_reduce_max,
  reduce_scatter_sum,
  all_gather,
  broadcast,
  broadcast_text,
  gather_texts,
  agree,
};
[[nodiscard]] std::string_view operation_name(Operation operation) noexcept;

/// Lives as long as a collective: the rank waits for the others (phase_clock.h). With collective
/// checks on it first compares sequence number, operation, bytes and root over all ranks and throws
/// CommError naming the difference on every rank.
class InCollective {
 public:
  InCollective(const Communicator& comm, Operation operation, std::size_t bytes, Rank root = 0);

 private:
  WaitingForOthers waiting_;
};

/// all[r] = rank r's `mine`.
template <class T>
void all_gather_values(Communicator::Handle& handle, const T& mine, std::span<T> all) {
  all[static_cast<std::size_t>(handle.rank)] = mine;
  handle.all_gather(std::as_writable_bytes(all).data(), sizeof(T), sizeof(T));
}

}  // namespace detail
}  // namespace jforge
