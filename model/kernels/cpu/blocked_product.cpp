/// Training products (after Goto and van de Geijn, "Anatomy of High-Performance Matrix
/// Multiplication", 2008): b is packed into panels of 16 columns, a thread takes a rectangle of c,
/// and blocks of rows pass over the panels.

#include <emmintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "model/kernels/cpu/blocked_product_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

namespace {

/// Words (kPerWord) of K packed at once.
constexpr std::int64_t kDepthBlock = 1024;
/// Words of b packed at once, for the last-level cache.
constexpr std::int64_t kBlockWords = 1 << 20;
/// Rows of a that stay in the second-level cache; twice as many if they are short.
constexpr std::int64_t kRowBlock = 96;
/// A multiple of every instruction set's tile rows.
constexpr std::int64_t kRowPanel = 24;
/// Words of b that stay cached while a's panels pass.
constexpr std::int64_t kNearWords = 1 << 17;
constexpr std::int64_t kCopiedWords = 8;
/// Elements between transposed rows, so that they do not compete for the same cache lines.
constexpr std::int64_t kRowGap = 32;
/// Units of a thread's part of c.
constexpr std::int64_t kRowUnit = kRowPanel;
constexpr std::int64_t kColumnUnit = 4 * kLanes;
/// Packing a column costs as much as multiplying it by this many rows.
constexpr double kPackingRows = 24;

struct Part {
  std::int64_t row_begin, row_end, column_begin, column_end;
};

struct Grid {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};

std::int64_t longest_part(std::int64_t total, std::int64_t parts, std::int64_t unit) {
  const std::int64_t units = (total + unit - 1) / unit;
  return std::min(total, (units + parts - 1) / parts * unit);
}

/// Minimises the slowest thread's time, packing included.
template <class Element>
Grid choose_grid(const BlockedProduct<Element>& product, std::int64_t threads) {
  Grid best;
  double best_cost = std::numeric_limits<double>::max();
  for (std::int64_t columns = 1; columns <= threads; ++columns) {
    const std::int64_t rows = threads / columns;
    const auto part_rows = static_cast<double>(longest_part(product.m, rows, kRowUnit));
    const auto part_columns = static_cast<double>(longest_part(product.n, columns, kColumnUnit));
    const double cost = part_rows * part_columns + kPackingRows * part_columns +
                        (product.transpose_a ? kPackingRows * part_rows : 0.0);
    if (cost < best_cost) {
      best_cost = cost;
      best = {rows, columns};
    }
  }
  return best;
}

template <class Element>
Part part_of(const BlockedProduct<Element>& product, const Grid& grid, std::int64_t index) {
  const std::int64_t row = index / grid.columns;
  const std::int64_t column = index % grid.columns;
  return {part_begin(product.m, grid.rows, row, kRowUnit),
          part_begin(product.m, grid.rows, row + 1, kRowUnit),
          part_begin(product.n, grid.columns, column, kColumnUnit),
          part_begin(product.n, grid.columns, column + 1, kColumnUnit)};
}

/// Copies one step of K, or interleaves two.
template <std::int64_t kCount>
void copy_words(const float* step, std::int64_t /*stride*/, float* to) {
  std::memcpy(to, step, kCount * sizeof(float));
}
template <std::int64_t kCount>
void copy_words(const BFloat16* step, std::int64_t stride, BFloat16* to) {
  static_assert(kCount % 8 == 0);
  for (std::int64_t i = 0; i < kCount; i += 8) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(step + i));
    const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(step + stride + i));
    auto* const target = reinterpret_cast<__m128i*>(to + 2 * i);
    _mm_storeu_si128(target, _mm_unpacklo_epi16(first, second));
    _mm_storeu_si128(target + 1, _mm_unpackhi_epi16(first, second));
  }
}

/// A word's missing steps are 0.
void copy_few(const float* step, std::int64_t /*stride*/, std::int64_t /*steps*/,
              std::int64_t count, float* to) {
  std::copy_n(step, count, to);
}
void copy_few(const BFloat16* step, std::int64_t stride, std::int64_t steps, std::int64_t count,
              BFloat16* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[2 * i] = steps > 0 ? step[i] : BFloat16{};
    to[2 * i + 1] = steps > 1 ? step[stride + i] : BFloat16{};
  }
}

template <class Element>
class PartProduct {
 public:
  PartProduct(const VectorKernels& vector, const BlockedProduct<Element>& product, const Part& part,
              float* memory)
      : vector_(vector),
        product_(product),
        part_(part),
        columns_(reinterpret_cast<Element*>(memory)),
        rows_(columns_ + kBlockWords * kPer) {}

  void run() {
    for (first_ = 0; first_ < product_.k; first_ += kDepthBlock * kPer) {
      depth_ = std::min(kDepthBlock * kPer, product_.k - first_);
      words_ = (depth_ + kPer - 1) / kPer;
      if (kPer == 2 && product_.transpose_a) {
        // Zeros make whole groups of both packed operands.
        words_ = (words_ + kGroupWords - 1) / kGroupWords * kGroupWords;
      }
      const std::int64_t width = kBlockWords / words_ / kColumnUnit * kColumnUnit;
      for (column_ = part_.column_begin; column_ < part_.column_end; column_ += width) {
        count_ = std::min(width, part_.column_end - column_);
        pack_columns();
        const std::int64_t block =
            kPer == 2 && words_ <= kDepthBlock / 2 ? 2 * kRowBlock : kRowBlock;
        for (std::int64_t row = part_.row_begin; row < part_.row_end; row += block) {
          const std::int64_t rows = std::min(block, part_.row_end - row);
          product_.transpose_a ? multiply_transposed(row, rows) : multiply(row, rows);
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kPer = kPerWord<Element>;
  static constexpr std::int64_t kGroupWords = kGroupSteps / kPer;

  void pack_columns() {
    if (!product_.transpose_b) {
      return copy_panels<kLanes>(product_.b + first_ * product_.n + column_, product_.n, count_,
                                 columns_);
    }
    const Element* const source = product_.b + column_ * product_.k + first_;
    if constexpr (kPer == 1) {
      vector_.transpose_keys(source, product_.k, count_, depth_, depth_, 0, columns_);
    } else {
      vector_.pair_columns(source, product_.k, count_, depth_, columns_);
    }
  }

  /// Packs into panels [count/kWidth][words][kWidth].
  template <std::int64_t kWidth>
  void copy_panels(const Element* source, std::int64_t stride, std::int64_t count,
                   Element* target) const {
    const std::int64_t full = depth_ / kPer;  // Words with all their steps.
    // Few steps at a time, so that each step is read sequentially.
    for (std::int64_t begin = 0; begin < words_; begin += kCopiedWords) {
      const std::int64_t end = std::min(begin + kCopiedWords, words_);
      for (std::int64_t column = 0; column < count; column += kWidth) {
        const std::int64_t width = std::min(kWidth, count - column);
        for (std::int64_t word = begin; word < end; ++word) {
          const Element* const from = source + word * kPer * stride + column;
          Element* const to = target + column * words_ * kPer + word * kWidth * kPer;
          if (width == kWidth && word < full) {
            for (std::int64_t step = 0; step < kPer; ++step) {
              __builtin_prefetch(from + (kCopiedWords * kPer + step) * stride);
            }
            copy_words<kWidth>(from, stride, to);
          } else {
            copy_few(from, stride, std::clamp(depth_ - word * kPer, std::int64_t{0}, kPer), width,
                     to);
          }
        }
      }
    }
  }

  void multiply_tile(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t count,
                     const Element* a, std::int64_t a_row, std::int64_t a_depth) const {
    const bool last = first_ + depth_ == product_.k;
    const std::int64_t at = row * product_.n + column_ + column;
    const Element* const b = columns_ + column * words_ * kPer;
    float* const c = product_.c == nullptr ? nullptr : product_.c + at;
    const float* const bias =
        last && product_.bias != nullptr ? product_.bias + column_ + column : nullptr;
    if constexpr (kPer == 1) {
      vector_.tile_product({.a = a,
                            .a_row = a_row,
                            .a_depth = a_depth,
                            .b = b,
                            .b_panel = words_ * kLanes,
                            .b_depth = kLanes,
                            .c = c,
                            .c_row = product_.n,
                            .rows = rows,
                            .columns = count,
                            .depth = depth_,
                            .accumulate = product_.accumulate || first_ > 0,
                            .bias = bias});
    } else {
      BFloat16* const rounded = product_.rounded == nullptr ? nullptr : product_.rounded + at;
      vector_.pair_product({.a = a,
                            .a_row = a_row,
                            .b = b,
                            .b_panel = words_ * kLanes * kPer,
                            .c = c,
                            .rounded = last ? rounded : nullptr,
                            .c_row = product_.n,
                            .rows = rows,
                            .columns = count,
                            .depth = depth_,
                            .whole_groups = product_.transpose_a,
                            .accumulate = first_ > 0 || (product_.accumulate && rounded == nullptr),
                            .start = first_ == 0 && product_.accumulate ? rounded : nullptr,
                            .bias = bias});
    }
  }

  void multiply(std::int64_t row, std::int64_t rows) const {
    multiply_tile(row, rows, 0, count_, product_.a + row * product_.a_row + first_, product_.a_row,
                  1);
  }

  void multiply_transposed(std::int64_t row, std::int64_t rows) const {
    const Element* const source = product_.a + first_ * product_.a_row + row;
    // So few columns stay cached while rows pass, which then write whole lines of c.
    const bool near = words_ * count_ <= kNearWords;
    if constexpr (kPer == 2) {
      const std::int64_t stride = words_ * kPer + kRowGap;
      vector_.transpose(source, product_.a_row, depth_, rows, rows_, stride);
      for (std::int64_t i = 0; i < rows; ++i) {
        std::fill(rows_ + i * stride + depth_, rows_ + i * stride + words_ * kPer, BFloat16{});
      }
      const std::int64_t most = near ? 2 * kRowPanel : rows;
      for (std::int64_t done = 0; done < rows; done += most) {
        multiply_tile(row + done, std::min(most, rows - done), 0, count_, rows_ + done * stride,
                      stride, 1);
      }
    } else {
      copy_panels<kRowPanel>(source, product_.a_row, rows, rows_);
      const std::int64_t width = near ? count_ : kColumnUnit;
      for (std::int64_t column = 0; column < count_; column += width) {
        for (std::int64_t done = 0; done < rows; done += kRowPanel) {
          multiply_tile(row + done, std::min(kRowPanel, rows - done), column,
                        std::min(width, count_ - column), rows_ + done * words_, 1, kRowPanel);
        }
      }
    }
  }

  const VectorKernels& vector_;
  const BlockedProduct<Element>& product_;
  const Part& part_;
  Element* columns_;        ///< Packed b: [panels][words][16] words.
  Element* rows_;           ///< Transposed a: [panels][words][24], or rows of bfloat16.
  std::int64_t first_ = 0;  ///< The current block's first step.
  std::int64_t depth_ = 0;
  std::int64_t words_ = 0;  ///< Its words of K.
  std::int64_t column_ = 0;
  std::int64_t count_ = 0;
};

template <class Element>
void without_depth(const BlockedProduct<Element>& product) {
  for (std::int64_t row = 0; row < product.m; ++row) {
    for (std::int64_t i = row * product.n; i < (row + 1) * product.n; ++i) {
      float sum = 0;
      if (product.accumulate) {
        sum = product.rounded != nullptr ? to_float(product.rounded[i]) : product.c[i];
      }
      if (product.bias != nullptr) {
        sum += product.bias[i - row * product.n];
      }
      if (product.rounded != nullptr) {
        product.rounded[i] = to_bfloat16(sum);
      } else {
        product.c[i] = sum;
      }
    }
  }
}

template <class Element>
void any_product(const VectorKernels& vector, const BlockedProduct<Element>& product,
                 std::span<Scratch> scratch) {
  if (product.k == 0) {
    return without_depth(product);
  }
  const double work = static_cast<double>(product.m) * static_cast<double>(product.n) *
                      static_cast<double>(product.k);
  const auto available = static_cast<std::int64_t>(scratch.size());
  const Grid grid = choose_grid(product, work < kParallelWork ? 1 : available);
  const std::int64_t parts = grid.rows * grid.columns;
  // All threads or one: OpenMP allocates a new team when the number changes.
  on_threads(parts > 1 ? available : 1, [&](std::int64_t threads, std::int64_t thread) {
    for (std::int64_t i = thread; i < parts; i += threads) {
      const Part part = part_of(product, grid, i);
      if (part.row_begin < part.row_end && part.column_begin < part.column_end) {
        float* memory =
            scratch[static_cast<std::size_t>(thread)].at_least(product_scratch_floats());
        PartProduct<Element>(vector, product, part, memory).run();
      }
    }
  });
}

}  // namespace

std::int64_t product_scratch_floats() noexcept {
  return kBlockWords + (kDepthBlock + kRowGap) * kRowBlock;
}

bool keeps_sums(const BlockedProduct<BFloat16>& product) noexcept {
  return product.rounded != nullptr && product.k > kDepthBlock * kPerWord<BFloat16>;
}

void blocked_product(const VectorKernels& vector, const BlockedProduct<float>& product,
                     std::span<Scratch> scratch) {
  any_product(vector, product, scratch);
}

void blocked_product(const VectorKernels& vector, const BlockedProduct<BFloat16>& product,
                     std::span<Scratch> scratch) {
  any_product(vector, product, scratch);
}

}  // namespace jforge
