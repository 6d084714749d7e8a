#pragma once

/// Owners of CUDA's handles and the check around every call. Only in CUDA builds.

#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>
#include <string>

namespace jforge {

/// Returns "CUDA: WHAT: REASON: advice" for a failed call.
[[nodiscard]] std::string cuda_failure(cudaError_t status, const char* what);

/// Throws unless `status` is cudaSuccess: EnvironmentError if the machine is the cause (driver,
/// device, memory, ECC), else InternalError; cut_off() if the device fails every later call. `what`
/// names the operation.
void cuda_check(cudaError_t status, const char* what,
                std::source_location where = std::source_location::current());

/// Throws as cuda_check() if the device is lost, which libraries report as an error of their own.
void expect_live_device(const char* what,
                        std::source_location where = std::source_location::current());

/// " at FILE:LINE", for error messages.
[[nodiscard]] std::string at_place(const std::source_location& where);

/// Throws EnvironmentError, with advice, below the kernels' compute capability 8.0.
void expect_capability();

/// Maximum of a block on the calling thread's device, in bytes.
[[nodiscard]] std::int64_t most_shared_memory();

/// Throws EnvironmentError, with advice, if a block may not use `bytes` of shared memory; otherwise
/// devices smaller than an A100 fail the launch as if it were our bug.
void expect_shared_memory(std::int64_t bytes, const char* what);

/// Priority of waiting blocks; running ones are not stopped.
enum class StreamPriority : std::uint8_t { normal, high };

/// A non-blocking stream, ordered only by events. Nothing runs on the default stream.
class CudaStream {
 public:
  explicit CudaStream(StreamPriority priority = StreamPriority::normal);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  /// Waits for all work; reports failures of earlier kernels.
  void synchronize() const;

 private:
  friend cudaError_t wait_for_streams(cudaStream_t stream) noexcept;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t place_ = nullptr;  ///< For wait_for_streams().
};

/// Later work of `stream` begins after all work given to this process's CudaStreams so far. Fails
/// if one of them is capturing (cudaErrorStreamCaptureUnsupported): a captured step must not depend
/// on memory that is allocated, freed or copied meanwhile. Thread-safe.
[[nodiscard]] cudaError_t wait_for_streams(cudaStream_t stream) noexcept;

class CudaEvent {
 public:
  CudaEvent();
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void record(const CudaStream& stream);
  /// Waits for the recorded work; returns at once before the first record().
  void wait() const;
  /// Whether wait() would return at once.
  [[nodiscard]] bool reached() const;
  /// Later work of `stream` begins after the recorded work.
  void before(const CudaStream& stream) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace jforge
