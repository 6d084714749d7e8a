#pragma once

/// Places in the order of a stream, as events that other streams wait for without the host.

#include <memory>
#include <vector>

#include "runtime/device/queue.h"
#include "runtime/tensor/cuda_handles.h"

namespace jforge {

/// A place in a stream's order.
class StreamPlace : public Event::Source {
 public:
  [[nodiscard]] bool reached(std::uint64_t /*place*/) const override { return event.reached(); }
  void wait(std::uint64_t /*place*/) const override { event.wait(); }

  CudaEvent event;
};

/// Places that are used again when no event is of them any more. One thread at a time.
class StreamPlaces {
 public:
  [[nodiscard]] Event record(const CudaStream& stream) {
    const std::shared_ptr<StreamPlace>& place = free_place();
    place->event.record(stream);
    return Event(place);
  }

 private:
  const std::shared_ptr<StreamPlace>& free_place() {
    for (const std::shared_ptr<StreamPlace>& place : places_) {
      if (place.use_count() == 1) {
        return place;
      }
    }
    return places_.emplace_back(std::make_shared<StreamPlace>());
  }

  std::vector<std::shared_ptr<StreamPlace>> places_;
};

/// What `stream` is given from now on begins after `event`. Another stream's place orders the two
/// on the device; what happens on the host is waited for there.
inline void wait_in_stream(const Event& event, const CudaStream& stream) {
  if (const auto* place = dynamic_cast<const StreamPlace*>(event.source())) {
    place->event.before(stream);
  } else {
    event.wait();
  }
}

}  // namespace jforge
