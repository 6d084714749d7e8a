#pragma once

/// What the two kinds of decoding products leave of a tile for what finishes it.

#include <cstdint>

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

}  // namespace jforge
