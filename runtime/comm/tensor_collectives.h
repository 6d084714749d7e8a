#pragma once

/// Collectives over tensor views that run beside the caller's arithmetic. Each call queues one
/// operation and returns at once; operations run one after another in the order of the calls, which
/// must be the same on every rank. Small host values (agreements, metadata) go through
/// collectives.h on another communicator.
///
/// float32 sums are added in the order that collectives.h states and have its bits. bfloat16 sums
/// accumulate in float32 in the same order and are rounded once.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/comm/mpi_session.h"
#include "runtime/device/queue.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// A queued collective. Copyable; an empty one is done. Its views must stay valid until it is done:
/// outputs untouched, inputs unchanged.
class Work {
 public:
  Work() = default;
  explicit Work(Event event) : event_(std::move(event)) {}
  /// Whether wait() would return (or throw) at once.
  [[nodiscard]] bool done() const { return event_.reached(); }
  /// Blocks until the results may be read. Throws what the operation threw (CommError), in every
  /// call.
  void wait() const { event_.wait(); }
  /// What `queue` is given from now on may read the results (Queue::wait).
  void before(Queue& queue) const { queue.wait(event_); }

 private:
  Event event_;
};

/// Payload that this rank sent, bytes, at the ring optimum, by kind: (N−1)/N of the whole tensor
/// for reduce-scatter, all-gather and broadcast, twice that for all-reduce.
struct PayloadBytes {
  std::uint64_t all_reduce = 0;
  std::uint64_t reduce_scatter = 0;
  std::uint64_t all_gather = 0;
  std::uint64_t broadcast = 0;
  [[nodiscard]] std::uint64_t total() const noexcept {
    return all_reduce + reduce_scatter + all_gather + broadcast;
  }
};

/// A call that throws has queued nothing, or every later one throws as well.
class Collectives {
 public:
  virtual ~Collectives() = default;
  [[nodiscard]] virtual Rank rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// Where the tensors lie.
  [[nodiscard]] virtual Device device() const noexcept { return Device::cpu; }
  /// Where operations run. What they read must be done before: queue().wait(…) where another queue
  /// makes it.
  [[nodiscard]] virtual Queue& queue() noexcept = 0;
  /// In place: every rank ends with the sum.
  virtual Work all_reduce_sum(TensorView values) = 0;
  /// output [n] = this rank's block of the sum of all inputs [n · size()]; output may be that block
  /// of input.
  virtual Work reduce_scatter_sum(TensorView input, TensorView output) = 0;
  /// output [n · size()] = all inputs [n] in rank order; input may be this rank's block of output.
  virtual Work all_gather(ConstTensorView input, TensorView output) = 0;
  /// The root's values reach every rank.
  virtual Work broadcast(TensorView values, Rank root) = 0;
  /// What was queued since the object was made.
  [[nodiscard]] virtual PayloadBytes bytes() const noexcept = 0;
  /// Seconds that callers have spent waiting for operations since the object was made.
  [[nodiscard]] virtual double waited_seconds() const noexcept = 0;
};

/// Collective over `comm`. For tensors in host memory: a thread and a communicator of its own
/// (duplicated). The destructor waits for what is queued and frees the communicator without another
/// collective call. What the thread throws reaches who waits, cut_off(): nothing more is sent.
/// `waits_for`: whose queues' events theirs may wait for; of CUDA, the device that the calling
/// thread has selected. Fault place: comm.operation, once per operation.
[[nodiscard]] std::unique_ptr<Collectives> make_host_collectives(const Communicator& comm,
                                                                 Device waits_for = Device::cpu);

/// The same for tensors on the device that the calling thread has selected: they travel through
/// page-locked host memory in pieces of about 1 MB, which come from the device, travel and go back
/// side by side. Sums have the bits of the host's. `account` is charged with the page-locked
/// memory, 2 MiB.
[[nodiscard]] std::unique_ptr<Collectives> make_staged_collectives(const Communicator& comm,
                                                                   MemoryAccount& account);

/// Collective. The same by NCCL (2.19.1 or later, opened when it is first asked for), on a stream
/// of its own: a device of its own for each rank. NCCL adds in an order of its own choice, and
/// bfloat16 in a precision of its own; equal calls of equal ranks give equal bits, on hosts that
/// are connected alike and without NVLS, which is off unless NCCL_NVLS_ENABLE says otherwise. An
/// error that comes up while operations run is looked for by whoever waits and by the watchdog
/// (hang_watchdog.h); operations under way then end, and every later wait and call throws
/// CommError. Destroyed while an exception unwinds, it gives the communicator up without the other
/// ranks; so does a call that throws. Throws EnvironmentError, CommError. Fault place: comm.issued,
/// behind each call that NCCL has taken.
[[nodiscard]] std::unique_ptr<Collectives> make_nccl_collectives(const Communicator& comm);
/// Why this process cannot use NCCL, on one line; empty where it can.
[[nodiscard]] std::string nccl_problem();
/// What is wrong with a version of libnccl, as ncclGetVersion tells it; empty where nothing is
/// known. Only in a build with NCCL's header.
[[nodiscard]] std::string nccl_version_problem(int version);

/// train.collectives: what tensors of a device travel by.
enum class CollectivesChoice : std::uint8_t {
  automatic,  ///< NCCL; MPI if ranks share a device.
  nccl,
  mpi,
};
/// Collective. For tensors of `device`, made by the kernels of `kernels`, which may be another: on
/// the CPU make_host_collectives(), whatever the choice. One rank alone needs neither. Rank 0 logs
/// why automatic is not NCCL. Throws EnvironmentError on every rank where NCCL is asked for and
/// cannot be used.
[[nodiscard]] std::unique_ptr<Collectives> make_collectives(
    const Communicator& comm, Device device, Device kernels, MemoryAccount& account,
    CollectivesChoice choice = CollectivesChoice::automatic);
/// Collective. That make_collectives() can keep to `choice`, found out before there is work to
/// lose. Throws EnvironmentError on every rank, as make_collectives() does.
void expect_collectives(const Communicator& comm, Device device, CollectivesChoice choice);

}  // namespace jforge
