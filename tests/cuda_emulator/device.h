#pragma once

/// The process's emulated device, shared by the replaced CUDA libraries.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/fault.h"
#include "tests/cuda_emulator/instruction.h"
#include "tests/cuda_emulator/work_order.h"

namespace jforge::emulator {

class Module {
 public:
  /// `wrapper`: of __cudaRegisterFatBinary.
  explicit Module(const void* wrapper) : wrapper_(wrapper) {}
  /// Throws Refusal if the kernel is missing or unsupported.
  [[nodiscard]] const Kernel& kernel(const std::string& name);

 private:
  const void* wrapper_;
  bool read_ = false;
  std::unordered_map<std::string, Kernel> kernels_;
};

class Device {
 public:
  [[nodiscard]] static Device& get();  ///< Order of work: JFORGE_EMULATED_ORDER, by default lazy.

  std::recursive_mutex mutex;
  DeviceMemory memory;
  WorkOrder order;
  bool pools_trimmed = false;                   ///< memory pools have released all that they kept
  std::map<std::uint64_t, std::size_t> pinned;  ///< Page-locked host memory: begin → bytes.

  /// As on a device, every later call returns the failure until reset().
  struct Failure {
    int code = 0;  ///< a cudaError_t; 0: none
    std::string report;
    bool told = false;  ///< to the program
  };
  Failure failure;
  /// Skipped after a failure; a Fault or Refusal becomes the failure.
  void attempt(const std::function<void()>& work);
  /// attempt() for queued work, which gets its accesses.
  void run(const std::function<void()>& work);
  /// `name`: for messages. `ready`: as in Work. A capturing stream records a node and null is
  /// returned.
  std::shared_ptr<Work> enqueue(Stream& stream, const std::string& name, std::function<void()> work,
                                std::function<bool()> ready = {});
  /// Returns 0 if full. `live` memory first waits for queued frees, as cudaMalloc does.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes, DeviceMemory::State state);
  [[nodiscard]] Stream& stream_of(void* handle);  ///< `handle`: a cudaStream_t.
  /// Number of devices (JFORGE_EMULATED_DEVICES, default 1).
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] static int& current();
  [[nodiscard]] static Capture*& capturing();
  /// Throws Refusal if the process has used another device.
  int use();
  /// Drops work, failure and device, and rereads the environment.
  void reset();

 private:
  Device();
  void configure();
  int count_ = 1;
  int used_ = -1;
};

}  // namespace jforge::emulator
