#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <mutex>
#include <source_location>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>

#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/hang_watchdog.h"
#include "runtime/comm/nccl_library.h"
#include "runtime/comm/tensor_collectives_internal.h"
#include "runtime/fault_injection.h"
#include "runtime/poll_until.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/cuda_queue.h"
#include "runtime/tensor/cuda_stream_queue.h"

namespace jforge {

namespace {

using Clock = std::chrono::steady_clock;
using detail::Operation;

/// NCCL's communicator and its failure. Used by the owner's and the watchdog's threads.
class NcclComm {
 public:
  /// Collective. Throws CommError on every rank if one fails.
  explicit NcclComm(const Communicator& comm) {
    ncclUniqueId id{};
    together(comm, [&] {
      if (comm.rank() == 0) {
        check(nccl_.get_unique_id(&id), "make an id");
      }
    });
    broadcast<std::uint8_t>(comm, {reinterpret_cast<std::uint8_t*>(&id), sizeof id}, 0);
    // The root's broadcast may return before it has left, and NCCL's waits below do not call MPI.
    together(comm, [] {});
    const auto begin = [&] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      const WaitingForOthers waiting;
      ncclComm_t made = nullptr;
      const ncclResult_t begun =
          nccl_.comm_init_rank_config(&made, comm.size(), id, comm.rank(), &config);
      {
        const std::lock_guard lock(mutex_);
        comm_ = made;
      }
      settle(begun, "make a communicator");
    };
    try {
      together(comm, begin);
    } catch (...) {
      abort("it was never whole");
      throw;
    }
  }
  ~NcclComm() { abort("destroyed"); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Waits until NCCL has accepted `call(communicator)`. After a failure always throws CommError.
  template <class Call>
  void issue(std::string_view what, const Call& call,
             std::source_location where = std::source_location::current()) {
    expect_sound();
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      expect(comm_ != nullptr || !failure_.empty(), "NCCL's communicator is used after its end");
      result = comm_ == nullptr ? ncclSuccess : call(comm_);
    }
    settle(result, what, where);
  }

  /// Throws the failure, if any.
  void expect_sound() const {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) {
      // A rank of the same host may wait in shared memory, where no error reaches it.
      CommError error(failure_);
      error.set_cut_off();
      throw error;
    }
  }
  [[nodiscard]] bool failed() const {
    const std::lock_guard lock(mutex_);
    return !failure_.empty();
  }

  /// Aborts after an asynchronous error, which wakes waiting callers. Never waits itself.
  void look(std::source_location where = std::source_location::current()) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || comm_ == nullptr) {
      return;
    }
    const ncclResult_t result = asynchronous_result();
    if (result != ncclSuccess && result != ncclInProgress) {
      abort_with(describe(result, "a collective", where));
    }
  }

  /// Running operations end with worthless results; later calls throw `why`.
  void abort(const char* why) noexcept {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) {
      abort_with(std::string("NCCL's communicator was given up: ") + why);
    }
  }

  /// Ends normally, with the other ranks. Requires: all operations are done.
  void finish() {
    const WaitingForOthers waiting;
    issue("finish a communicator", [&](ncclComm_t comm) { return nccl_.comm_finalize(comm); });
    const std::lock_guard lock(mutex_);
    static_cast<void>(nccl_.comm_destroy(comm_));
    comm_ = nullptr;
  }

 private:
  [[nodiscard]] std::string describe(ncclResult_t result, std::string_view what,
                                     const std::source_location& where) const {
    const char* const last = nccl_.get_last_error(comm_);
    return fmt::format("NCCL: {}: {}{}{}{}", what, nccl_.get_error_string(result),
                       last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last,
                       at_place(where));
  }

  void check(ncclResult_t result, std::string_view what,
             std::source_location where = std::source_location::current()) const {
    if (result != ncclSuccess) {
      throw CommError(describe(result, what, where));
    }
  }

  /// A failed query counts as an error. Requires: mutex_ is held.
  [[nodiscard]] ncclResult_t asynchronous_result() const {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = nccl_.comm_get_async_error(comm_, &result);
    return asked == ncclSuccess ? result : ncclInternalError;
  }

  /// Requires: mutex_ is held. Aborts on a detached thread, because NCCL may wait there for kernels
  /// or other ranks.
  void abort_with(std::string failure) noexcept {
    failure_ = std::move(failure);
    ncclComm_t const ended = std::exchange(comm_, nullptr);
    if (ended == nullptr) {
      return;
    }
    const auto end = [abort = nccl_.comm_abort, device = device_, ended]() noexcept {
      static_cast<void>(cudaSetDevice(device));  // Also selects a broken device, though it fails.
      static_cast<void>(abort(ended));
    };
    try {
      std::thread(end).detach();
    } catch (const std::system_error&) {
      end();
    }
  }

  void settle(ncclResult_t result, std::string_view what,
              std::source_location where = std::source_location::current()) {
    poll_until([&] {
      const std::lock_guard lock(mutex_);
      if (comm_ != nullptr && result == ncclInProgress) {
        result = asynchronous_result();
      }
      return comm_ == nullptr || result != ncclInProgress;
    });
    {
      // Creation can fail without a communicator.
      const std::lock_guard lock(mutex_);
      if (failure_.empty() && result != ncclSuccess) {
        abort_with(describe(result, what, where));
      }
    }
    expect_sound();
  }

  const NcclLibrary& nccl_ = nccl_library();
  const int device_ = selected_cuda_device();
  mutable std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  ///< Null after its end.
  std::string failure_;
};

/// Shared by a communicator's waits.
struct Waits {
  explicit Waits(const Communicator& ranks) : comm(ranks) {}
  NcclComm comm;
  double seconds = 0;
};

class OperationEnd final : public StreamPlace {
 public:
  explicit OperationEnd(std::shared_ptr<Waits> waits) : waits_(std::move(waits)) {}
  void wait(std::uint64_t /*place*/) const override {
    if (!event.reached()) {
      const WaitingForOthers waiting;
      const auto begin = Clock::now();
      // A failed operation may never reach its event, and nothing reads its results.
      poll_until([&] {
        waits_->comm.look();
        return event.reached() || waits_->comm.failed();
      });
      waits_->seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    note_progress();
    waits_->comm.look();  // Operations on a broken link end too.
    waits_->comm.expect_sound();
  }

 private:
  std::shared_ptr<Waits> waits_;
};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::bfloat16:
      return ncclBfloat16;
    default:
      return ncclInt8;
  }
}

/// In elements of type_of(); other types move as bytes.
std::size_t count_of(const ConstTensorView& view) {
  const bool typed = view.dtype() == DType::float32 || view.dtype() == DType::bfloat16;
  return typed ? static_cast<std::size_t>(view.elements()) : view.bytes();
}

class NcclCollectives final : public Collectives {
 public:
  explicit NcclCollectives(const Communicator& comm)
      : comm_(comm.duplicate()),
        waits_(std::make_shared<Waits>(comm_)),
        exceptions_before_(std::uncaught_exceptions()) {}

  ~NcclCollectives() override {
    if (std::uncaught_exceptions() > exceptions_before_) {
      // Other ranks may never issue this rank's operations.
      waits_->comm.abort("this rank failed");
      return;
    }
    try {
      end_.wait();
      waits_->comm.finish();
      comm_.handle().close();
    } catch (...) {  // NOLINT(bugprone-empty-catch): who needed a result has heard of it
    }
  }
  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;

  [[nodiscard]] Rank rank() const noexcept override { return comm_.rank(); }
  [[nodiscard]] int size() const noexcept override { return comm_.size(); }
  [[nodiscard]] Device device() const noexcept override { return Device::cuda; }
  [[nodiscard]] Queue& queue() noexcept override { return queue_; }

  Work all_reduce_sum(TensorView values) override {
    detail::expect_sum(values);
    return append(Operation::all_reduce_sum, values, values, 0, [&](ncclComm_t comm) {
      return nccl_.all_reduce(values.raw(), values.raw(), count_of(values), type_of(values.dtype()),
                              ncclSum, comm, queue_.stream().get());
    });
  }

  Work reduce_scatter_sum(TensorView input, TensorView output) override {
    detail::expect_reduce_scatter(input, output, size());
    return append(Operation::reduce_scatter_sum, input, output, 0, [&](ncclComm_t comm) {
      return nccl_.reduce_scatter(input.raw(), output.raw(), count_of(output),
                                  type_of(output.dtype()), ncclSum, comm, queue_.stream().get());
    });
  }

  Work all_gather(ConstTensorView input, TensorView output) override {
    detail::expect_all_gather(input, output, size());
    return append(Operation::all_gather, input, output, 0, [&](ncclComm_t comm) {
      return nccl_.all_gather(input.raw(), output.raw(), count_of(input), type_of(input.dtype()),
                              comm, queue_.stream().get());
    });
  }

  Work broadcast(TensorView values, Rank root) override {
    detail::expect_root(root, size());
    return append(Operation::broadcast, values, values, root, [&](ncclComm_t comm) {
      return nccl_.broadcast(values.raw(), values.raw(), count_of(values), type_of(values.dtype()),
                             root, comm, queue_.stream().get());
    });
  }

  [[nodiscard]] PayloadBytes bytes() const noexcept override { return bytes_; }
  [[nodiscard]] double waited_seconds() const noexcept override { return waits_->seconds; }

 private:
  template <class Call>
  Work append(Operation operation, const ConstTensorView& input, const ConstTensorView& output,
              Rank root, const Call& call) {
    detail::expect_place(input, Device::cuda);
    detail::expect_place(output, Device::cuda);
    const std::size_t whole = std::max(input.bytes(), output.bytes());
    try {
      const detail::InCollective in(comm_, operation, whole, root);
      waits_->comm.issue(detail::operation_name(operation), call);
      fault_point("comm.issued");
      end_ = Work(ends_.record(queue_.stream(), waits_));
    } catch (...) {
      // NCCL may have accepted the call: a retry would be one more than the other ranks'.
      waits_->comm.abort("one of this rank's calls failed");
      throw;
    }
    detail::count_payload(bytes_, operation, whole, size());
    return end_;
  }

  const NcclLibrary& nccl_ = nccl_library();
  Communicator comm_;
  CudaQueue queue_{StreamPriority::high};  // Other ranks wait for its data.
  std::shared_ptr<Waits> waits_;
  const WatchedErrors watched_{[waits = waits_] { waits->comm.look(); }};
  int exceptions_before_;
  StreamPlaces<OperationEnd> ends_;
  Work end_;  ///< The last operation's.
  PayloadBytes bytes_;
};

}  // namespace

std::string nccl_problem() { return nccl_library().problem; }

std::unique_ptr<Collectives> make_nccl_collectives(const Communicator& comm) {
  together(comm, [] {
    if (const std::string problem = nccl_problem(); !problem.empty()) {
      throw EnvironmentError("NCCL cannot be used: " + problem);
    }
  });
  return std::make_unique<NcclCollectives>(comm);
}

}  // namespace jforge
