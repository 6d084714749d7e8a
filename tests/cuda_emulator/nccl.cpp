/// The calls of libnccl that the program uses, over shared memory. A collective is two works: it
/// gives its input, and takes the others'. A thread does the first if another rank waits, as a
/// device would unasked.

#include <nccl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "tests/cuda_emulator/arithmetic.h"
#include "tests/cuda_emulator/device.h"
#include "tests/cuda_emulator/rendezvous.h"

using jforge::emulator::CollectiveCall;
using jforge::emulator::Device;
using jforge::emulator::DeviceMemory;
using jforge::emulator::Fault;
using jforge::emulator::FaultKind;
using jforge::emulator::Refusal;
using jforge::emulator::Rendezvous;
using jforge::emulator::Stream;
using jforge::emulator::Work;

namespace {

constexpr auto kTick = std::chrono::microseconds(300);

enum class Kind : std::uint32_t { all_reduce, reduce_scatter, all_gather, broadcast };
const char* name_of(Kind kind) {
  constexpr std::array kNames{"AllReduce", "ReduceScatter", "AllGather", "Broadcast"};
  return kNames.at(static_cast<std::size_t>(kind));
}

struct ElementKind {
  const char* name;
  std::size_t bytes;
};
/// Throws Refusal for unused types.
ElementKind element_kind(std::uint32_t type) {
  static const std::map<std::uint32_t, ElementKind> kKinds{
      {ncclInt8, {"int8", 1}},       {ncclUint8, {"uint8", 1}},      {ncclInt32, {"int32", 4}},
      {ncclInt64, {"int64", 8}},     {ncclUint64, {"uint64", 8}},    {ncclFloat32, {"float32", 4}},
      {ncclFloat64, {"float64", 8}}, {ncclBfloat16, {"bfloat16", 2}}};
  if (!kKinds.contains(type)) {
    throw Refusal("NCCL element type " + std::to_string(type));
  }
  return kKinds.at(type);
}

std::string described(const CollectiveCall& call) {
  std::string text = name_of(static_cast<Kind>(call.kind));
  text += " of " + std::to_string(call.count) + " " + element_kind(call.type).name;
  if (static_cast<Kind>(call.kind) == Kind::broadcast) {
    text += " from rank " + std::to_string(call.root);
  }
  return text;
}

/// out[i] = Σ in[rank][i] in rank order, rounded once.
template <class T, class Sum = T>
void add_up(const std::vector<std::vector<std::byte>>& in, std::span<std::byte> out) {
  for (std::size_t at = 0; at < out.size(); at += sizeof(T)) {
    Sum sum{};
    for (std::size_t rank = 0; rank < in.size(); ++rank) {
      T value;
      std::memcpy(&value, &in[rank][at], sizeof value);
      if constexpr (std::is_same_v<T, Sum>) {
        sum = rank == 0 ? value : static_cast<T>(sum + value);
      } else {
        const Sum wide = jforge::emulator::from_bfloat16(value);
        sum = rank == 0 ? wide : sum + wide;
      }
    }
    if constexpr (std::is_same_v<T, Sum>) {
      std::memcpy(&out[at], &sum, sizeof sum);
    } else {
      const T rounded = jforge::emulator::to_bfloat16_bits(sum);
      std::memcpy(&out[at], &rounded, sizeof rounded);
    }
  }
}

void add_up(std::uint32_t type, const std::vector<std::vector<std::byte>>& in,
            std::span<std::byte> out) {
  switch (type) {
    case ncclFloat32:
      return add_up<float>(in, out);
    case ncclFloat64:
      return add_up<double>(in, out);
    case ncclBfloat16:
      return add_up<std::uint16_t, float>(in, out);
    case ncclInt32:
    case ncclUint32:
      return add_up<std::uint32_t>(in, out);
    case ncclInt64:
    case ncclUint64:
      return add_up<std::uint64_t>(in, out);
    default:
      throw Refusal(std::string("NCCL sums of ") + element_kind(type).name);
  }
}

/// JFORGE_EMULATED_NCCL_FAILURE, "RANK:CALL" or "RANK:+CALL": the communicator fails in this call,
/// from 1, or from the call that first sees the variable; 0: it cannot be made. "RANK:?CALL": from
/// then on it cannot be asked.
struct ToldFailure {
  explicit ToldFailure(unsigned rank) {
    const char* const told = std::getenv("JFORGE_EMULATED_NCCL_FAILURE");
    unsigned at_rank = 0;
    char sign = 0;
    if (told == nullptr) {
      return;
    }
    const bool is_signed = std::sscanf(told, "%u:%c%llu", &at_rank, &sign, &call) == 3;
    relative = is_signed && sign == '+';
    silent = is_signed && sign == '?';
    asked = (relative || silent || std::sscanf(told, "%u:%llu", &at_rank, &call) == 2) &&
            at_rank == rank;
  }
  bool asked = false;
  bool relative = false;
  bool silent = false;
  unsigned long long call = 0;
};

/// JFORGE_EMULATED_NCCL_HOST=1: no rank learns of another's end, and ncclCommAbort does not return,
/// as it may not if a kernel does not end.
bool like_one_host() { return std::getenv("JFORGE_EMULATED_NCCL_HOST") != nullptr; }

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(const std::string& name, unsigned ranks, unsigned own, int device)
      : meeting_(name, ranks, own, device) {}

  [[nodiscard]] ncclResult_t result() const { return result_; }
  [[nodiscard]] bool silent() const { return silent_; }
  [[nodiscard]] const char* message() {
    const std::lock_guard lock(message_mutex_);
    told_ = message_;
    return told_.c_str();
  }
  [[nodiscard]] const Rendezvous& meeting() const { return meeting_; }

  void tick(Device& device) {
    if (aborted_) {
      return;
    }
    try {
      if (!complete_) {
        complete_ = meeting_.complete();
        if (complete_ && result_ == ncclInProgress) {
          result_ = ncclSuccess;
        }
        return;
      }
    } catch (const Refusal& refusal) {
      fail(ncclInvalidUsage, refusal.what());
      aborted_ = true;
      return;
    }
    const std::uint64_t next = taken_;
    if (next < called_ && result_ == ncclSuccess && !like_one_host()) {
      if (const std::string who = meeting_.missing(next); !who.empty()) {
        fail(ncclRemoteError, "NCCL: " + who);
      }
    }
    const bool wanted = given_ < called_ && meeting_.wanted() > given_;
    if (!wanted && !finalizing_) {
      return;
    }
    const std::lock_guard lock(device.mutex);
    device.order.advance(last_);
    if (finalizing_ && (!last_ || last_->done)) {
      finalizing_ = false;
      meeting_.leave(Rendezvous::State::ended);
      ended_ = true;
      result_ = ncclSuccess;
    }
  }

  ncclResult_t call(const CollectiveCall& call, const void* from, void* to, cudaStream_t stream) {
    if (result_ != ncclSuccess || aborted_ || ended_) {
      return result_ == ncclSuccess || result_ == ncclInProgress ? ncclInvalidUsage
                                                                 : result_.load();
    }
    Device& device = Device::get();
    const std::lock_guard lock(device.mutex);
    const std::uint64_t number = called_++;
    if (const ToldFailure told(meeting_.own()); !told.asked) {
      untold_ = number + 1;
    } else if (told.call == number + 1 - (told.relative ? untold_ : 0)) {
      if (told.silent) {
        silent_ = true;
      } else {
        fail(ncclSystemError, "NCCL: call " + std::to_string(number + 1) + " of rank " +
                                  std::to_string(meeting_.own()) + " fails as it was told to");
      }
    }
    device.attempt([&] {
      device.use();
      if (static_cast<Kind>(call.kind) < Kind::all_gather && call.operation != ncclSum) {
        throw Refusal("NCCL reduction " + std::to_string(call.operation));
      }
      Stream& own = device.stream_of(stream);
      if (last_) {
        own.waits_for.push_back(last_);
      }
      const auto self = shared_from_this();
      const std::string name = std::string("NCCL ") + name_of(static_cast<Kind>(call.kind));
      const auto source = reinterpret_cast<std::uint64_t>(from);
      const auto target = reinterpret_cast<std::uint64_t>(to);
      device.enqueue(own, name, [self, &device, call, number, source, target] {
        self->give(device.memory, call, number, source, target);
      });
      last_ = device.enqueue(
          own, name,
          [self, &device, call, number, target] {
            self->take(device.memory, call, number, target);
          },
          [self, number] { return self->aborted_ || self->meeting_.given_by_all(number); });
    });
    return device.failure.code == 0 ? ncclSuccess : ncclUnhandledCudaError;
  }

  void finalize() {
    ncclResult_t sound = ncclSuccess;  // In this order, so that tick() sets the final result.
    result_.compare_exchange_strong(sound, ncclInProgress);
    finalizing_ = true;
  }
  void abort() {
    aborted_ = true;
    meeting_.leave(Rendezvous::State::aborted);
  }
  /// Waits for this rank's part; does not throw.
  void wait_for_calls() {
    Device& device = Device::get();
    const std::lock_guard lock(device.mutex);
    device.attempt([&] { device.order.wait(last_); });
  }
  [[nodiscard]] bool ended() const { return ended_; }
  void fail(ncclResult_t result, const std::string& message) {
    {
      const std::lock_guard lock(message_mutex_);
      message_ = message;
    }
    result_ = result;
    std::fprintf(stderr, "emulated device: %s\n", message.c_str());
  }

 private:
  [[nodiscard]] std::size_t input_bytes(const CollectiveCall& call) const {
    const auto kind = static_cast<Kind>(call.kind);
    if (kind == Kind::broadcast && call.root != meeting_.own()) {
      return 0;
    }
    return call.count * element_kind(call.type).bytes *
           (kind == Kind::reduce_scatter ? meeting_.ranks() : 1);
  }
  [[nodiscard]] std::size_t output_bytes(const CollectiveCall& call) const {
    return call.count * element_kind(call.type).bytes *
           (static_cast<Kind>(call.kind) == Kind::all_gather ? meeting_.ranks() : 1);
  }

  void give(DeviceMemory& memory, const CollectiveCall& call, std::uint64_t number,
            std::uint64_t from, std::uint64_t to) {
    const std::size_t bytes = input_bytes(call);
    const std::byte* const input =
        bytes == 0 ? nullptr
                   : memory.use(DeviceMemory::Use::read, from, bytes, "NCCL reads its input,");
    if (!aborted_) {
      meeting_.give(number, call, {input, bytes});
    }
    given_ = number + 1;
    // undefined until all have arrived
    if (const std::size_t out = output_bytes(call); out != 0) {
      std::memset(memory.use(DeviceMemory::Use::write, to, out, "NCCL writes its result,"), 0xff,
                  out);
    }
  }

  void take(DeviceMemory& memory, const CollectiveCall& call, std::uint64_t number,
            std::uint64_t to) {
    taken_ = number + 1;
    if (aborted_) {
      return;
    }
    for (unsigned rank = 0; rank < meeting_.ranks(); ++rank) {
      if (const CollectiveCall other = meeting_.call_of(rank, number); other != call) {
        const std::string message = "call " + std::to_string(number) + " of the communicator is " +
                                    described(call) + " on rank " + std::to_string(meeting_.own()) +
                                    ", " + described(other) + " on rank " + std::to_string(rank);
        {
          const std::lock_guard lock(message_mutex_);
          message_ = message;
        }
        result_ = ncclInvalidUsage;
        throw Fault(FaultKind::collective_mismatch, message);
      }
    }
    const std::size_t bytes = output_bytes(call);
    if (bytes == 0) {
      return;
    }
    const std::span<std::byte> out(
        memory.use(DeviceMemory::Use::write, to, bytes, "NCCL writes its result,"), bytes);
    const unsigned ranks = meeting_.ranks();
    switch (static_cast<Kind>(call.kind)) {
      case Kind::all_gather:
        for (unsigned rank = 0; rank < ranks; ++rank) {
          meeting_.take(rank, number, out.subspan(rank * (bytes / ranks), bytes / ranks));
        }
        break;
      case Kind::broadcast:
        meeting_.take(call.root, number, out);
        break;
      default: {
        // Reduce-scatter uses only a part of each input.
        const bool scattered = static_cast<Kind>(call.kind) == Kind::reduce_scatter;
        const std::size_t all = bytes * (scattered ? ranks : 1);
        std::vector<std::vector<std::byte>> inputs(ranks);
        for (unsigned rank = 0; rank < ranks; ++rank) {
          inputs[rank].resize(all);
          meeting_.take(rank, number, inputs[rank]);
          if (scattered) {
            const auto begin =
                inputs[rank].begin() + static_cast<std::ptrdiff_t>(meeting_.own() * bytes);
            inputs[rank] = std::vector(begin, begin + static_cast<std::ptrdiff_t>(bytes));
          }
        }
        add_up(call.type, inputs, out);
      }
    }
  }

  Rendezvous meeting_;
  std::atomic<ncclResult_t> result_{ncclInProgress};
  std::atomic<bool> silent_ = false;
  std::atomic<bool> complete_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> finalizing_{false};
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> called_{0};
  std::uint64_t untold_ = 0;  ///< calls before the failing one is chosen
  std::atomic<std::uint64_t> given_{0};
  std::atomic<std::uint64_t> taken_{0};
  std::shared_ptr<Work> last_;  ///< guarded by the device's mutex
  std::mutex message_mutex_;
  std::string message_;
  std::string told_;
};

class Communicators {
 public:
  static Communicators& get() {
    static auto& all = *new Communicators;
    return all;
  }
  std::shared_ptr<Communicator> make(const std::string& name, unsigned ranks, unsigned own) {
    Device& device = Device::get();
    int index = 0;
    {
      const std::lock_guard lock(device.mutex);
      index = device.use();
    }
    auto made = std::make_shared<Communicator>(name, ranks, own, index);
    const std::lock_guard lock(mutex_);
    all_.push_back(made);
    if (!looked_after_) {
      looked_after_ = true;
      std::thread([this] { look_after(); }).detach();
    }
    return made;
  }
  /// Null if it is not, or no longer, a communicator.
  std::shared_ptr<Communicator> find(ncclComm_t handle) {
    const std::lock_guard lock(mutex_);
    for (const auto& one : all_) {
      if (reinterpret_cast<ncclComm_t>(one.get()) == handle) {
        return one;
      }
    }
    return nullptr;
  }
  void forget(const std::shared_ptr<Communicator>& gone) {
    const std::lock_guard lock(mutex_);
    std::erase(all_, gone);
  }

 private:
  [[noreturn]] void look_after() {
    for (;;) {
      std::vector<std::shared_ptr<Communicator>> all;
      {
        const std::lock_guard lock(mutex_);
        all = all_;
      }
      for (const auto& one : all) {
        one->tick(Device::get());
      }
      std::this_thread::sleep_for(kTick);
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Communicator>> all_;
  bool looked_after_ = false;
};

thread_local std::string last_error;

ncclResult_t with(ncclComm_t handle, const std::function<ncclResult_t(Communicator&)>& work) {
  const auto one = Communicators::get().find(handle);
  if (!one) {
    last_error = "NCCL: no communicator, or one that was destroyed or aborted";
    return ncclInvalidArgument;
  }
  return work(*one);
}

ncclResult_t collective(Kind kind, const void* from, void* to, std::size_t count,
                        ncclDataType_t type, int operation, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return with(comm, [&](Communicator& own) {
    if (root < 0 || static_cast<unsigned>(root) >= own.meeting().ranks()) {
      last_error = "NCCL: root " + std::to_string(root);
      return ncclInvalidArgument;
    }
    try {
      static_cast<void>(element_kind(static_cast<std::uint32_t>(type)));
    } catch (const Refusal& refusal) {
      last_error = refusal.what();
      return ncclInvalidArgument;
    }
    return own.call(
        {static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(type),
         static_cast<std::uint32_t>(operation), static_cast<std::uint32_t>(root), count},
        from, to, stream);
  });
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const char* const other = std::getenv("JFORGE_EMULATED_NCCL_VERSION");
  *version = other == nullptr ? NCCL_VERSION_CODE : std::atoi(other);
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  static const std::map<ncclResult_t, const char*> kTexts{
      {ncclSuccess, "no error"},
      {ncclInvalidArgument, "invalid argument"},
      {ncclInvalidUsage, "invalid usage"},
      {ncclSystemError, "unhandled system error"},
      {ncclInternalError, "internal error"},
      {ncclRemoteError, "remote process exited or there was a network error"},
      {ncclInProgress, "NCCL operation in progress"},
      {ncclUnhandledCudaError, "unhandled cuda error"}};
  const auto found = kTexts.find(result);
  return found == kTexts.end() ? "an error that the emulated NCCL never returns" : found->second;
}
const char* ncclGetLastError(ncclComm_t comm) {
  const auto one = Communicators::get().find(comm);
  const char* const own = one ? one->message() : "";
  return *own != '\0' ? own : last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  std::strcpy(id->internal, Rendezvous::new_name().c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  constexpr unsigned kMagic = 0xcafebeef;
  if (ranks < 1 || static_cast<unsigned>(ranks) > Rendezvous::kMostRanks || rank < 0 ||
      rank >= ranks || (config != nullptr && config->magic != kMagic)) {
    last_error = "NCCL: rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                 ", or a configuration without NCCL_CONFIG_INITIALIZER";
    return ncclInvalidArgument;
  }
  if (const ToldFailure told(static_cast<unsigned>(rank));
      told.asked && !told.relative && told.call == 0) {
    *comm = nullptr;
    last_error = "NCCL: rank " + std::to_string(rank) + " makes no communicator, as it was told";
    return ncclSystemError;
  }
  try {
    const auto made = Communicators::get().make(id.internal, static_cast<unsigned>(ranks),
                                                static_cast<unsigned>(rank));
    *comm = reinterpret_cast<ncclComm_t>(made.get());
    if (config != nullptr && config->blocking == 0) {
      return ncclInProgress;
    }
    while (made->result() == ncclInProgress) {
      std::this_thread::sleep_for(kTick);
    }
    return made->result();
  } catch (const Refusal& refusal) {
    last_error = refusal.what();
    return ncclInvalidUsage;
  }
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  return with(comm, [&](Communicator& own) {
    if (own.silent()) {
      return ncclInternalError;
    }
    *result = own.result();
    return ncclSuccess;
  });
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return with(comm, [&](Communicator& own) {
    *count = static_cast<int>(own.meeting().ranks());
    return ncclSuccess;
  });
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return with(comm, [&](Communicator& own) {
    *rank = static_cast<int>(own.meeting().own());
    return ncclSuccess;
  });
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return with(comm, [](Communicator& own) {
    own.finalize();
    return own.result();
  });
}
/// Completes its calls first, with or without ncclCommFinalize.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return with(comm, [](Communicator& own) {
    const auto self = own.shared_from_this();
    if (!own.ended()) {
      own.wait_for_calls();
      own.finalize();
      while (!own.ended() && own.result() == ncclInProgress) {
        std::this_thread::sleep_for(kTick);
      }
    }
    Communicators::get().forget(self);
    return ncclSuccess;
  });
}
/// A thread that waits for these calls may hold the device's lock.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return with(comm, [](Communicator& own) {
    const auto self = own.shared_from_this();
    own.abort();
    Communicators::get().forget(self);
    if (like_one_host()) {
      std::this_thread::sleep_for(std::chrono::hours(24));
    }
    return ncclSuccess;
  });
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return collective(Kind::all_reduce, from, to, count, type, operation, 0, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return collective(Kind::reduce_scatter, from, to, count, type, operation, 0, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(Kind::all_gather, from, to, count, type, 0, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(Kind::broadcast, from, to, count, type, 0, root, comm, stream);
}

}  // extern "C"
