#pragma once

/// A stream as a queue, with places in its order that other streams wait for on the device.

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/device/queue.h"
#include "runtime/error.h"
#include "runtime/tensor/cuda_handles.h"

namespace jforge {

class StreamPlace : public Event::Source {
 public:
  [[nodiscard]] bool reached(std::uint64_t /*place*/) const override { return event.reached(); }
  void wait(std::uint64_t /*place*/) const override { event.wait(); }

  CudaEvent event;
};

/// Reuses places that no event refers to; makes new ones from `arguments`. Not thread-safe.
template <class Place = StreamPlace>
class StreamPlaces {
 public:
  template <class... Arguments>
  [[nodiscard]] Event record(const CudaStream& stream, const Arguments&... arguments) {
    const auto free = std::ranges::find_if(
        places_, [](const std::shared_ptr<Place>& place) { return place.use_count() == 1; });
    const std::shared_ptr<Place>& place =
        free != places_.end() ? *free : places_.emplace_back(std::make_shared<Place>(arguments...));
    place->event.record(stream);
    return Event(place);
  }

 private:
  std::vector<std::shared_ptr<Place>> places_;
};

/// Later work of `stream` begins after `event`: ordered on the device if it is another stream's
/// place, else by waiting on the host.
inline void wait_in_stream(const Event& event, const CudaStream& stream) {
  if (const auto* place = dynamic_cast<const StreamPlace*>(event.source())) {
    place->event.before(stream);
  } else {
    event.wait();
  }
}

class CudaQueue : public Queue {
 public:
  explicit CudaQueue(StreamPriority priority = StreamPriority::normal) : stream_(priority) {}
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
  [[nodiscard]] const CudaStream& stream() const noexcept { return stream_; }

 private:
  CudaStream stream_;
  StreamPlaces<> places_;
};

}  // namespace jforge
