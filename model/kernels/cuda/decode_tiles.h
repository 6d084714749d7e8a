#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "model/kernels/cuda/block_group.cuh"

namespace jforge {

/// Rows × columns of a product in shared memory, complete after a barrier.
struct ProductTile {
  const float* values;
  std::int64_t stride;
  std::int64_t first_row;
  std::int64_t rows;
  std::int64_t first_column;
  std::int64_t columns;
};

[[nodiscard]] __device__ inline std::int64_t of_tile(std::int64_t left, std::int64_t most) {
  return left < most ? left : most;
}

/// Products in one launch: queries, keys and values; gate and up.
inline constexpr std::size_t kProductsTogether = 3;

/// `finish` takes a product's tiles.
template <class Product, class Finish>
struct Together {
  Product products[kProductsTogether];
  Finish finish[kProductsTogether];
  std::int64_t ends[kProductsTogether];  ///< End of each product's blocks.

  [[nodiscard]] static std::int64_t shared_bytes() { return Product::shared_bytes(); }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    std::size_t own = 0;
    std::int64_t begin = 0;
    for (std::size_t i = 1; i < kProductsTogether; ++i) {
      if (block >= ends[i - 1]) {
        own = i;
        begin = ends[i - 1];
      }
    }
    const ProductTile tile = chosen(products, own).multiply(group, block - begin);
    chosen(finish, own)(group, tile);
  }

  /// all[own] without an index, which would move all to local memory.
  template <class T>
  [[nodiscard]] __device__ static T chosen(const T (&all)[kProductsTogether], std::size_t own) {
    T found = all[0];
    for (std::size_t i = 1; i < kProductsTogether; ++i) {
      if (own >= i) {
        found = all[i];
      }
    }
    return found;
  }
};

/// Takes 1 to kProductsTogether outputs.
template <class Queue, class Outputs, class ProductOf>
void launch_together(Queue& queue, std::int64_t lanes, const Outputs& outputs,
                     const ProductOf& product_of, const char* what) {
  using Finish = std::remove_cvref_t<decltype(outputs.front().finish)>;
  Together<decltype(product_of(outputs.front())), Finish> together;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < kProductsTogether; ++i) {
    const auto& output = outputs[i < outputs.size() ? i : 0];
    together.products[i] = product_of(output);
    together.finish[i] = output.finish;
    end += i < outputs.size() ? together.products[i].blocks() : 0;
    together.ends[i] = end;
  }
  queue.launch(end, lanes, together, what);
}

}  // namespace jforge
