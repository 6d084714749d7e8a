#include "runtime/tensor/cuda_handles.h"

#include <fmt/format.h>

#include <mutex>
#include <vector>

#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"

namespace jforge {

namespace {

/// Whether the machine, not the program, is the cause.
bool machine_failed(cudaError_t status) {
  switch (static_cast<int>(status)) {
    case 226:  // cudaErrorContained
    case cudaErrorMpsClientTerminated:
    case cudaErrorMemoryAllocation:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorStubLibrary:
    case cudaErrorOperatingSystem:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

/// Whether the process has lost the device: CUDA's header says "must be terminated and relaunched".
/// Numbers are codes that not every version has.
bool device_lost(cudaError_t status) {
  switch (static_cast<int>(status)) {
    case 226:  // cudaErrorContained: peer memory over NVLink, some hardware errors
    case 721:  // cudaErrorTensorMemoryLeak
    case 911:  // cudaErrorExternalDevice
    case cudaErrorMpsClientTerminated:
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

std::string advice(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "lower train.tokens_per_rank or generate.batch_prompts, or use fewer ranks per "
             "device" +
             cuda_memory::free_memory_note();
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorStubLibrary:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorUnsupportedPtxVersion:
      return fmt::format(
          "install an NVIDIA driver for CUDA {0}.{1} or newer, on a data centre GPU or NVIDIA's "
          "package "
          "cuda-compat-{0}-{1}, or use model.device = \"cpu\"",
          CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use model.device = \"cpu\"";
    case cudaErrorNoKernelImageForDevice:
      return "rebuild with -DCMAKE_CUDA_ARCHITECTURES naming this device's";
    default:
      return "check the device with nvidia-smi";
  }
}

std::string message(cudaError_t status, const char* what) {
  return std::string("CUDA: ") + what + ": " + cudaGetErrorString(status);
}

template <class SomeError>
[[noreturn]] void throw_lost_or_not(SomeError& error, cudaError_t status) {
  if (device_lost(status)) {
    error.set_cut_off();
  }
  throw error;
}

}  // namespace

std::string at_place(const std::source_location& where) {
  return std::string(" at ") + where.file_name() + ":" + std::to_string(where.line());
}

std::string cuda_failure(cudaError_t status, const char* what) {
  return message(status, what) + ": " + advice(status);
}

void cuda_check(cudaError_t status, const char* what, std::source_location where) {
  if (status == cudaSuccess) [[likely]] {
    return;
  }
  // Clears the thread's last error, which would be blamed on the next kernel.
  static_cast<void>(cudaGetLastError());
  if (machine_failed(status)) {
    EnvironmentError error(cuda_failure(status, what) + " (" + cudaGetErrorName(status) +
                           at_place(where) + ")");
    throw_lost_or_not(error, status);
  }
  InternalError error(message(status, what) + " (" + cudaGetErrorName(status) + ")" +
                      at_place(where));
  throw_lost_or_not(error, status);
}

void expect_live_device(const char* what, std::source_location where) {
  if (const cudaError_t status = cudaStreamQuery(nullptr); device_lost(status)) {
    cuda_check(status, what, where);
  }
}

namespace {

int this_device() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "ask for the device");
  return device;
}

int attribute_of(int device, cudaDeviceAttr attribute, const char* what) {
  int value = 0;
  cuda_check(cudaDeviceGetAttribute(&value, attribute, device), what);
  return value;
}

}  // namespace

void expect_capability() {
  constexpr int kNeeded = 8;
  constexpr const char* kAsk = "ask for the compute capability";
  const int device = this_device();
  const int major = attribute_of(device, cudaDevAttrComputeCapabilityMajor, kAsk);
  if (major < kNeeded) {
    const int minor = attribute_of(device, cudaDevAttrComputeCapabilityMinor, kAsk);
    throw EnvironmentError("CUDA: " + cuda_device_name(device) + " has compute capability " +
                           std::to_string(major) + "." + std::to_string(minor) +
                           ", and the kernels need 8.0, an A100's, or a later one: take another "
                           "device (CUDA_VISIBLE_DEVICES) or model.device = \"cpu\"");
  }
}

std::int64_t most_shared_memory() {
  return attribute_of(this_device(), cudaDevAttrMaxSharedMemoryPerBlockOptin,
                      "ask for a block's shared memory");
}

void expect_shared_memory(std::int64_t bytes, const char* what) {
  const std::int64_t most = most_shared_memory();
  if (bytes > most) {
    constexpr std::int64_t kKibibyte = 1024;
    throw EnvironmentError(std::string("CUDA: ") + what + ": the kernel needs " +
                           std::to_string((bytes + kKibibyte - 1) / kKibibyte) +
                           " KiB of shared memory for a block, and " +
                           cuda_device_name(this_device()) + " has " +
                           std::to_string(most / kKibibyte) +
                           "; kernels of bfloat16 need less (model.compute, model.decode_weights = "
                           "\"bfloat16_arithmetic\"), or take an A100 or a newer one of its kind");
  }
}

namespace {

struct Streams {
  std::mutex mutex;
  std::vector<const CudaStream*> all;
};
/// Never destroyed, because destructors may free buffers at exit.
Streams& streams() {
  static auto& all = *new Streams;
  return all;
}

}  // namespace

CudaStream::CudaStream(StreamPriority priority) {
  int least = 0;
  int greatest = 0;
  cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "read streams' priorities");
  cuda_check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                          priority == StreamPriority::high ? greatest : least),
             "create a stream");
  const cudaError_t status = cudaEventCreateWithFlags(&place_, cudaEventDisableTiming);
  if (status != cudaSuccess) {
    static_cast<void>(cudaStreamDestroy(stream_));
    cuda_check(status, "create a stream's event");
  }
  const std::lock_guard lock(streams().mutex);
  streams().all.push_back(this);
}

/// Waits, because pending work would still run and may use memory that is freed next.
CudaStream::~CudaStream() {
  static_cast<void>(cudaStreamSynchronize(stream_));
  {
    const std::lock_guard lock(streams().mutex);
    std::erase(streams().all, this);
  }
  static_cast<void>(cudaEventDestroy(place_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

cudaError_t wait_for_streams(cudaStream_t stream) noexcept {
  const std::lock_guard lock(streams().mutex);
  for (const CudaStream* other : streams().all) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t status = cudaStreamIsCapturing(other->stream_, &capture);
    if (status == cudaSuccess && capture != cudaStreamCaptureStatusNone) {
      status = cudaErrorStreamCaptureUnsupported;
    }
    if (status == cudaSuccess) {
      status = cudaEventRecord(other->place_, other->stream_);
    }
    if (status == cudaSuccess) {
      status = cudaStreamWaitEvent(stream, other->place_, 0);
    }
    if (status != cudaSuccess) {
      return status;
    }
  }
  return cudaSuccess;
}

void CudaStream::synchronize() const {
  cuda_check(cudaStreamSynchronize(stream_), "wait for the device");
}

CudaEvent::CudaEvent() {
  cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "create an event");
}

CudaEvent::~CudaEvent() { static_cast<void>(cudaEventDestroy(event_)); }

void CudaEvent::record(const CudaStream& stream) {
  cuda_check(cudaEventRecord(event_, stream.get()), "record an event");
}

void CudaEvent::wait() const { cuda_check(cudaEventSynchronize(event_), "wait for an event"); }

bool CudaEvent::reached() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  cuda_check(status, "look at an event");
  return true;
}

void CudaEvent::before(const CudaStream& stream) const {
  cuda_check(cudaStreamWaitEvent(stream.get(), event_, 0), "let a stream wait for an event");
}

}  // namespace jforge
