#pragma once

/// Owners of CUDA's handles and the check around every call. Seen only by CUDA builds.

#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>
#include <string>

namespace jforge {

/// "CUDA: WHAT: REASON: what to do about it" of a failed call.
[[nodiscard]] std::string cuda_failure(cudaError_t status, const char* what);

/// Throws unless `status` is cudaSuccess: EnvironmentError for what the machine lacks or broke
/// (driver, device, memory, ECC), InternalError for the rest; it is cut_off() where the device
/// answers every later call with the same error. `what` names the operation.
void cuda_check(cudaError_t status, const char* what,
                std::source_location where = std::source_location::current());

/// Throws as cuda_check where the device answers every call with an error: what a library reports
/// then is that the device is gone.
void expect_live_device(const char* what,
                        std::source_location where = std::source_location::current());

/// " at FILE:LINE" of a call, as errors of CUDA and of its libraries say it.
[[nodiscard]] std::string at_place(const std::source_location& where);

/// Throws EnvironmentError, with what to do about it, where the calling thread's device is older
/// than the kernels (compute capability 8.0): launches of them would find no code.
void expect_capability();

/// Bytes of shared memory that a block may ask for on the calling thread's device.
[[nodiscard]] std::int64_t most_shared_memory();

/// Throws EnvironmentError, with what to do about it, where a block of the calling thread's device
/// may not ask for `bytes` of shared memory, as `what` does: smaller devices than an A100 let the
/// launch fail as if it were our mistake.
void expect_shared_memory(std::int64_t bytes, const char* what);

/// Whose waiting blocks a device runs first; it does not stop those that run.
enum class StreamPriority : std::uint8_t { normal, high };

/// A non-blocking stream: ordered with nothing but by events. Nothing runs on the default stream.
class CudaStream {
 public:
  explicit CudaStream(StreamPriority priority = StreamPriority::normal);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  /// Waits for all work; failures of earlier kernels surface here.
  void synchronize() const;

 private:
  friend cudaError_t wait_for_streams(cudaStream_t stream) noexcept;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t place_ = nullptr;  ///< wait_for_streams() records it.
};

/// What `stream` is given from now on begins after all that this process has given its CudaStreams
/// so far. None of them may be capturing: a captured step must not depend on memory that is made,
/// freed or copied meanwhile (cudaErrorStreamCaptureUnsupported). Thread: any.
[[nodiscard]] cudaError_t wait_for_streams(cudaStream_t stream) noexcept;

class CudaEvent {
 public:
  CudaEvent();
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void record(const CudaStream& stream);
  /// Waits for what was recorded; returns at once before the first record().
  void wait() const;
  /// Whether wait() would return at once.
  [[nodiscard]] bool reached() const;
  /// What `stream` is given from now on begins after what was recorded.
  void before(const CudaStream& stream) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace jforge
