#pragma once

#include "model/kernels/cuda/cuda_packed_plan_internal.h"
#include "model/kernels/cuda/float_elements.h"

namespace jforge {

inline constexpr std::int64_t kRowGroupLanes = 256;

/// table[places[r]] += source[r] for rows of `columns` elements. Each block owns a place of the
/// table, adds its rows in order and rounds once. Launch one block per group.
template <class Place>
struct AddRowGroups {
  CudaPackedPlan::RowGroups groups;
  const Place* places;
  FloatSource source;
  FloatTarget table;
  std::int64_t columns;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    group.each([&](std::int64_t lane) {
      const std::int64_t begin = groups.begins[block];
      const std::int64_t end = groups.begins[block + 1];
      const std::int64_t place = places[groups.order[begin]] * columns;
      for (std::int64_t column = lane; column < columns; column += group.lanes()) {
        float sum = table[place + column];
        for (std::int64_t i = begin; i < end; ++i) {
          sum += source[groups.order[i] * columns + column];
        }
        table.set(place + column, sum);
      }
    });
  }
};

}  // namespace jforge
