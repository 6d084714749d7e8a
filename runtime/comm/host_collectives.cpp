#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/device_staging_internal.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/tensor_collectives_internal.h"
#include "runtime/device/queue.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/tensor/cuda_memory.h"
#include "runtime/tensor/cuda_queue.h"

namespace jforge {

namespace {

using Clock = std::chrono::steady_clock;

using Kind = detail::Operation;

/// Shared by the communication thread and its waiters; outlives both.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;  ///< An operation is done.
  PhaseClock clock;                 ///< Progress of the communication thread.
  PayloadBytes bytes;
  double waited_seconds = 0;
  std::uint64_t unfinished = 0;
};

/// `shared->mutex` guards `done` and `failure`; the thread owns the rest while it is queued.
struct QueuedCall final : Event::Source {
  explicit QueuedCall(std::shared_ptr<Shared> with) : shared(std::move(with)) {}
  [[nodiscard]] bool reached(std::uint64_t place) const override;
  void wait(std::uint64_t place) const override;

  const std::shared_ptr<Shared> shared;
  bool done = true;
  std::exception_ptr failure;
  Kind kind = Kind::all_reduce_sum;
  ConstTensorView input;
  TensorView output;
  Rank root = 0;
};

bool QueuedCall::reached(std::uint64_t /*place*/) const {
  const std::lock_guard lock(shared->mutex);
  return done;
}

void QueuedCall::wait(std::uint64_t /*place*/) const {
  std::unique_lock lock(shared->mutex);
  if (!done) {
    constexpr auto kLook = std::chrono::milliseconds(50);
    const WaitingForOthers waiting;
    const auto begin = Clock::now();
    std::uint64_t seen = shared->clock.read().progress;
    while (!shared->changed.wait_for(lock, kLook, [&] { return done; })) {
      // Slow ranks are not a hang of the waiting thread, but a transfer that stands still is.
      if (const std::uint64_t now = shared->clock.read().progress;
          std::exchange(seen, now) != now) {
        note_progress();
      }
    }
    shared->waited_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  if (failure != nullptr) {
    const std::exception_ptr thrown = failure;
    lock.unlock();
    std::rethrow_exception(thrown);
  }
}

template <class T>
void sum(const Communicator& comm, const QueuedCall& operation) {
  const std::span<T> output = operation.output.span<T>();
  if (operation.kind == Kind::all_reduce_sum) {
    all_reduce_sum<T>(comm, output);
    return;
  }
  const std::span<const T> input = operation.input.span<T>();
  // The span collective takes mutable input because its output may be part of it.
  reduce_scatter_sum<T>(comm, {const_cast<T*>(input.data()), input.size()}, output);
}

void execute(const Communicator& comm, const QueuedCall& operation) {
  switch (operation.kind) {
    case Kind::all_reduce_sum:
    case Kind::reduce_scatter_sum:
      if (operation.output.dtype() == DType::bfloat16) {
        sum<BFloat16>(comm, operation);
      } else {
        sum<float>(comm, operation);
      }
      return;
    case Kind::all_gather:
      all_gather<std::uint8_t>(comm, detail::tensor_bytes(operation.input),
                               detail::tensor_bytes(operation.output));
      return;
    default:
      broadcast<std::uint8_t>(comm, detail::tensor_bytes(operation.output), operation.root);
      return;
  }
}

void execute(const Communicator& comm, detail::DeviceStaging& staging,
             const QueuedCall& operation) {
  switch (operation.kind) {
    case Kind::all_reduce_sum:
      staging.all_reduce_sum(comm, operation.output);
      return;
    case Kind::reduce_scatter_sum:
      staging.reduce_scatter_sum(comm, operation.input, operation.output);
      return;
    case Kind::all_gather:
      staging.all_gather(comm, operation.input, operation.output);
      return;
    default:
      staging.broadcast(comm, operation.output, operation.root);
      return;
  }
}

class HostCollectives final : public Collectives {
 public:
  /// With `staging`, for tensors on its device.
  explicit HostCollectives(const Communicator& comm, Device waits_for,
                           std::unique_ptr<detail::DeviceStaging> staging = nullptr)
      : comm_(comm.duplicate()),
        staging_(std::move(staging)),
        shared_(std::make_shared<Shared>()),
        exceptions_before_(std::uncaught_exceptions()) {
    comm_.handle().wait_politely();
    if (comm_.size() == 1) {
      queue_ = make_inline_queue();
      return;
    }
    // Devices are selected per thread: a mere wait would create a context on the default one.
    std::optional<int> device;
    if (waits_for == Device::cuda) {
      device = selected_cuda_device();
    }
    queue_ = make_thread_queue();
    queue_->run([this, device] {
      shared_->clock.follow_this_thread();
      if (device) {
        enter_device(*device);
      }
    });
  }

  ~HostCollectives() override {
    const bool unwinding = std::uncaught_exceptions() > exceptions_before_;
    if (unwinding && !finished_within(comm_.handle().patience_seconds())) {
      // Other ranks may never queue the operation that this one waits for.
      comm_.handle().abandon();
    }
    queue_->synchronize();
    if (!unwinding && failure_ == nullptr) {
      free_communicator();
    }
  }

  HostCollectives(const HostCollectives&) = delete;
  HostCollectives& operator=(const HostCollectives&) = delete;

  [[nodiscard]] Rank rank() const noexcept override { return comm_.rank(); }
  [[nodiscard]] int size() const noexcept override { return comm_.size(); }
  [[nodiscard]] Device device() const noexcept override {
    return staging_ != nullptr ? Device::cuda : Device::cpu;
  }
  [[nodiscard]] Queue& queue() noexcept override { return *queue_; }

  Work all_reduce_sum(TensorView values) override {
    detail::expect_sum(values);
    return append(Kind::all_reduce_sum, values, values, 0);
  }

  Work reduce_scatter_sum(TensorView input, TensorView output) override {
    detail::expect_reduce_scatter(input, output, size());
    return append(Kind::reduce_scatter_sum, input, output, 0);
  }

  Work all_gather(ConstTensorView input, TensorView output) override {
    detail::expect_all_gather(input, output, size());
    return append(Kind::all_gather, input, output, 0);
  }

  Work broadcast(TensorView values, Rank root) override {
    detail::expect_root(root, size());
    return append(Kind::broadcast, values, values, root);
  }

  [[nodiscard]] PayloadBytes bytes() const noexcept override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->bytes;
  }

  [[nodiscard]] double waited_seconds() const noexcept override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->waited_seconds;
  }

 private:
  Work append(Kind kind, const ConstTensorView& input, const TensorView& output, Rank root) {
    detail::expect_place(input, device());
    detail::expect_place(output, device());
    const std::shared_ptr<QueuedCall>& operation = free_call();
    operation->kind = kind;
    operation->input = input;
    operation->output = output;
    operation->root = root;
    {
      const std::lock_guard lock(shared_->mutex);
      operation->done = false;
      operation->failure = nullptr;
      ++shared_->unfinished;
      detail::count_payload(shared_->bytes, kind, std::max(input.bytes(), output.bytes()), size());
    }
    Work work{Event(operation)};
    // Captures two pointers, so std::function does not allocate. The pool owns the operation.
    queue_->run([this, running = operation.get()] { run(*running); });
    return work;
  }

  /// Returns an operation without waiters.
  const std::shared_ptr<QueuedCall>& free_call() {
    const std::lock_guard lock(shared_->mutex);
    for (std::size_t tried = 0; tried < pool_.size(); ++tried) {
      next_ = (next_ + 1) % pool_.size();
      if (pool_[next_]->done && pool_[next_].use_count() == 1) {
        return pool_[next_];
      }
    }
    pool_.push_back(std::make_shared<QueuedCall>(shared_));
    next_ = pool_.size() - 1;
    return pool_.back();
  }

  /// On the communication thread.
  void enter_device(int index) noexcept {
    try {
      select_cuda_device(index);
    } catch (...) {
      failure_ = cut_off();
    }
  }

  /// Marks the current exception cut_off(): other ranks wait for what is no longer sent.
  static std::exception_ptr cut_off() noexcept {
    try {
      throw;
    } catch (Error& error) {
      error.set_cut_off();
      return std::current_exception();
    } catch (const std::exception& error) {
      const FailureText text = describe_failure(error);
      Error known(text.code, text.message);
      known.set_cut_off();
      return std::make_exception_ptr(known);
    } catch (...) {
      return std::current_exception();
    }
  }

  /// On the communication thread.
  void run(QueuedCall& operation) noexcept {
    // After an error the ranks may be out of step, so nothing more is sent.
    if (failure_ == nullptr) {
      try {
        fault_point("comm.operation");
        if (staging_ != nullptr) {
          execute(comm_, *staging_, operation);
        } else {
          execute(comm_, operation);
        }
      } catch (...) {
        failure_ = cut_off();
      }
    }
    const std::lock_guard lock(shared_->mutex);
    operation.failure = failure_;
    operation.done = true;
    --shared_->unfinished;
    shared_->changed.notify_all();
  }

  bool finished_within(double seconds) {
    std::unique_lock lock(shared_->mutex);
    return shared_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                     [&] { return shared_->unfinished == 0; });
  }

  void free_communicator() noexcept {
    try {
      // Communicator::close() would first compare the ranks' calls.
      comm_.handle().close();
    } catch (const CommError&) {
      // Abandoned: a destructor cannot report it.
    }
  }

  Communicator comm_;
  std::unique_ptr<detail::DeviceStaging> staging_;
  std::shared_ptr<Shared> shared_;
  int exceptions_before_;
  std::vector<std::shared_ptr<QueuedCall>> pool_;
  std::size_t next_ = 0;
  std::exception_ptr failure_;  ///< Written by the communication thread.
  std::unique_ptr<HostQueue> queue_;
};

/// A single rank with a device only copies.
class LoneCollectives final : public Collectives {
 public:
  [[nodiscard]] Rank rank() const noexcept override { return 0; }
  [[nodiscard]] int size() const noexcept override { return 1; }
  [[nodiscard]] Device device() const noexcept override { return Device::cuda; }
  [[nodiscard]] Queue& queue() noexcept override { return *queue_; }
  Work all_reduce_sum(TensorView values) override { return place(values, values); }
  Work reduce_scatter_sum(TensorView input, TensorView output) override {
    return place(input, output);
  }
  Work all_gather(ConstTensorView input, TensorView output) override {
    return place(input, output);
  }
  Work broadcast(TensorView values, Rank /*root*/) override { return place(values, values); }
  [[nodiscard]] PayloadBytes bytes() const noexcept override { return {}; }
  [[nodiscard]] double waited_seconds() const noexcept override { return 0; }

 private:
  Work place(const ConstTensorView& input, const TensorView& output) {
    if (input.raw() != output.raw()) {
      queue_->copy(input, output);
    }
    return Work(queue_->record());
  }

  std::unique_ptr<Queue> queue_ = make_cuda_queue();
};

}  // namespace

std::unique_ptr<Collectives> make_host_collectives(const Communicator& comm, Device waits_for) {
  return std::make_unique<HostCollectives>(comm, waits_for);
}

std::unique_ptr<Collectives> make_staged_collectives(const Communicator& comm,
                                                     MemoryAccount& account) {
  if (comm.size() == 1) {
    return std::make_unique<LoneCollectives>();
  }
  return std::make_unique<HostCollectives>(comm, Device::cuda,
                                           std::make_unique<detail::DeviceStaging>(account));
}

}  // namespace jforge
