#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "model/kernels/cuda/block_group.cuh"
#include "runtime/device/queue.h"
#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/cuda_memory.h"
#include "runtime/tensor/cuda_products.h"
#include "runtime/tensor/cuda_stream_queue.h"

namespace jforge {

/// A recorded graph of launches. Empty: none.
class RecordedLaunches {
 public:
  RecordedLaunches() = default;
  explicit RecordedLaunches(cudaGraphExec_t graph) : graph_(graph) {}
  ~RecordedLaunches() {
    if (graph_ != nullptr) {
      static_cast<void>(cudaGraphExecDestroy(graph_));
    }
  }
  RecordedLaunches(RecordedLaunches&& other) noexcept
      : graph_(std::exchange(other.graph_, nullptr)) {}
  RecordedLaunches& operator=(RecordedLaunches&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  RecordedLaunches(const RecordedLaunches&) = delete;
  RecordedLaunches& operator=(const RecordedLaunches&) = delete;
  [[nodiscard]] cudaGraphExec_t get() const noexcept { return graph_; }
  [[nodiscard]] bool empty() const noexcept { return graph_ == nullptr; }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

class DeviceQueue final : public CudaQueue {
 public:
  static constexpr Device kDevice = Device::cuda;

  explicit DeviceQueue(MemoryAccount& account) : products_(stream(), account) {}

  /// Shared memory per block, capped so that larger devices work alike.
  [[nodiscard]] std::int64_t most_shared_bytes() const noexcept { return most_shared_bytes_; }

  template <class Body>
  void launch(std::int64_t blocks, std::int64_t lanes, const Body& body, const char* what) {
    if (blocks == 0) {
      return;
    }
    constexpr std::int64_t kMostBlocks = 2147483647;
    expect(blocks > 0 && blocks <= kMostBlocks && lanes <= BlockGroup::kMostLanes &&
               std::has_single_bit(static_cast<std::uint64_t>(lanes)),
           what);
    const std::int64_t shared = body.shared_bytes();
    allow_shared<Body>(shared, what);
    run_body<Body><<<static_cast<unsigned>(blocks), static_cast<unsigned>(lanes),
                     static_cast<std::size_t>(shared), stream().get()>>>(body);
    cuda_check(cudaGetLastError(), what);
  }

  void multiply(const MatrixProduct& product) { products_.run(product); }
  void prepare_rows(const MatrixProduct& product, std::int64_t max_rows) {
    products_.prepare_rows(product, max_rows);
  }

  /// `work` may use the device for nothing but launches. Returns empty if the device lacks memory.
  [[nodiscard]] RecordedLaunches record_launches(const std::function<void()>& work) {
    cuda_check(cudaStreamBeginCapture(stream().get(), cudaStreamCaptureModeThreadLocal),
               "record launches");
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream().get(), &graph));
      static_cast<void>(cudaGetLastError());
      destroy(graph);
      throw;
    }
    cuda_check(cudaStreamEndCapture(stream().get(), &graph), "record launches");
    RecordedLaunches launches;
    cudaError_t status = prepare(graph, launches);
    if (status == cudaErrorMemoryAllocation) {
      // The buffers' pool may hold the memory.
      static_cast<void>(cudaGetLastError());
      launches = {};
      cuda_memory::give_back_unused();
      status = prepare(graph, launches);
    }
    destroy(graph);
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return {};
    }
    cuda_check(status, "prepare recorded launches");
    return launches;
  }
  void replay(const RecordedLaunches& launches) {
    cuda_check(cudaGraphLaunch(launches.get(), stream().get()), "replay launches");
  }

  /// Waits for all work; throws for failures of earlier kernels.
  void download(void* host, const void* device, std::size_t bytes) {
    cuda_check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream().get()),
               "copy a result to the host");
    synchronize();
  }

 private:
  /// Never lowers a kernel's limit, because recorded launches rely on it.
  template <class Body>
  static void allow_shared(std::int64_t shared, const char* what) {
    constexpr std::int64_t kPlainShared = 40 << 10;
    static std::int64_t allowed = kPlainShared;
    if (shared > allowed) {
      expect_shared_memory(shared, what);
      cuda_check(cudaFuncSetAttribute(run_body<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared)),
                 what);
      allowed = shared;
    }
  }

  [[nodiscard]] cudaError_t prepare(cudaGraph_t graph, RecordedLaunches& launches) {
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    if (status != cudaSuccess) {
      return status;
    }
    launches = RecordedLaunches(executable);
    // Otherwise the first launch would allocate.
    return cudaGraphUpload(executable, stream().get());
  }
  static void destroy(cudaGraph_t graph) {
    if (graph != nullptr) {
      static_cast<void>(cudaGraphDestroy(graph));
    }
  }

  CudaProducts products_;
  std::int64_t most_shared_bytes_ = std::min(kMostSharedBytes, most_shared_memory());
};

/// Copies host values to the device in stream order. Several places let the host run ahead.
class StagedArray {
 public:
  StagedArray(DeviceQueue& queue, MemoryAccount& account) : queue_(queue), account_(account) {}
  /// The copy may still read the page-locked memory.
  ~StagedArray() { static_cast<void>(cudaStreamSynchronize(queue_.stream().get())); }
  StagedArray(const StagedArray&) = delete;
  StagedArray& operator=(const StagedArray&) = delete;

  template <class T>
  const T* upload(std::span<const T> values) {
    const std::size_t bytes = values.size_bytes();
    if (bytes == 0) {
      return nullptr;
    }
    if (bytes > device_.bytes()) {
      {
        // Kernels may read the old block; on the wait see below.
        const WaitingForOthers waiting;
        queue_.stream().synchronize();
      }
      device_ = Buffer();
      device_ = Buffer(2 * bytes, account_, Device::cuda, MemoryUse::staging);
      used_places_ = device_.bytes() > kLargeBytes ? 2 : kPlaces;
      for (std::size_t i = 0; i < kPlaces; ++i) {
        places_[i].memory = Buffer();
        if (i < used_places_) {
          places_[i].memory =
              Buffer(device_.bytes(), account_, HostMemory::page_locked, MemoryUse::staging);
        }
      }
    }
    next_ = (next_ + 1) % used_places_;
    Place& place = places_[next_];
    {
      // The stream may wait for NCCL and so for other ranks.
      const WaitingForOthers waiting;
      place.copied.wait();
    }
    std::memcpy(place.memory.data(), values.data(), bytes);
    cuda_check(cudaMemcpyAsync(device_.data(), place.memory.data(), bytes, cudaMemcpyHostToDevice,
                               queue_.stream().get()),
               "copy a kernel's input to the device");
    place.copied.record(queue_.stream());
    return reinterpret_cast<const T*>(device_.data());
  }

 private:
  struct Place {
    Buffer memory;
    CudaEvent copied;
  };
  static constexpr std::size_t kPlaces = 8;
  /// Larger arrays get two places, because eight would take a gigabyte.
  static constexpr std::size_t kLargeBytes = std::size_t{4} << 20;

  DeviceQueue& queue_;
  MemoryAccount& account_;
  Buffer device_;
  Place places_[kPlaces];
  std::size_t used_places_ = 0;
  std::size_t next_ = 0;
};

/// Work space; at_least() leaves the contents unspecified.
class DeviceScratch {
 public:
  explicit DeviceScratch(MemoryAccount& account) : account_(account) {}

  template <class T>
  T* at_least(std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > memory_.bytes()) {
      memory_ = Buffer();  // Freed first, so that both blocks never coexist.
      memory_ = Buffer(bytes, account_, DeviceQueue::kDevice, MemoryUse::activations);
    }
    return reinterpret_cast<T*>(memory_.data());
  }
  void release() { memory_ = Buffer(); }
  /// Moves when the memory grows.
  [[nodiscard]] const void* data() const noexcept { return memory_.data(); }

 private:
  MemoryAccount& account_;
  Buffer memory_;
};

inline constexpr std::int64_t kElementLanes = 256;
inline constexpr std::int64_t kMostElementBlocks = 8192;

template <class Element>
void launch_elements(DeviceQueue& queue, std::int64_t count, const Element& element,
                     const char* what) {
  const std::int64_t needed = divide_up(count, kElementLanes);
  const std::int64_t blocks = needed < kMostElementBlocks ? needed : kMostElementBlocks;
  queue.launch(blocks, kElementLanes, ForElements<Element>{element, count, blocks}, what);
}

}  // namespace jforge
