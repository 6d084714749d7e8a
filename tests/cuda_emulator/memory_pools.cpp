/// Stream-ordered memory: a life begins and ends when its stream reaches the call.

#include "tests/cuda_emulator/cudart_internal.h"
#include "tests/cuda_emulator/device.h"

using jforge::emulator::answer;
using jforge::emulator::answer_of;
using jforge::emulator::Device;
using jforge::emulator::DeviceMemory;
using jforge::emulator::Lock;
using jforge::emulator::number_of;
using jforge::emulator::Refusal;
using jforge::emulator::with_device;

namespace {

struct Pool {
  std::uint64_t threshold = 0;  ///< kept by the pool
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;
  std::uint64_t most_used = 0;
  std::uint64_t most_reserved = 0;

  void take(std::uint64_t bytes) {
    used += bytes;
    reserved = std::max(reserved, used);
    most_used = std::max(most_used, used);
    most_reserved = std::max(most_reserved, reserved);
  }
};
Pool& pool_of(cudaMemPool_t handle) { return *reinterpret_cast<Pool*>(handle); }
Pool& default_pool() {
  static Pool pool;
  return pool;
}

struct Piece {
  std::shared_ptr<Pool> pool;
  std::size_t bytes;
};
/// Pools live until their last memory is freed.
std::unordered_map<const Pool*, std::shared_ptr<Pool>>& pools() {
  static auto& all = *new std::unordered_map<const Pool*, std::shared_ptr<Pool>>{
      {&default_pool(), std::shared_ptr<Pool>(&default_pool(), [](Pool*) {})}};
  return all;
}
std::unordered_map<std::uint64_t, Piece>& pieces() {
  static auto& all = *new std::unordered_map<std::uint64_t, Piece>;
  return all;
}

cudaError_t allocate(void** memory, std::size_t bytes, Pool& from, cudaStream_t stream) {
  Device& device = Device::get();
  const Lock lock(device.mutex);
  std::uint64_t begin = 0;
  device.attempt([&] {
    if (device.stream_of(stream).place.capture) {
      throw Refusal("memory allocated while capturing");
    }
    const auto pool = pools().find(&from);
    if (pool == pools().end()) {
      throw Refusal("cudaMallocFromPoolAsync from a pool that was destroyed");
    }
    begin = device.allocate(bytes, DeviceMemory::State::pending);
    if (begin != 0) {
      from.take(bytes);
      pieces()[begin] = {pool->second, bytes};
      device.enqueue(device.stream_of(stream), "an allocation",
                     [&device, begin] { device.memory.begin_life(begin); });
    }
  });
  *memory = reinterpret_cast<void*>(begin);
  return answer_of(device, begin == 0 ? cudaErrorMemoryAllocation : cudaSuccess);
}

std::uint64_t* attribute_of(Pool& pool, cudaMemPoolAttr attribute) {
  static const std::map<cudaMemPoolAttr, std::uint64_t Pool::*> kMembers{
      {cudaMemPoolAttrReleaseThreshold, &Pool::threshold},
      {cudaMemPoolAttrUsedMemCurrent, &Pool::used},
      {cudaMemPoolAttrUsedMemHigh, &Pool::most_used},
      {cudaMemPoolAttrReservedMemCurrent, &Pool::reserved},
      {cudaMemPoolAttrReservedMemHigh, &Pool::most_reserved}};
  if (!kMembers.contains(attribute)) {
    throw Refusal("memory pool attribute " + std::to_string(static_cast<int>(attribute)));
  }
  return &(pool.*kMembers.at(attribute));
}

}  // namespace

extern "C" {

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  return allocate(memory, bytes, default_pool(), stream);
}
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return allocate(memory, bytes, pool_of(pool), stream);
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return with_device([&](Device& device) {
    const std::uint64_t begin = number_of(memory);
    if (begin == 0) {
      return;
    }
    if (device.stream_of(stream).place.capture) {
      throw Refusal("memory freed while capturing");
    }
    if (const auto piece = pieces().find(begin); piece != pieces().end()) {
      piece->second.pool->used -= piece->second.bytes;
      pieces().erase(piece);
    }
    device.enqueue(device.stream_of(stream), "a free",
                   [&device, begin] { device.memory.free(begin); });
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return with_device([&](Device& /*device*/) {
    if (properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice ||
        properties->handleTypes != cudaMemHandleTypeNone) {
      throw Refusal("memory pools that other processes or the host can see");
    }
    const auto made = std::make_shared<Pool>();
    pools()[made.get()] = made;
    *pool = reinterpret_cast<cudaMemPool_t>(made.get());
  });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return with_device([&](Device& /*device*/) {
    if (&pool_of(pool) == &default_pool() || pools().erase(&pool_of(pool)) == 0) {
      throw Refusal("cudaMemPoolDestroy of what cudaMemPoolCreate did not make");
    }
  });
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index) {
  *pool = reinterpret_cast<cudaMemPool_t>(&default_pool());
  return answer(index == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int index) {
  return cudaDeviceGetDefaultMemPool(pool, index);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return with_device([&](Device& /*device*/) {
    std::uint64_t* const field = attribute_of(pool_of(pool), attribute);
    const std::uint64_t given = *static_cast<std::uint64_t*>(value);
    if (attribute != cudaMemPoolAttrReleaseThreshold &&
        (attribute == cudaMemPoolAttrUsedMemCurrent ||
         attribute == cudaMemPoolAttrReservedMemCurrent || given != 0)) {
      throw Refusal("cudaMemPoolSetAttribute: another value than 0 of a high-water mark");
    }
    *field = given;
  });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return with_device([&](Device& /*device*/) {
    *static_cast<std::uint64_t*>(value) = *attribute_of(pool_of(pool), attribute);
  });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t bytes) {
  return with_device([&](Device& device) {
    Pool& own = pool_of(pool);  // Memory of queued frees still counts as used.
    device.pools_trimmed = device.pools_trimmed || bytes == 0;
    own.reserved = std::max<std::uint64_t>(own.used, std::min<std::uint64_t>(own.reserved, bytes));
  });
}

}  // extern "C"
