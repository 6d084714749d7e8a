/// The calls of libcudart that the program uses.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/cuda_emulator/cudart_internal.h"
#include "tests/cuda_emulator/device.h"
#include "tests/cuda_emulator/warp.h"

using jforge::emulator::answer;
using jforge::emulator::answer_of;
using jforge::emulator::Capture;
using jforge::emulator::CapturePlace;
using jforge::emulator::Device;
using jforge::emulator::DeviceMemory;
using jforge::emulator::Dimensions;
using jforge::emulator::Kernel;
using jforge::emulator::Launch;
using jforge::emulator::Lock;
using jforge::emulator::Module;
using jforge::emulator::number_of;
using jforge::emulator::outside_capture;
using jforge::emulator::Refusal;
using jforge::emulator::Stream;
using jforge::emulator::with_device;
using jforge::emulator::Work;

namespace {

// Limits of an A100.
constexpr int kMultiprocessors = 108;
constexpr int kWarpLanes = 32;
constexpr int kMostThreads = 1024;
constexpr std::size_t kPlainShared = std::size_t{48} << 10;
constexpr unsigned kMostBlocksAcross = 65535;

/// Shared memory of a block, by default an A100's.
std::size_t most_shared() {
  const char* const kibibytes = std::getenv("JFORGE_EMULATED_SHARED_KIB");
  return std::size_t{kibibytes == nullptr ? 163 : std::strtoull(kibibytes, nullptr, 10)} << 10;
}

/// Ten times the major plus the minor number, by default an A100's.
int capability() {
  const char* const numbers = std::getenv("JFORGE_EMULATED_CAPABILITY");
  return numbers == nullptr ? 80 : static_cast<int>(std::strtol(numbers, nullptr, 10));
}

using Bytes = std::vector<std::byte>;

thread_local cudaError_t last_error = cudaSuccess;

struct Event {
  std::shared_ptr<Work> place;
  CapturePlace captured;  ///< last place of recording in a capture
};
Event& event_of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

struct Function {
  Module* module;
  std::string name;
  std::size_t most_dynamic_shared = kPlainShared;
};
std::unordered_map<const void*, Function>& functions() {
  static auto& all = *new std::unordered_map<const void*, Function>;
  return all;
}

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> call_configurations;

bool is_pinned(const Device& device, const void* address) {
  const auto after = device.pinned.upper_bound(number_of(address));
  if (after == device.pinned.begin()) {
    return false;
  }
  const auto& [begin, bytes] = *std::prev(after);
  return number_of(address) - begin < bytes;
}

/// Accesses to device memory are checked.
std::byte* bytes_at(Device& device, DeviceMemory::Use use, const void* address, std::size_t bytes,
                    const char* access) {
  return device.memory.owns(address)
             ? device.memory.use(use, number_of(address), bytes, access)
             : const_cast<std::byte*>(static_cast<const std::byte*>(address));
}

bool kind_fits(const Device& device, const void* to, const void* from, cudaMemcpyKind kind) {
  const bool to_device = device.memory.owns(to);
  const bool from_device = device.memory.owns(from);
  const auto needed = to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  return kind == needed || kind == cudaMemcpyDefault;
}

/// Uses pageable memory before returning, page-locked memory in stream order.
cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t handle, bool wait) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  if (!kind_fits(device, to, from, kind)) {
    return answer_of(device, cudaErrorInvalidMemcpyDirection);
  }
  const auto pageable = [&](const void* address) {
    return !device.memory.owns(address) && !is_pinned(device, address);
  };
  if (Capture* const capture = Device::capturing();
      capture != nullptr && (wait || pageable(from) || pageable(to))) {
    capture->valid = false;
    return answer_of(device, cudaErrorStreamCaptureUnsupported);
  }
  if (bytes == 0) {
    return answer_of(device);
  }
  std::shared_ptr<Bytes> kept;
  if (pageable(from)) {
    const auto* const begin = static_cast<const std::byte*>(from);
    kept = std::make_shared<Bytes>(begin, begin + bytes);
  }
  device.attempt([&] {
    const auto work =
        device.enqueue(device.stream_of(handle), "a copy", [&device, to, from, bytes, kept] {
          const std::byte* const source = kept ? kept->data()
                                               : bytes_at(device, DeviceMemory::Use::read, from,
                                                          bytes, "copy from device memory");
          std::memmove(
              bytes_at(device, DeviceMemory::Use::write, to, bytes, "copy to device memory"),
              source, bytes);
        });
    if (wait || pageable(to)) {
      device.order.wait(work);
    }
  });
  return answer_of(device);
}

cudaError_t set(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  device.attempt([&] {
    device.enqueue(device.stream_of(handle), "a set", [&device, to, value, bytes] {
      if (bytes != 0) {
        std::memset(device.memory.use(DeviceMemory::Use::write, number_of(to), bytes,
                                      "set of device memory"),
                    value, bytes);
      }
    });
  });
  return answer_of(device);
}

unsigned bus_of(int index) { return 1U + static_cast<unsigned>(index); }

const char* name_of_error(cudaError_t error) {
  static const std::map<cudaError_t, const char*> kNames{
      {cudaSuccess, "cudaSuccess"},
      {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
      {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
      {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
      {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection"},
      {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
      {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction"},
      {cudaErrorNotReady, "cudaErrorNotReady"},
      {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
      {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
      {cudaErrorNotSupported, "cudaErrorNotSupported"},
      {cudaErrorIllegalState, "cudaErrorIllegalState"},
      {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
      {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated"},
      {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined"},
      {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation"}};
  const auto found = kNames.find(error);
  return found == kNames.end() ? "an error that the emulated device never returns" : found->second;
}

}  // namespace

namespace jforge::emulator {

cudaError_t answer(cudaError_t status) {
  if (status != cudaSuccess) {
    last_error = status;
  }
  return status;
}

cudaError_t answer_of(Device& device, cudaError_t status) {
  if (device.failure.code != 0) {
    device.failure.told = true;
    return answer(static_cast<cudaError_t>(device.failure.code));
  }
  return answer(status);
}

}  // namespace jforge::emulator

extern "C" {

// --- what nvcc's host code calls ---

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(new Module(wrapper));
}
void __cudaRegisterFatBinaryEnd(void** /*module*/) {}
void __cudaUnregisterFatBinary(void** /*module*/) {}

void __cudaRegisterFunction(void** module, const char* host, char* /*device*/, const char* name,
                            int /*thread_limit*/, uint3* /*tid*/, uint3* /*bid*/, dim3* /*block*/,
                            dim3* /*grid*/, int* /*warp_size*/) {
  functions()[host] = {reinterpret_cast<Module*>(module), name};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     cudaStream_t stream) {
  call_configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  const CallConfiguration last = call_configurations.back();
  call_configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  std::memcpy(stream, &last.stream, sizeof last.stream);
  return cudaSuccess;
}

// --- launches ---

cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t stream) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  const auto function = functions().find(host);
  if (function == functions().end()) {
    return answer_of(device, cudaErrorInvalidDeviceFunction);
  }
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMostThreads || block.z > 64 || grid.x == 0 || grid.y == 0 ||
      grid.z == 0 || grid.y > kMostBlocksAcross || grid.z > kMostBlocksAcross) {
    return answer_of(device, cudaErrorInvalidConfiguration);
  }
  bool too_much_shared = false;
  device.attempt([&] {
    device.use();
    const Kernel& kernel = function->second.module->kernel(function->second.name);
    if (shared > function->second.most_dynamic_shared ||
        shared + kernel.static_shared >
            std::max(kPlainShared, function->second.most_dynamic_shared)) {
      too_much_shared = true;
      return;
    }
    const auto launch = std::make_shared<Launch>();
    launch->kernel = &kernel;
    launch->grid = {grid.x, grid.y, grid.z};
    launch->block = {block.x, block.y, block.z};
    launch->dynamic_shared = shared;
    launch->parameters.resize(kernel.parameter_bytes);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
      std::memcpy(&launch->parameters[kernel.parameters[i].offset], arguments[i],
                  kernel.parameters[i].bytes);
    }
    device.enqueue(device.stream_of(stream), "kernel " + kernel.name, [&device, launch] {
      jforge::emulator::run(*launch, device.memory, device.order.draw());
    });
  });
  return answer_of(device, too_much_shared ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  const auto function = functions().find(host);
  if (function == functions().end()) {
    return answer_of(device, cudaErrorInvalidDeviceFunction);
  }
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
    device.attempt([&] {
      throw Refusal("cudaFuncSetAttribute: attribute " +
                    std::to_string(static_cast<int>(attribute)));
    });
    return answer_of(device);
  }
  if (value < 0 || static_cast<std::size_t>(value) > most_shared()) {
    return answer_of(device, cudaErrorInvalidValue);
  }
  function->second.most_dynamic_shared = static_cast<std::size_t>(value);
  return answer_of(device);
}

// --- memory ---

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (const cudaError_t status = outside_capture([](Device& /*device*/) {});
      status != cudaSuccess) {
    return status;
  }
  Device& device = Device::get();
  const Lock lock(device.mutex);
  std::uint64_t begin = 0;
  device.attempt([&] { begin = device.allocate(bytes, DeviceMemory::State::live); });
  *memory = reinterpret_cast<void*>(begin);
  return answer_of(device, begin == 0 ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* memory) {
  return outside_capture([&](Device& device) {
    device.order.wait_for_all();
    if (memory != nullptr && device.failure.code == 0) {
      device.memory.free(number_of(memory));
    }
  });
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  if (const cudaError_t status = outside_capture([](Device& /*device*/) {});
      status != cudaSuccess) {
    return status;
  }
  Device& device = Device::get();
  const Lock lock(device.mutex);
  constexpr std::size_t kPage = 4096;
  *memory = std::aligned_alloc(kPage, (bytes / kPage + 1) * kPage);
  if (*memory == nullptr) {
    return answer_of(device, cudaErrorMemoryAllocation);
  }
  std::memset(*memory, 0xff, bytes);
  device.pinned[number_of(*memory)] = bytes;
  return answer_of(device);
}

cudaError_t cudaFreeHost(void* memory) {
  return outside_capture([&](Device& device) {
    device.order.wait_for_all();
    if (memory != nullptr) {
      if (device.pinned.erase(number_of(memory)) == 0) {
        throw Refusal("cudaFreeHost of memory that cudaMallocHost did not give");
      }
      std::free(memory);
    }
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return copy(to, from, bytes, kind, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy(to, from, bytes, kind, stream, false);
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  if (const cudaError_t status = outside_capture([](Device& /*device*/) {});
      status != cudaSuccess) {
    return status;
  }
  return set(memory, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return set(memory, value, bytes, stream);
}
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  *total = device.memory.total_bytes();
  *available = device.memory.total_bytes() - device.memory.live_bytes();
  return answer_of(device);
}

// --- streams and events ---

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return with_device([&](Device& device) {
    device.use();
    auto* const made = new Stream;
    made->blocking = (flags & cudaStreamNonBlocking) == 0;
    device.order.add_stream(*made);
    *stream = reinterpret_cast<cudaStream_t>(made);
  });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  auto* const gone = reinterpret_cast<Stream*>(stream);
  device.order.remove_stream(*gone);
  delete gone;
  return answer_of(device);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return outside_capture([&](Device& device) {
    device.use();
    device.order.wait(device.stream_of(stream).last);
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  bool done = true;
  const cudaError_t status = outside_capture(
      [&](Device& device) { done = device.order.ask(device.stream_of(stream).last); });
  return status == cudaSuccess && !done ? answer(cudaErrorNotReady) : status;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned /*flags*/) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  cudaError_t status = cudaSuccess;
  device.attempt([&] {
    device.use();
    const Event& event = event_of(event_handle);
    Stream& stream = device.stream_of(handle);
    const auto& capture = event.captured.capture;
    if (stream.place.capture && stream.place.capture != capture) {
      // A replay cannot wait for work recorded outside the capture.
      stream.place.capture->valid = false;
      status = cudaErrorStreamCaptureIsolation;
    } else if (capture) {
      stream.place.capture = capture;
      stream.place.after.insert(stream.place.after.end(), event.captured.after.begin(),
                                event.captured.after.end());
    } else if (event.place) {
      stream.waits_for.push_back(event.place);
    }
  });
  return answer_of(device, status);
}
cudaError_t cudaDeviceSynchronize() {
  return outside_capture([](Device& device) { device.order.wait_for_all(); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return with_device([&](Device& device) {
    device.use();
    if (flags != cudaEventDisableTiming) {
      throw Refusal("events with times");
    }
    *event = reinterpret_cast<cudaEvent_t>(new Event);
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return with_device([&](Device& device) {
    device.use();
    Event& event = event_of(handle);
    Stream& stream = device.stream_of(stream_handle);
    event.captured = stream.place;
    if (!stream.place.capture) {
      event.place = device.enqueue(stream, "an event", [] {});
    }
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return outside_capture([&](Device& device) {
    device.use();
    device.order.wait(event_of(event).place);
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  bool done = true;
  const cudaError_t status = outside_capture([&](Device& device) {
    device.use();
    done = device.order.ask(event_of(event).place);
  });
  return status == cudaSuccess && !done ? answer(cudaErrorNotReady) : status;
}

// --- the device and its errors ---

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Device::get().count();
  return answer_of(Device::get());
}
cudaError_t cudaGetDevice(int* index) {
  *index = Device::current();
  return answer_of(Device::get());
}
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= Device::get().count()) {
    return answer_of(Device::get(), cudaErrorInvalidDevice);
  }
  Device::current() = index;
  return answer_of(Device::get());
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int index) {
  if (index < 0 || index >= Device::get().count()) {
    return answer(cudaErrorInvalidDevice);
  }
  const int length =
      std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", bus_of(index));
  return answer(length < bytes ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (index < 0 || index >= Device::get().count()) {
    return answer(cudaErrorInvalidDevice);
  }
  *properties = {};
  std::strcpy(properties->name, "emulated device (compute_80 PTX on the host)");
  properties->pciBusID = static_cast<int>(bus_of(index));
  std::memset(properties->uuid.bytes, static_cast<int>(bus_of(index)),
              sizeof properties->uuid.bytes);
  properties->major = capability() / 10;
  properties->minor = capability() % 10;
  properties->totalGlobalMem = Device::get().memory.total_bytes();
  properties->multiProcessorCount = kMultiprocessors;
  properties->warpSize = kWarpLanes;
  properties->maxThreadsPerBlock = kMostThreads;
  properties->sharedMemPerBlock = kPlainShared;
  properties->sharedMemPerBlockOptin = most_shared();
  return answer_of(Device::get());
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*index*/) {
  return with_device([&](Device& /*device*/) {
    const std::map<cudaDeviceAttr, int> values{
        {cudaDevAttrMemoryPoolsSupported, 1},
        {cudaDevAttrMultiProcessorCount, kMultiprocessors},
        {cudaDevAttrComputeCapabilityMajor, capability() / 10},
        {cudaDevAttrComputeCapabilityMinor, capability() % 10},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(most_shared())}};
    if (!values.contains(attribute)) {
      throw Refusal("cudaDeviceGetAttribute: attribute " +
                    std::to_string(static_cast<int>(attribute)));
    }
    *value = values.at(attribute);
  });
}
/// Unlike a real device, clears a failure.
cudaError_t cudaDeviceReset() {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  device.reset();
  last_error = cudaSuccess;
  return cudaSuccess;
}

[[gnu::visibility("default")]] std::uint64_t jforge_emulated_host_waits() {
  return jforge::emulator::WorkOrder::host_waits();
}

/// For tests only: keeps work (returns its number), its name, whether one precedes another in every
/// order.
[[gnu::visibility("default")]] std::uint64_t jforge_emulated_keep_work(int keep) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  return device.order.keep_stamps(keep != 0);
}
[[gnu::visibility("default")]] const char* jforge_emulated_work_name(std::uint64_t index) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  return device.order.before().name(device.order.kept_stamp(index).work).c_str();
}
[[gnu::visibility("default")]] int jforge_emulated_work_ordered(std::uint64_t earlier,
                                                                std::uint64_t later) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  return device.order.before().ordered(device.order.kept_stamp(earlier).work,
                                       device.order.kept_stamp(later))
             ? 1
             : 0;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) { return name_of_error(error); }
const char* cudaGetErrorString(cudaError_t error) {
  const Device& device = Device::get();
  return device.failure.code == static_cast<int>(error) && error != cudaSuccess
             ? device.failure.report.c_str()
             : name_of_error(error);
}

}  // extern "C"
