#pragma once

/// Collectives over device tensors through host memory.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/comm/mpi_session.h"
#include "runtime/device/queue.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge::detail {

[[nodiscard]] inline std::span<std::uint8_t> tensor_bytes(const TensorView& view) {
  return {static_cast<std::uint8_t*>(view.raw()), view.bytes()};
}
[[nodiscard]] inline std::span<const std::uint8_t> tensor_bytes(const ConstTensorView& view) {
  return {static_cast<const std::uint8_t*>(view.raw()), view.bytes()};
}

/// Pipelines pieces of about kMessageBytes through two page-locked buffers. A piece holds the same
/// part of every rank's block, so sums keep the order stated in collectives.h. Calls return when
/// the results are on the device. For one thread at a time.
class DeviceStaging {
 public:
  /// For the device that the calling thread has selected.
  explicit DeviceStaging(MemoryAccount& account);
  /// Waits for running copies.
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  /// As in Collectives. Requires: the calling thread has selected the same device.
  void all_reduce_sum(const Communicator& comm, const TensorView& values);
  void reduce_scatter_sum(const Communicator& comm, const ConstTensorView& input,
                          const TensorView& output);
  void all_gather(const Communicator& comm, const ConstTensorView& input, const TensorView& output);
  void broadcast(const Communicator& comm, const TensorView& values, Rank root);

 private:
  /// Blocks [first, first + count) of a piece: all that `tensor` holds.
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
