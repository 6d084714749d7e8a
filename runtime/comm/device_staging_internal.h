#pragma once

/// Collectives over tensors of a device by host memory.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/comm/mpi_session.h"
#include "runtime/device/queue.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge::detail {

/// A tensor passes through two places of page-locked memory in pieces of about kMessageBytes: one
/// comes from the device while the piece before travels and the one before that goes back. A piece
/// holds the same part of every rank's block, so that sums are added in the order that
/// collectives.h states for the whole. Every call returns when its results lie on the device. Used
/// by one thread at a time, which need not be the one that makes it.
class DeviceStaging {
 public:
  /// For the device that the calling thread has selected.
  explicit DeviceStaging(MemoryAccount& account);
  /// Waits for what is under way.
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  /// As Collectives' functions of these names, on a thread that has selected the same device.
  void all_reduce_sum(const Communicator& comm, const TensorView& values);
  void reduce_scatter_sum(const Communicator& comm, const ConstTensorView& input,
                          const TensorView& output);
  void all_gather(const Communicator& comm, const ConstTensorView& input, const TensorView& output);
  void broadcast(const Communicator& comm, const TensorView& values, Rank root);

 private:
  /// What of a piece's blocks comes from the device, or goes back: blocks [first, first + count) of
  /// it, which are all that `tensor` holds.
  template <class View>
  struct Side {
    View tensor;
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  template <class Exchange>
  void in_pieces(std::int64_t blocks, std::int64_t length, DType dtype,
                 const Side<ConstTensorView>& from, const Side<TensorView>& to,
                 const Exchange& exchange);

  static constexpr std::size_t kPlaces = 2;
  std::unique_ptr<Queue> copies_;
  std::array<Buffer, kPlaces> places_;
};

}  // namespace jforge::detail
