#pragma once

/// The one emulated device of a process: what the replaced CUDA libraries share.

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

/// A fat binary of the program: its kernels are read from the PTX when one is first launched.
class Module {
 public:
  /// `wrapper`: what nvcc's code hands to __cudaRegisterFatBinary.
  explicit Module(const void* wrapper) : wrapper_(wrapper) {}
  /// Throws Refusal when it is not there, or its PTX not known.
  [[nodiscard]] const Kernel& kernel(const std::string& name);

 private:
  const void* wrapper_;
  bool read_ = false;
  std::unordered_map<std::string, Kernel> kernels_;
  std::unordered_set<std::string> launched_;
};

/// A process has one device of those that the emulated machine has.
class Device {
 public:
  /// The order of work is JFORGE_EMULATED_ORDER's, or lazy.
  [[nodiscard]] static Device& get();

  std::recursive_mutex mutex;
  DeviceMemory memory;
  WorkOrder order;
  bool pools_trimmed = false;  ///< Whether memory pools have given back all that they kept.
  /// Page-locked host memory: begin → bytes.
  std::map<std::uint64_t, std::size_t> pinned;

  /// What a launch, copy or free found wrong: as on a device it stays, and every later call returns
  /// it, until reset().
  struct Failure {
    int code = 0;  ///< A cudaError_t; 0: none.
    std::string report;
    bool told = false;  ///< To the program.
  };
  Failure failure;
  /// Runs `work` unless the device failed; its Fault or Refusal becomes the failure, and a line on
  /// standard error.
  void attempt(const std::function<void()>& work);
  /// attempt() of a piece of the order's work, which its accesses are held to be.
  void run(const std::function<void()>& work);
  /// `name`: for messages. `ready`: as Work's; not asked any more when the device failed. A
  /// capturing stream records the work as a node instead, and null is returned.
  std::shared_ptr<Work> enqueue(Stream& stream, const std::string& name, std::function<void()> work,
                                std::function<bool()> ready = {});
  /// Device memory. Where there is not enough, `live` memory waits for what is still to be freed,
  /// as cudaMalloc does; memory of a stream's order does not. 0: full.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes, DeviceMemory::State state);
  /// `handle`: a cudaStream_t.
  [[nodiscard]] Stream& stream_of(void* handle);
  /// Devices of the machine (JFORGE_EMULATED_DEVICES, 1 by default).
  [[nodiscard]] int count() const { return count_; }
  /// The calling thread's choice.
  [[nodiscard]] static int& current();
  /// The calling thread's capture, or null.
  [[nodiscard]] static Capture*& capturing();
  /// What belongs to a device is made on the calling thread's: throws Refusal where that is not the
  /// one that the process has used before.
  int use();
  /// Forgets what is not done, the failure and which device is used, and reads the environment
  /// anew.
  void reset();

 private:
  Device();
  /// From the environment.
  void configure();
  int count_ = 1;
  int used_ = -1;
};

}  // namespace jforge::emulator
