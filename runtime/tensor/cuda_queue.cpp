#include "runtime/tensor/cuda_queue.h"

#include <vector>

#include "runtime/error.h"
#include "runtime/tensor/cuda_handles.h"
#include "runtime/tensor/cuda_stream_place.h"

namespace jforge {

namespace {

class CudaQueue final : public Queue {
 public:
  [[nodiscard]] Event record() override { return places_.record(stream_); }
  void wait(const Event& event) override { wait_in_stream(event, stream_); }

  void copy(const ConstTensorView& from, const TensorView& to) override {
    expect(from.shape() == to.shape() && from.dtype() == to.dtype(),
           "a copy changes neither shape nor element type");
    cuda_check(
        cudaMemcpyAsync(to.raw(), from.raw(), from.bytes(), cudaMemcpyDefault, stream_.get()),
        "copy a tensor");
  }

  void zero(const TensorView& view) override {
    cuda_check(cudaMemsetAsync(view.raw(), 0, view.bytes(), stream_.get()), "zero device memory");
  }

  void synchronize() override { stream_.synchronize(); }

 private:
  CudaStream stream_;
  StreamPlaces places_;
};

}  // namespace

int selected_cuda_device() {
  int index = 0;
  cuda_check(cudaGetDevice(&index), "ask for the selected device");
  return index;
}

std::unique_ptr<Queue> make_cuda_queue() { return std::make_unique<CudaQueue>(); }

std::byte* cuda_memory::allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  cuda_check(cudaMallocHost(&data, bytes), "allocate page-locked host memory");
  return static_cast<std::byte*>(data);
}

void cuda_memory::free_pinned(std::byte* data) noexcept {
  static_cast<void>(cudaFreeHost(data));
  static_cast<void>(cudaGetLastError());
}

}  // namespace jforge
