#pragma once

/// Asynchronous collectives over tensor views. Each call queues one operation and returns at once;
/// operations run in call order, which must be the same on every rank. Small host values use
/// collectives.h on another communicator.
///
/// Except with NCCL, float32 sums have the order and the bits that collectives.h states, and
/// bfloat16 sums accumulate in float32 in that order and are rounded once.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/comm/mpi_session.h"
#include "runtime/device/queue.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// A queued collective. Copyable; an empty one is done. Until it is done its views must stay valid,
/// outputs untouched and inputs unchanged.
class Work {
 public:
  Work() = default;
  explicit Work(Event event) : event_(std::move(event)) {}
  /// Whether wait() would return or throw at once.
  [[nodiscard]] bool done() const { return event_.reached(); }
  /// Blocks until the results may be read. Every call throws the operation's error (CommError).
  void wait() const { event_.wait(); }
  /// Work queued in `queue` later may read the results.
  void before(Queue& queue) const { queue.wait(event_); }

 private:
  Event event_;
};

/// Bytes that this rank sent, at the ring optimum: (N−1)/N of the tensor for reduce-scatter,
/// all-gather and broadcast, twice that for all-reduce.
struct PayloadBytes {
  std::uint64_t all_reduce = 0;
  std::uint64_t reduce_scatter = 0;
  std::uint64_t all_gather = 0;
  std::uint64_t broadcast = 0;
  [[nodiscard]] std::uint64_t total() const noexcept {
    return all_reduce + reduce_scatter + all_gather + broadcast;
  }
};

/// A call that throws has queued nothing, or every later one throws too.
class Collectives {
 public:
  virtual ~Collectives() = default;
  [[nodiscard]] virtual Rank rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// Device of the tensors.
  [[nodiscard]] virtual Device device() const noexcept { return Device::cpu; }
  /// Runs the operations. If another queue makes their inputs, call queue().wait(…) first.
  [[nodiscard]] virtual Queue& queue() noexcept = 0;
  /// In place.
  virtual Work all_reduce_sum(TensorView values) = 0;
  /// output [n] = this rank's block of the sum of all inputs [n · size()]; may be that input block.
  virtual Work reduce_scatter_sum(TensorView input, TensorView output) = 0;
  /// output [n · size()] = all inputs [n] in rank order; input may be this rank's block of output.
  virtual Work all_gather(ConstTensorView input, TensorView output) = 0;
  virtual Work broadcast(TensorView values, Rank root) = 0;
  /// Since construction.
  [[nodiscard]] virtual PayloadBytes bytes() const noexcept = 0;
  /// Seconds that callers have waited since construction.
  [[nodiscard]] virtual double waited_seconds() const noexcept = 0;
};

/// Collective. For host tensors, on an own thread and a duplicated communicator. The destructor
/// waits for queued operations and frees the communicator without a collective call. The thread's
/// error reaches waiting callers as cut_off(), and nothing more is sent. `waits_for`: device whose
/// queues' events it waits for; with CUDA, the one that the calling thread has selected. Fault
/// place: comm.operation, once per operation.
[[nodiscard]] std::unique_ptr<Collectives> make_host_collectives(const Communicator& comm,
                                                                 Device waits_for = Device::cpu);

/// The same for tensors on the calling thread's device, through page-locked host memory in
/// pipelined pieces of about 1 MB. Sums have the host's bits. Charges `account` with 2 MiB.
[[nodiscard]] std::unique_ptr<Collectives> make_staged_collectives(const Communicator& comm,
                                                                   MemoryAccount& account);

/// Collective. The same by NCCL (2.19.1 or later, opened on first use) on an own stream; each rank
/// needs an own device. NCCL chooses the order of sums and the precision of bfloat16. Equal calls
/// of equal ranks give equal bits on identically connected hosts without NVLS, which is off unless
/// NCCL_NVLS_ENABLE says otherwise. Waiting callers and the watchdog (hang_watchdog.h) look for
/// asynchronous errors; then running operations end, and every later wait and call throws
/// CommError. A call that throws, or destruction during unwinding, aborts the communicator without
/// the other ranks. Throws EnvironmentError, CommError. Fault place: comm.issued, after each call
/// that NCCL has accepted.
[[nodiscard]] std::unique_ptr<Collectives> make_nccl_collectives(const Communicator& comm);
/// Returns one line why this process cannot use NCCL; empty if it can.
[[nodiscard]] std::string nccl_problem();
/// Known problem of a libnccl version, if any. Only in builds with NCCL's header.
[[nodiscard]] std::string nccl_version_problem(int version);

/// train.collectives: transport of device tensors.
enum class CollectivesChoice : std::uint8_t {
  automatic,  ///< NCCL; MPI if ranks share a device.
  nccl,
  mpi,
};
/// Collective. For tensors of `device`, made by kernels of `kernels`, which may differ. CPU tensors
/// always use make_host_collectives(); a single rank uses no transport. Rank 0 logs why automatic
/// is not NCCL. Throws EnvironmentError on every rank if NCCL is required but cannot be used.
[[nodiscard]] std::unique_ptr<Collectives> make_collectives(
    const Communicator& comm, Device device, Device kernels, MemoryAccount& account,
    CollectivesChoice choice = CollectivesChoice::automatic);
/// Collective. Throws on every rank as make_collectives() would, before there is work to lose.
void expect_collectives(const Communicator& comm, Device device, CollectivesChoice choice);

}  // namespace jforge
