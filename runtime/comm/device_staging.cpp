#include <algorithm>

#include "runtime/comm/collectives.h"
#include "runtime/comm/device_staging_internal.h"
#include "runtime/comm/transport_internal.h"
#include "runtime/tensor/cuda_memory.h"
#include "runtime/tensor/cuda_queue.h"

namespace jforge::detail {

namespace {

template <class T>
std::span<T> span_of(const TensorView& view) {
  return view.span<T>();
}

/// Calls `sum` with the element type of `view`.
template <class Sum>
void of_type(const TensorView& view, const Sum& sum) {
  if (view.dtype() == DType::bfloat16) {
    sum(span_of<BFloat16>(view));
  } else {
    sum(span_of<float>(view));
  }
}

}  // namespace

DeviceStaging::DeviceStaging(MemoryAccount& account) : copies_(make_cuda_queue()) {
  for (Buffer& place : places_) {
    place = Buffer(kMessageBytes, account, HostMemory::page_locked, MemoryUse::staging);
  }
}

DeviceStaging::~DeviceStaging() {
  try {
    copies_->synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): who needed the copies has heard of it
  }
}

/// `exchange(piece)` gets the blocks of a piece, concatenated in host memory.
template <class Exchange>
void DeviceStaging::in_pieces(std::int64_t blocks, std::int64_t length, DType dtype,
                              const Side<ConstTensorView>& from, const Side<TensorView>& to,
                              const Exchange& exchange) {
  if (length == 0) {
    return;
  }
  const auto room = static_cast<std::int64_t>(kMessageBytes / dtype_bytes(dtype));
  expect(blocks <= room, "more ranks than a message has elements");
  const std::int64_t pieces = (length + room / blocks - 1) / (room / blocks);
  const std::int64_t step = (length + pieces - 1) / pieces;
  const auto piece_at = [&](std::int64_t piece) {
    const Buffer& place = places_[static_cast<std::size_t>(piece) % kPlaces];
    const std::int64_t size = std::min(step, length - piece * step);
    return TensorView(place.data(), dtype, {blocks * size});
  };
  // Copies run in order, so a buffer is refilled only after its last piece has left.
  const auto copy_blocks = [&](std::int64_t piece, const auto& side, const auto& copy) {
    const TensorView host = piece_at(piece);
    const std::int64_t size = host.elements() / blocks;
    for (std::int64_t block = 0; block < side.count; ++block) {
      const std::int64_t begin = block * length + piece * step;
      const std::int64_t in_host = (side.first + block) * size;
      copy(side.tensor.rows(begin, begin + size), host.rows(in_host, in_host + size));
    }
  };
  const auto fetch = [&](std::int64_t piece) {
    copy_blocks(piece, from, [&](const ConstTensorView& device, const TensorView& host) {
      copies_->copy(device, host);
    });
    return copies_->record();
  };
  Event fetched = fetch(0);
  for (std::int64_t piece = 0; piece * step < length; ++piece) {
    const Event here = fetched;
    if ((piece + 1) * step < length) {
      fetched = fetch(piece + 1);
    }
    here.wait();
    exchange(piece_at(piece));
    copy_blocks(piece, to, [&](const TensorView& device, const TensorView& host) {
      copies_->copy(host, device);
    });
  }
  copies_->synchronize();
}

void DeviceStaging::all_reduce_sum(const Communicator& comm, const TensorView& values) {
  const std::int64_t blocks = values.elements() % comm.size() == 0 ? comm.size() : 1;
  in_pieces(blocks, values.elements() / blocks, values.dtype(), {values, 0, blocks},
            {values, 0, blocks}, [&](const TensorView& piece) {
              of_type(piece,
                      [&]<class T>(std::span<T> all) { jforge::all_reduce_sum<T>(comm, all); });
            });
}

void DeviceStaging::reduce_scatter_sum(const Communicator& comm, const ConstTensorView& input,
                                       const TensorView& output) {
  in_pieces(comm.size(), output.elements(), output.dtype(), {input, 0, comm.size()},
            {output, comm.rank(), 1}, [&](const TensorView& piece) {
              of_type(piece, [&]<class T>(std::span<T> all) {
                const std::size_t size = all.size() / static_cast<std::size_t>(comm.size());
                jforge::reduce_scatter_sum<T>(
                    comm, all, all.subspan(static_cast<std::size_t>(comm.rank()) * size, size));
              });
            });
}

void DeviceStaging::all_gather(const Communicator& comm, const ConstTensorView& input,
                               const TensorView& output) {
  in_pieces(comm.size(), input.elements(), input.dtype(), {input, comm.rank(), 1},
            {output, 0, comm.size()}, [&](const TensorView& piece) {
              const std::span<std::uint8_t> all = tensor_bytes(piece);
              const std::size_t size = all.size() / static_cast<std::size_t>(comm.size());
              jforge::all_gather<std::uint8_t>(
                  comm, all.subspan(static_cast<std::size_t>(comm.rank()) * size, size), all);
            });
}

void DeviceStaging::broadcast(const Communicator& comm, const TensorView& values, Rank root) {
  const bool gives = comm.rank() == root;
  in_pieces(1, values.elements(), values.dtype(), {values, 0, gives ? 1 : 0},
            {values, 0, gives ? 0 : 1}, [&](const TensorView& piece) {
              jforge::broadcast<std::uint8_t>(comm, tensor_bytes(piece), root);
            });
}

}  // namespace jforge::detail
