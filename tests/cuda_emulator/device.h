#pragma once

/// A process' emulated device, shared by the replaced CUDA libraries.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/fault.h"
#include "tests/cuda_emulator/instruction.h"
#include "tests/cuda_emulator/work_order.h"

namespace jforge::emulator {

/// A fat binary of the program; its PTX is parsed at the first launch.
class Module {
 public:
  /// `wrapper`: the argument of __cudaRegisterFatBinary.
  explicit Module(const void* wrapper) : wrapper_(wrapper) {}
  /// Throws Refusal if the kernel is missing or unsupported.
  [[nodiscard]] const Kernel& kernel(const std::string& name);

 private:
  const void* wrapper_;
  bool read_ = false;
  std::unordered_map<std::string, Kernel> kernels_;
  std::unordered_set<std::string> launched_;
};

class Device {
 public:
  /// Order of work: JFORGE_EMULATED_ORDER, by default lazy.
  [[nodiscard]] static Device& get();

  std::recursive_mutex mutex;
  DeviceMemory memory;
  WorkOrder order;
  bool pools_trimmed = false;  ///< memory pools have released all that they kept
  /// Page-locked host memory: begin → bytes.
  std::map<std::uint64_t, std::size_t> pinned;

  /// As on a device, every later call returns the failure until reset().
  struct Failure {
    int code = 0;  ///< a cudaError_t; 0: none
    std::string report;
    bool told = false;  ///< to the program
  };
  Failure failure;
  /// Runs `work` unless the device has failed; prints and keeps a Fault or Refusal as the failure.
  void attempt(const std::function<void()>& work);
  /// attempt() for queued work, to which its accesses are attributed.
  void run(const std::function<void()>& work);
  /// `name`: for messages. `ready`: as in Work; not called after a failure. A capturing stream
  /// records a node and null is returned.
  std::shared_ptr<Work> enqueue(Stream& stream, const std::string& name, std::function<void()> work,
                                std::function<bool()> ready = {});
  /// Returns 0 if memory is full. `live` memory first waits for queued frees, as cudaMalloc does.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes, DeviceMemory::State state);
  /// `handle`: a cudaStream_t.
  [[nodiscard]] Stream& stream_of(void* handle);
  /// Number of devices (JFORGE_EMULATED_DEVICES, default 1).
  [[nodiscard]] int count() const { return count_; }
  /// The calling thread's device index.
  [[nodiscard]] static int& current();
  [[nodiscard]] static Capture*& capturing();
  /// Selects the calling thread's device. Throws Refusal if the process has used another.
  int use();
  /// Drops unfinished work, the failure and the choice of device, and rereads the environment.
  void reset();

 private:
  Device();
  void configure();
  int count_ = 1;
  int used_ = -1;
};

}  // namespace jforge::emulator
