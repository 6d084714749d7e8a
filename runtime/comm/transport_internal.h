#pragma once

/// Byte transport. All else is shared, so that MPI ranks and virtual ranks compute equal bits.

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

/// A rank's end of a communicator, for one thread at a time except abandon(). Throws CommError.
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
  /// For collective checks.
  std::int64_t sequence = 0;

  /// Starts at most one send to and one receive from each other rank; blocks must stay valid until
  /// finish(). Peers must post the same blocks and sizes in the same order.
  virtual void post(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) = 0;
  virtual void finish() = 0;
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    post(outgoing, incoming);
    finish();
  }

  /// In place: rank r's block is all[r · stride, + bytes).
  virtual void all_gather(std::byte* all, std::size_t bytes, std::size_t stride);
  /// In place: rank r's block is all[places[r], + bytes[r]).
  virtual void all_gather_blocks(std::byte* all, std::span<const std::size_t> bytes,
                                 std::span<const std::size_t> places);
  virtual void broadcast(std::byte* data, std::size_t bytes, Rank root);
  virtual void barrier();

  /// Collective. A communicator of the ranks with the same color, in their order here.
  [[nodiscard]] virtual std::unique_ptr<Handle> split(int color) = 0;
  /// Waits only for receivers of sent messages.
  virtual void close() = 0;
  virtual void send(Rank destination, int tag, std::span<const std::byte> payload) = 0;
  [[nodiscard]] virtual std::optional<ReceivedMessage> try_receive() = 0;
  /// Collective.
  [[nodiscard]] virtual HostPlace place_on_host() = 0;

  /// Makes waits, also of later duplicates, sleep between polls and so share cores. All ranks must
  /// call it.
  virtual void wait_politely() {}
  /// Thread-safe. A running and every later wait of a polite handle throws CommError.
  virtual void abandon() noexcept = 0;
  /// How long unwinding waits for the other ranks before it abandons a handle in use.
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

/// Approximate message size of a large tensor.
constexpr std::size_t kMessageBytes = std::size_t{1} << 20;
/// Splits copies, so that a rank shows progress and counts fit MPI's int.
constexpr std::size_t kCopyPieceBytes = std::size_t{1} << 24;
/// From this world size on, reductions and all-gathers use a ring.
constexpr std::size_t kRingRanks = 16;

/// For byte counts and checks. Values travel only between ranks of one job.
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
  pass_to_next,
};
[[nodiscard]] std::string_view operation_name(Operation operation) noexcept;

/// Marks the rank as waiting for others during a collective (phase_clock.h). Performs the
/// comparison of enable_collective_checks().
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
