#pragma once

/// Communicators between the processes of an MPI job.

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/comm/transport_internal.h"

namespace jforge::detail {

class MpiHandle final : public Communicator::Handle {
 public:
  /// Collective over `comm`, which the caller keeps.
  explicit MpiHandle(MPI_Comm comm);
  ~MpiHandle() override;
  MpiHandle(const MpiHandle&) = delete;
  MpiHandle& operator=(const MpiHandle&) = delete;

  void post(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) override;
  void finish() override;
  void all_gather(std::byte* all, std::size_t bytes, std::size_t stride) override;
  void all_gather_blocks(std::byte* all, std::span<const std::size_t> bytes,
                         std::span<const std::size_t> places) override;
  void broadcast(std::byte* data, std::size_t bytes, Rank root) override;
  void barrier() override;
  [[nodiscard]] std::unique_ptr<Handle> split(int color) override;
  void close() override;
  void send(Rank destination, int tag, std::span<const std::byte> payload) override;
  [[nodiscard]] std::optional<ReceivedMessage> try_receive() override;
  [[nodiscard]] HostPlace place_on_host() override;
  void wait_politely() override { polite_ = true; }
  void abandon() noexcept override { abandoned_.store(true); }
  [[nodiscard]] double patience_seconds() const noexcept override;

 private:
  /// A message that its receiver may not have taken yet.
  struct Sent {
    std::vector<std::byte> payload;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void forget_taken();

  /// Separate, so that try_receive() from any rank never matches a collective's message.
  MPI_Comm messages_ = MPI_COMM_NULL;
  MPI_Comm collectives_ = MPI_COMM_NULL;
  std::list<Sent> sent_;
  bool polite_ = false;
  bool large_ = false;  // a block of requests_ is
  std::atomic<bool> abandoned_{false};
  // Kept between calls: a training step must not allocate.
  std::vector<MPI_Request> requests_;
  std::vector<int> counts_;
  std::vector<int> displacements_;
};

}  // namespace jforge::detail
