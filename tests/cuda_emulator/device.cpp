#include "tests/cuda_emulator/device.h"

#include <driver_types.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

namespace jforge::emulator {

namespace {

struct FatBinaryWrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const std::byte* data;
  const void* rest;
};
struct FatBinaryHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t bytes;
};
struct FatBinaryEntry {
  std::uint16_t kind;
  std::uint16_t unused;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
};
constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kHeaderMagic = 0xba55ed50;
constexpr std::uint16_t kPtx = 1;

template <class T>
T read_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::string_view find_ptx(const void* wrapper_place) {
  const auto wrapper = read_as<FatBinaryWrapper>(static_cast<const std::byte*>(wrapper_place));
  if (wrapper.magic != kWrapperMagic) {
    throw Refusal("fat binary of another layout than CUDA 12's and 13's");
  }
  const auto header = read_as<FatBinaryHeader>(wrapper.data);
  if (header.magic != kHeaderMagic) {
    throw Refusal("fat binary of another layout than CUDA 12's and 13's");
  }
  const std::byte* at = wrapper.data + header.header_bytes;
  const std::byte* const end = at + header.bytes;
  while (at < end) {
    const auto entry = read_as<FatBinaryEntry>(at);
    const char* const text = reinterpret_cast<const char*>(at + entry.header_bytes);
    if (entry.kind == kPtx) {
      const std::string_view ptx(text, strnlen(text, entry.bytes));
      if (ptx.find(".version") == std::string_view::npos) {
        throw Refusal("compressed PTX (nvcc --no-compress leaves it plain)");
      }
      return ptx;
    }
    at += entry.header_bytes + entry.bytes;
  }
  throw Refusal("fat binary without PTX (nvcc -gencode arch=compute_80,code=compute_80 adds it)");
}

const char* environment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

constexpr const char* kOrder = "JFORGE_EMULATED_ORDER";
constexpr const char* kDefaultOrder = "lazy";

int code_of(FaultKind kind) {
  return kind == FaultKind::illegal_address ? cudaErrorIllegalAddress : cudaErrorLaunchFailure;
}

}  // namespace

const Kernel& Module::kernel(const std::string& name) {
  if (!read_) {
    for (Kernel& found : parse_ptx(find_ptx(wrapper_))) {
      std::string key = found.name;
      kernels_.emplace(std::move(key), std::move(found));
    }
    read_ = true;
  }
  const auto found = kernels_.find(name);
  if (found == kernels_.end()) {
    throw Refusal("kernel " + name + " is not in its module's PTX, which");
  }
  if (!found->second.refused.empty()) {
    throw Refusal(found->second.refused);
  }
  return found->second;
}

Device::Device() : order(kDefaultOrder) {
  configure();
  memory.accessor.follows = [this](std::uint32_t earlier) {
    return order.before().ordered(earlier, order.current());
  };
  memory.accessor.name = [this](std::uint32_t work) { return order.before().name(work); };
  order.when_idle([this] {
    mutex.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    mutex.lock();
  });
}

Device& Device::get() {
  // Never destroyed: static objects may still free memory. An unqueried failure must not end as
  // success.
  static Device& device = [&]() -> Device& {
    static_cast<void>(std::atexit([] {
      const Failure& failure = get().failure;
      if (failure.code != 0 && !failure.told) {
        std::fputs("emulated device: the program ends without having asked for this failure\n",
                   stderr);
        constexpr int kUnasked = 99;
        _exit(kUnasked);
      }
    }));
    return *new Device;
  }();
  return device;
}

void Device::attempt(const std::function<void()>& work) {
  if (failure.code != 0) {
    return;
  }
  try {
    work();
    return;
  } catch (const LaunchFault& fault) {
    failure = {code_of(fault.kind), fault.what(), false};
  } catch (const Fault& fault) {
    failure = {code_of(fault.kind), std::string(name_of(fault.kind)) + ": " + fault.what(), false};
  } catch (const Refusal& refusal) {
    failure = {cudaErrorNotSupported, std::string("refused: ") + refusal.what(), false};
  }
  std::fprintf(stderr, "emulated device: %s\n", failure.report.c_str());
}

std::shared_ptr<Work> Device::enqueue(Stream& stream, const std::string& name,
                                      std::function<void()> work, std::function<bool()> ready) {
  if (stream.place.capture) {
    if (ready) {
      throw Refusal("a call to NCCL while capturing");
    }
    Graph& graph = stream.place.capture->graph;
    graph.nodes.push_back({name, std::move(work), stream.place.after});
    stream.place.after = {graph.nodes.size() - 1};
    return nullptr;
  }
  std::function<bool()> own;
  if (ready) {
    own = [this, ready = std::move(ready)] { return failure.code != 0 || ready(); };
  }
  return order.enqueue(
      stream, name, [this, work = std::move(work)] { run(work); }, std::move(own));
}

void Device::run(const std::function<void()>& work) {
  memory.accessor.work = order.current().work;
  memory.accessor.block = 0;
  memory.accessor.phase = 0;
  memory.accessor.warp = 0;
  attempt(work);
  memory.accessor.work = 0;
}

int& Device::current() {
  thread_local int index = 0;
  return index;
}

Capture*& Device::capturing() {
  thread_local Capture* capture = nullptr;
  return capture;
}

int Device::use() {
  if (used_ < 0) {
    used_ = current();
  } else if (used_ != current()) {
    throw Refusal("device " + std::to_string(current()) + " in a process that uses device " +
                  std::to_string(used_) + " (cudaSetDevice is each thread's own), which");
  }
  return used_;
}

std::uint64_t Device::allocate(std::size_t bytes, DeviceMemory::State state) {
  use();
  std::uint64_t begin = memory.allocate(bytes, state);
  // Only a pool's allocation returns at once, without waiting for queued frees.
  if (begin == 0 && state == DeviceMemory::State::live) {
    order.wait_for_all();
    begin = memory.allocate(bytes, state);
  }
  return begin;
}

Stream& Device::stream_of(void* handle) {
  if (handle == cudaStreamPerThread) {
    throw Refusal("the default stream of a thread");
  }
  return handle == nullptr || handle == cudaStreamLegacy ? order.default_stream()
                                                         : *static_cast<Stream*>(handle);
}

void Device::configure() {
  constexpr std::size_t kMebibyte = std::size_t{1} << 20;
  memory.limit(kMebibyte * std::strtoull(environment("JFORGE_EMULATED_MIB", "81920"), nullptr, 10));
  order.choose(environment(kOrder, kDefaultOrder));
  count_ = std::atoi(environment("JFORGE_EMULATED_DEVICES", "1"));
  if (count_ < 1) {
    throw Refusal("JFORGE_EMULATED_DEVICES is not a number of devices");
  }
  used_ = -1;
}

void Device::reset() {
  order.abandon();
  configure();
  failure = {};
}

}  // namespace jforge::emulator
