#pragma once

/// target[column] += Σ over rows of term(row, column), in an order that depends only on the shape.

#include "model/kernels/cuda/device_queue.cuh"

namespace jforge {

inline constexpr std::int64_t kColumnLanes = 64;
inline constexpr std::int64_t kRowRun = 128;

/// partials[run][column] = Σ over the run's rows.
template <class Term>
struct ColumnPartials {
  Term term;
  std::int64_t rows;
  std::int64_t columns;
  float* partials;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t column_blocks() const {
    return (columns + kColumnLanes - 1) / kColumnLanes;
  }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    const std::int64_t run = block / column_blocks();
    const std::int64_t last = (run + 1) * kRowRun;
    const std::int64_t end = last < rows ? last : rows;
    group.each([&](std::int64_t lane) {
      const std::int64_t column = block % column_blocks() * kColumnLanes + lane;
      if (column >= columns) {
        return;
      }
      float sum = 0;
      for (std::int64_t row = run * kRowRun; row < end; ++row) {
        sum += term(row, column);
      }
      partials[run * columns + column] = sum;
    });
  }
};

struct AddRuns {
  const float* partials;
  std::int64_t runs;
  std::int64_t columns;
  float* target;
  __device__ void operator()(std::int64_t column) const {
    float sum = 0;
    for (std::int64_t run = 0; run < runs; ++run) {
      sum += partials[run * columns + column];
    }
    target[column] += sum;
  }
};

template <class Term>
void add_column_sums(DeviceQueue& queue, DeviceScratch& scratch, std::int64_t rows,
                     std::int64_t columns, const Term& term, float* target, const char* what) {
  if (rows == 0) {
    return;
  }
  const std::int64_t runs = divide_up(rows, kRowRun);
  const ColumnPartials<Term> body{term, rows, columns, scratch.at_least<float>(runs * columns)};
  queue.launch(runs * body.column_blocks(), kColumnLanes, body, what);
  launch_elements(queue, columns, AddRuns{body.partials, runs, columns, target}, what);
}

}  // namespace jforge
