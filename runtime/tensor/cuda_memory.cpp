#include "runtime/tensor/cuda_memory.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/cuda_queue.h"

namespace jforge {

namespace {

/// cudaGetDeviceCount leaves its output untouched on failure (no driver: error 35).
cudaError_t count_devices(int& count) {
  count = 0;
  int found = 0;
  const cudaError_t status = cudaGetDeviceCount(&found);
  if (status == cudaSuccess) {
    count = found;
  } else {
    static_cast<void>(cudaGetLastError());
  }
  return status;
}

constexpr const char* kLook = "look for devices";

std::string gibibytes(std::size_t bytes) {
  const auto tenths = bytes / ((std::size_t{1} << 30) / 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GiB";
}

}  // namespace

bool built_with_cuda() noexcept { return true; }

CudaDevices find_cuda_devices() {
  CudaDevices found;
  const cudaError_t status = count_devices(found.count);
  // The runtime reports a missing driver as one that is too old.
  const bool nothing_there =
      status == cudaErrorNoDevice ||
      (status == cudaErrorInsufficientDriver && access("/dev/nvidiactl", F_OK) != 0);
  if (status != cudaSuccess && !nothing_there) {
    found.problem = cuda_failure(status, kLook);
  }
  return found;
}

int cuda_device_count() { return find_cuda_devices().count; }

void expect_cuda_device() {
  int count = 0;
  const cudaError_t status = count_devices(count);
  if (status != cudaSuccess || count == 0) {
    throw EnvironmentError(cuda_failure(status == cudaSuccess ? cudaErrorNoDevice : status, kLook));
  }
}

std::string cuda_device_uuid() {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, selected_cuda_device()),
             "ask for a device's UUID");
  return {std::begin(properties.uuid.bytes), std::end(properties.uuid.bytes)};
}

std::string cuda_device_place() {
  std::array<char, 32> text{};
  cuda_check(
      cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), selected_cuda_device()),
      "read a device's place");
  return text.data();
}

std::string cuda_device_name(int index) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "read a device's name");
  return properties.name;
}

void select_cuda_device(int index) { cuda_check(cudaSetDevice(index), "select a device"); }

namespace {

/// The selected device's memory pool for buffers, and the stream of its calls. Each call follows
/// all earlier work of the process's streams (wait_for_streams) and ends before it returns, except
/// a free: later memory of this stream may reuse the freed one.
class BufferMemory {
 public:
  /// For the process's one device. Never destroyed, because at exit the driver may be gone first.
  static BufferMemory& get() {
    static BufferMemory& memory = *new BufferMemory;
    return memory;
  }
  /// Bytes that the pool holds unused.
  [[nodiscard]] static std::size_t unused() noexcept {
    const std::uint64_t reserved = bytes(cudaMemPoolAttrReservedMemCurrent);
    return reserved - std::min(reserved, bytes(cudaMemPoolAttrUsedMemCurrent));
  }
  /// Waits until freed memory counts as free.
  static void settle() noexcept {
    if (existing_pool().load() != nullptr) {
      const WaitingForOthers waiting;
      static_cast<void>(cudaStreamSynchronize(get().stream_));
      static_cast<void>(cudaGetLastError());
    }
  }
  static void give_back_unused() noexcept {
    settle();
    if (const cudaMemPool_t pool = existing_pool().load(); pool != nullptr) {
      static_cast<void>(cudaMemPoolTrimTo(pool, 0));
      static_cast<void>(cudaGetLastError());
    }
  }
  [[nodiscard]] static std::uint64_t peak() noexcept { return bytes(cudaMemPoolAttrUsedMemHigh); }
  static void forget_peak() noexcept {
    if (const cudaMemPool_t pool = existing_pool().load(); pool != nullptr) {
      std::uint64_t none = 0;
      static_cast<void>(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none));
      static_cast<void>(cudaGetLastError());
    }
  }

  std::byte* allocate(std::size_t bytes) {
    const Turn turn(mutex_);
    void* data = nullptr;
    cudaError_t status = take(data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      // Memory freed last may still be in use by earlier work, and the pool's pieces may be too
      // small.
      static_cast<void>(cudaGetLastError());
      cuda_check(cudaStreamSynchronize(stream_), "wait for freed device memory");
      cuda_check(cudaMemPoolTrimTo(pool_, 0), "give freed device memory back");
      status = take(data, bytes);
    }
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    cuda_check(status, "allocate device memory");
    cudaError_t zeroed = cudaMemsetAsync(data, 0, bytes, stream_);
    if (zeroed == cudaSuccess) {
      zeroed = cudaStreamSynchronize(stream_);
    }
    if (zeroed != cudaSuccess) {
      static_cast<void>(cudaFreeAsync(data, stream_));
      cuda_check(zeroed, "zero device memory");
    }
    return static_cast<std::byte*>(data);
  }

  void free(std::byte* data) noexcept {
    const Turn turn(mutex_);
    // Rather leaks memory that may still be in use than reuses it.
    if (wait_for_streams(stream_) == cudaSuccess) {
      static_cast<void>(cudaFreeAsync(data, stream_));
    }
    // At exit the driver may be gone before a buffer; later calls must not see the error.
    static_cast<void>(cudaGetLastError());
  }

  /// Runs `call` on the stream and waits for its end.
  template <class Call>
  void in_order(const char* what, const Call& call) {
    const Turn turn(mutex_);
    cuda_check(wait_for_streams(stream_), what);
    cuda_check(call(stream_), what);
    cuda_check(cudaStreamSynchronize(stream_), what);
  }

 private:
  /// A thread's use of the stream. Counts as waiting for others, because the stream may wait for
  /// NCCL and thus for other ranks.
  struct Turn {
    explicit Turn(std::mutex& mutex) : lock(mutex) {}
    WaitingForOthers waiting;
    std::lock_guard<std::mutex> lock;
  };

  /// Freed memory kept for growing scratch. More is returned at the next wait: to NCCL, another
  /// rank of the device, the next phase.
  static constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;

  BufferMemory() {
    int device = 0;
    cuda_check(cudaGetDevice(&device), "ask for the selected device");
    int has_pools = 0;
    cuda_check(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device),
               "ask for memory pools");
    if (has_pools == 0) {
      throw EnvironmentError(
          "CUDA: this device or its driver has no memory pools: use model.device = \"cpu\"");
    }
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
    cuda_check(cudaMemPoolCreate(&pool_, &properties), "create a memory pool");
    std::uint64_t kept = kKeptBytes;
    cuda_check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &kept),
               "set up a memory pool");
    existing_pool() = pool_;
  }

  [[nodiscard]] cudaError_t take(void*& data, std::size_t bytes) noexcept {
    return cudaMallocFromPoolAsync(&data, bytes == 0 ? 1 : bytes, pool_, stream_);
  }

  /// 0 without a pool.
  [[nodiscard]] static std::uint64_t bytes(cudaMemPoolAttr attribute) noexcept {
    const cudaMemPool_t pool = existing_pool().load();
    std::uint64_t value = 0;
    if (pool == nullptr || cudaMemPoolGetAttribute(pool, attribute, &value) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return 0;
    }
    return value;
  }
  /// For messages, also before there is a pool.
  static std::atomic<cudaMemPool_t>& existing_pool() noexcept {
    static std::atomic<cudaMemPool_t> pool = nullptr;
    return pool;
  }

  std::mutex mutex_;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace

std::byte* cuda_memory::allocate(std::size_t bytes) { return BufferMemory::get().allocate(bytes); }

void cuda_memory::free(std::byte* data) noexcept { BufferMemory::get().free(data); }

std::byte* cuda_memory::allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, bytes == 0 ? 1 : bytes);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  cuda_check(status, "allocate page-locked host memory");
  return static_cast<std::byte*>(data);
}

void cuda_memory::free_pinned(std::byte* data) noexcept {
  // Waits for the whole device, which may wait for NCCL and thus for other ranks.
  const WaitingForOthers waiting;
  static_cast<void>(cudaFreeHost(data));
  static_cast<void>(cudaGetLastError());
}

void cuda_memory::zero(void* data, std::size_t bytes) {
  BufferMemory::get().in_order("zero device memory", [&](cudaStream_t stream) {
    return cudaMemsetAsync(data, 0, bytes, stream);
  });
}

void cuda_memory::copy(void* to, Device to_device, const void* from, Device from_device,
                       std::size_t bytes) {
  const bool to_cuda = to_device == Device::cuda;
  const bool from_cuda = from_device == Device::cuda;
  const cudaMemcpyKind kind = to_cuda
                                  ? (from_cuda ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                  : (from_cuda ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  BufferMemory::get().in_order("copy a tensor", [&](cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
  });
}

namespace {

/// Bytes of the selected device: free, including unused pool memory, and total.
bool memory_of_device(std::size_t& available, std::size_t& total) {
  BufferMemory::settle();
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  available += BufferMemory::unused();
  return true;
}

}  // namespace

std::optional<std::uint64_t> cuda_memory::available() {
  std::size_t available = 0;
  std::size_t total = 0;
  return memory_of_device(available, total) ? std::optional<std::uint64_t>(available)
                                            : std::nullopt;
}

void cuda_memory::give_back_unused() noexcept { BufferMemory::give_back_unused(); }

std::string cuda_memory::free_memory_note() {
  std::size_t available = 0;
  std::size_t total = 0;
  if (!memory_of_device(available, total)) {
    return {};
  }
  return " (" + gibibytes(available) + " of " + gibibytes(total) + " free on the device)";
}

std::uint64_t cuda_memory::peak() noexcept { return BufferMemory::peak(); }

void cuda_memory::forget_peak() noexcept { BufferMemory::forget_peak(); }

}  // namespace jforge
