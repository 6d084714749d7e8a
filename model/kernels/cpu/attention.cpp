/// Attention forward, decoding and packed. A row's bits depend only on its query and its keys in
/// logical order (ascending position): key tiles of 64 begin at multiples of 64; scores add over D
/// in order, the softmax runs tile by tile, values add key by key.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/kernels/cpu/cpu_kernel_set_internal.h"
#include "model/kernels/cpu/parallel_internal.h"

namespace jforge {

namespace {

/// Rows whose common keys are accumulated together.
constexpr std::int64_t kCausalRows = 8;

std::int64_t block_rows(std::int64_t group) {
  return std::max<std::int64_t>(kCausalRows, kBlockQueries / group);
}

struct AttentionScratch {
  AttentionScratch(float* memory, const AttentionShape& shape, std::int64_t count)
      : keys(memory),
        values(keys + kKeyTile * shape.padded_dim()),
        queries(values + kKeyTile * shape.padded_dim()),
        sums(queries + count * shape.padded_dim()),
        scores(sums + count * shape.padded_dim()),
        states(reinterpret_cast<SoftmaxState*>(scores + count * kKeyTile)) {}
  static std::int64_t floats(const AttentionShape& shape, std::int64_t count) {
    return 2 * kKeyTile * shape.padded_dim() + 2 * count * shape.padded_dim() + count * kKeyTile +
           count * static_cast<std::int64_t>(sizeof(SoftmaxState) / sizeof(float));
  }
  float* keys;     ///< [4][dim][16], if the cache does not hold them so.
  float* values;   ///< [64][padded_dim], only if D is not a multiple of 16.
  float* queries;  ///< [queries][padded_dim], scaled by 1/√D.
  float* sums;     ///< [queries][padded_dim]
  float* scores;   ///< [queries][64]
  SoftmaxState* states;
};

struct TilePiece {
  const float* keys = nullptr;  ///< Packed: rows; decoding: the page's panels [4][dim][16].
  std::int64_t row = 0;         ///< Decoding: first row in the page.
  const float* values = nullptr;
  std::int64_t count = 0;
};

/// A tile is cut between the runs; the second run's part may cross a page end.
constexpr int kMostPieces = 3;
static_assert(kKeyTile == kCachePageRows);

/// Copies columns of panels [·, depth, 16].
void copy_columns(const float* panels, std::int64_t first, std::int64_t count, std::int64_t depth,
                  float* target, std::int64_t to) {
  const auto place = [depth](std::int64_t column) {
    return column / kLanes * depth * kLanes + column % kLanes;
  };
  while (count > 0) {
    const std::int64_t lanes = std::min({count, kLanes - first % kLanes, kLanes - to % kLanes});
    for (std::int64_t d = 0; d < depth; ++d) {
      std::copy_n(panels + place(first) + d * kLanes, lanes, target + place(to) + d * kLanes);
    }
    first += lanes;
    to += lanes;
    count -= lanes;
  }
}

/// Panels [4, D, 16].
float* page_keys(const TensorView& keys, std::int64_t page, std::int64_t head) {
  return keys.data<float>() + (page * keys.dim(2) + head) * kCachePageRows * keys.dim(3);
}

/// Rows at distance Hkv · D.
float* page_values(const TensorView& values, std::int64_t page, std::int64_t row,
                   std::int64_t head) {
  return values.data<float>() +
         ((page * kCachePageRows + row) * values.dim(2) + head) * values.dim(3);
}

class ForwardBlock {
 public:
  ForwardBlock(const VectorKernels& vector, const AttentionShape& shape, const ConstTensorView& q,
               const TensorView& output, const QueryBlock& block, float* memory)
      : vector_(vector),
        shape_(shape),
        output_(output),
        block_(block),
        group_(shape.group()),
        padded_(shape.padded_dim()),
        stride_(shape.key_stride()),
        queries_(block.rows * shape.group()),
        scratch_(memory, shape, queries_) {
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
    for (std::int64_t i = 0; i < queries_; ++i) {
      float* query = scratch_.queries + i * padded_;
      copy_floats(vector, q, offset(i), shape.dim, query);
      std::fill(query + shape.dim, query + padded_, 0.0F);
      vector.scale(query, scale, shape.dim);
      scratch_.states[i] =
          SoftmaxState{.maximum = -std::numeric_limits<float>::infinity(), .sums = {}};
    }
    std::fill(scratch_.sums, scratch_.sums + queries_ * padded_, 0.0F);
  }

  void visit_keys() {
    std::int64_t longest = 0;
    for (std::int64_t row = 0; row < block_.rows; ++row) {
      longest = std::max(longest, block_.visible(row));
    }
    for (begin_ = 0; begin_ < longest; begin_ += kKeyTile) {
      size_ = std::min(kKeyTile, longest - begin_);
      load_tile();
      score_tile();
      for (std::int64_t first = 0; first < block_.rows; first += kCausalRows) {
        accumulate_rows(first, std::min(kCausalRows, block_.rows - first));
      }
    }
  }

  void write_output() {
    for (std::int64_t i = 0; i < queries_; ++i) {
      const float sum = vector_.softmax_sum(scratch_.states[i]);
      float* const values = scratch_.sums + i * padded_;
      float* const result = room_for(output_, offset(i), values);
      vector_.divide(values, sum, result, shape_.dim);
      round_floats(vector_, result, output_, offset(i), shape_.dim);
      if (block_.log_sum_exp != nullptr) {
        block_.log_sum_exp[i / group_ * shape_.heads + i % group_] =
            scratch_.states[i].maximum + std::log(sum);
      }
    }
  }

 private:
  /// Returns the begin of query i in q and output.
  [[nodiscard]] std::int64_t offset(std::int64_t i) const {
    return block_.first + i / group_ * shape_.query_stride() + i % group_ * shape_.dim;
  }
  /// Keys of the tile that a row sees.
  [[nodiscard]] std::int64_t seen(std::int64_t row) const {
    return std::clamp<std::int64_t>(block_.visible(row) - begin_, 0, size_);
  }
  [[nodiscard]] bool copies_values() const { return shape_.dim != padded_; }

  void load_tile() {
    cut_tile();
    keys_ = tile_keys();
    std::int64_t column = 0;
    for (int i = 0; i < num_pieces_ && copies_values(); ++i) {
      for (std::int64_t key = 0; key < pieces_[i].count; ++key, ++column) {
        float* value = scratch_.values + column * padded_;
        std::copy_n(pieces_[i].values + key * stride_, shape_.dim, value);
        std::fill(value + shape_.dim, value + padded_, 0.0F);
      }
    }
  }

  void cut_tile() {
    const KeyRuns& runs = block_.runs;
    num_pieces_ = 0;
    std::int64_t offset = 0;
    for (int run = 0; run < 2; ++run) {
      std::int64_t from = std::max(begin_, offset) - offset;
      const std::int64_t to = std::min(begin_ + size_ - offset, runs.counts[run]);
      while (from < to) {
        TilePiece& piece = pieces_[num_pieces_++];
        piece = runs.pages == nullptr ? TilePiece{.keys = runs.keys[run] + from * stride_,
                                                  .values = runs.values[run] + from * stride_,
                                                  .count = to - from}
                                      : page_piece(runs.rows[run] + from, to - from);
        from += piece.count;
      }
      offset += runs.counts[run];
    }
  }

  /// Ends at the page's end.
  [[nodiscard]] TilePiece page_piece(std::int64_t slot_row, std::int64_t count) const {
    const KeyRuns& runs = block_.runs;
    const std::int64_t page = runs.pages[slot_row / kCachePageRows];
    const std::int64_t row = slot_row % kCachePageRows;
    return {.keys = page_keys(runs.cache->keys, page, runs.head),
            .row = row,
            .values = page_values(runs.cache->values, page, row, runs.head),
            .count = std::min(count, kCachePageRows - row)};
  }

  /// Returns panels [4][dim][16]: the cache's or assembled ones.
  const float* tile_keys() {
    const bool cached = block_.runs.pages != nullptr;
    if (cached && num_pieces_ == 1 && pieces_[0].row % kLanes == 0) {
      return pieces_[0].keys + pieces_[0].row * shape_.dim;
    }
    std::int64_t column = 0;
    for (int i = 0; i < num_pieces_; ++i) {
      const TilePiece& piece = pieces_[i];
      if (cached) {
        copy_columns(piece.keys, piece.row, piece.count, shape_.dim, scratch_.keys, column);
      } else {
        vector_.transpose_keys(piece.keys, stride_, piece.count, shape_.dim, shape_.dim, column,
                               scratch_.keys);
      }
      column += piece.count;
    }
    return scratch_.keys;
  }

  void score_tile() {
    vector_.tile_product({.a = scratch_.queries,
                          .a_row = padded_,
                          .b = keys_,
                          .b_panel = shape_.dim * kLanes,
                          .b_depth = kLanes,
                          .c = scratch_.scores,
                          .c_row = kKeyTile,
                          .rows = queries_,
                          .columns = (size_ + kLanes - 1) / kLanes * kLanes,
                          .depth = shape_.dim});
    for (std::int64_t i = 0; i < queries_; ++i) {
      const std::int64_t keys = seen(i / group_);
      if (keys == 0) {
        continue;
      }
      const float shrink =
          vector_.softmax_step(scratch_.scores + i * kKeyTile, keys, scratch_.states[i]);
      if (shrink != 1.0F) {
        vector_.scale(scratch_.sums + i * padded_, shrink, padded_);
      }
    }
  }

  void accumulate_rows(std::int64_t first, std::int64_t rows) {
    std::int64_t common = size_;
    for (std::int64_t row = first; row < first + rows; ++row) {
      common = std::min(common, seen(row));
    }
    accumulate(first, rows, 0, common);
    // Hidden keys are not even multiplied by zero: their memory may hold anything.
    for (std::int64_t row = first; row < first + rows; ++row) {
      accumulate(row, 1, common, seen(row));
    }
  }

  void accumulate(std::int64_t first, std::int64_t rows, std::int64_t from, std::int64_t to) {
    std::int64_t piece_begin = 0;
    for (int i = 0; i < num_pieces_; ++i) {
      const std::int64_t key = std::max(from, piece_begin);
      const std::int64_t end = std::min(to, piece_begin + pieces_[i].count);
      if (key < end) {
        vector_.tile_product({.a = scratch_.scores + first * group_ * kKeyTile + key,
                              .a_row = kKeyTile,
                              .b = copies_values()
                                       ? scratch_.values + key * padded_
                                       : pieces_[i].values + (key - piece_begin) * stride_,
                              .b_panel = kLanes,
                              .b_depth = copies_values() ? padded_ : stride_,
                              .c = scratch_.sums + first * group_ * padded_,
                              .c_row = padded_,
                              .rows = rows * group_,
                              .columns = padded_,
                              .depth = end - key,
                              .accumulate = true});
      }
      piece_begin += pieces_[i].count;
    }
  }

  const VectorKernels& vector_;
  const AttentionShape& shape_;
  const TensorView& output_;
  const QueryBlock& block_;
  std::int64_t group_;
  std::int64_t padded_;
  std::int64_t stride_;
  std::int64_t queries_;
  AttentionScratch scratch_;
  std::int64_t begin_ = 0;  ///< In logical order.
  std::int64_t size_ = 0;
  const float* keys_ = nullptr;
  TilePiece pieces_[kMostPieces];
  int num_pieces_ = 0;
};

}  // namespace

void CpuKernelSet::attend_all(const AttentionShape& shape, const ConstTensorView& q,
                              const TensorView& output, std::span<const QueryBlock> blocks,
                              double work) {
  const std::int64_t queries = block_rows(shape.group()) * shape.group();
  const std::int64_t floats = AttentionScratch::floats(shape, queries);
  reserve_threads(floats);
  const auto count = static_cast<std::int64_t>(blocks.size());
  parallel_for_dynamic(work > kParallelDecoding && count > 1, count, [&](std::int64_t i) {
    Scratch& scratch = thread_scratch_[static_cast<std::size_t>(omp_get_thread_num())];
    ForwardBlock block(vector_, shape, q, output, blocks[static_cast<std::size_t>(i)],
                       scratch.at_least(floats));
    block.visit_keys();
    block.write_output();
  });
}

AttentionShape check_attention(const ConstTensorView& q, std::int64_t key_heads) {
  expect(q.shape().rank() == 3, "attention: q must be [T, H, D]");
  const AttentionShape shape{.heads = q.dim(1), .key_heads = key_heads, .dim = q.dim(2)};
  expect(key_heads > 0 && shape.heads % key_heads == 0,
         "attention: query heads must be a multiple of key heads");
  return shape;
}

void CpuKernelSet::packed_attention(const PackedPlan& plan, ConstTensorView q, ConstTensorView k,
                                    ConstTensorView v, TensorView output, TensorView log_sum_exp) {
  check_packed_attention(plan, q, k, v, output, log_sum_exp);
  const AttentionShape shape = check_attention(q, k.dim(1));
  expect_floating(q, "attention q");
  expect_floating(k, "attention k");
  expect_floating(v, "attention v");
  expect_floating(output, "attention output");
  const float* keys = all_floats(k, attention_keys_);
  const float* values = all_floats(v, attention_values_);
  float* sums = log_sum_exp.data<float>();
  blocks_.clear();
  double work = 0;
  const std::int64_t step = block_rows(shape.group());
  for (const AttentionSegment& segment : plan.batch().layout.segments) {
    for (std::int64_t row = segment.row_begin; row < segment.row_end; row += step) {
      const std::int64_t end = std::min(row + step, segment.row_end);
      const std::int64_t prefix = segment.prefix_end - segment.prefix_begin;
      for (std::int64_t head = 0; head < shape.key_heads; ++head) {
        const std::int64_t first = segment.prefix_begin * shape.key_stride() + head * shape.dim;
        const std::int64_t second = segment.causal_begin * shape.key_stride() + head * shape.dim;
        const std::int64_t at = row * shape.query_stride() + head * shape.group() * shape.dim;
        blocks_.push_back({.first = at,
                           .log_sum_exp = sums + row * shape.heads + head * shape.group(),
                           .rows = end - row,
                           .first_visible = prefix + row - segment.causal_begin + 1,
                           .places = nullptr,
                           .runs = {.keys = {keys + first, keys + second},
                                    .values = {values + first, values + second},
                                    .counts = {prefix, end - segment.causal_begin}}});
      }
      work += static_cast<double>((end - row) * (prefix + end - segment.causal_begin) *
                                  shape.query_stride());
    }
  }
  attend_all(shape, q, output, blocks_, work);
}

void CpuKernelSet::cache_write(const DecodePlan& plan, ConstTensorView k, ConstTensorView v,
                               LayerCache cache) {
  check_cache_write(plan, k, v, cache);
  const std::span<const CacheRow> rows = plan.places(DecodeRows::all);
  const PageTable& table = plan.batch().table;
  const Shape& shape = cache.keys.shape();
  const std::int64_t width = shape[2] * shape[3];
  const float* new_keys = k.data<float>();
  const float* new_values = v.data<float>();
  for (std::size_t i = 0; i < rows.size();) {
    // Adjacent rows of a page are transposed together.
    const std::int64_t first = table.place(rows[i].slot, rows[i].row());
    const std::int64_t page = first / kCachePageRows;
    const std::int64_t row = first % kCachePageRows;
    std::int64_t count = 1;
    for (std::size_t next = i + 1; next < rows.size() && row + count < kCachePageRows &&
                                   table.place(rows[next].slot, rows[next].row()) == first + count;
         ++next) {
      ++count;
    }
    const std::int64_t from = static_cast<std::int64_t>(i) * width;
    for (std::int64_t head = 0; head < shape[2]; ++head) {
      vector_.transpose_keys(new_keys + from + head * shape[3], width, count, shape[3], shape[3],
                             row, page_keys(cache.keys, page, head));
    }
    std::copy_n(new_values + from, count * width, page_values(cache.values, page, row, 0));
    i += static_cast<std::size_t>(count);
  }
}

void CpuKernelSet::cache_copy(const DecodePlan& plan, std::span<const LayerCache> layers) {
  const PageTable& table = plan.batch().table;
  for (const LayerCache& cache : layers) {
    expect_cache(plan, cache);
    const Shape& shape = cache.keys.shape();
    for (const CacheCopy& row : plan.batch().copies) {
      const std::int64_t from = table.place(row.slot, row.from);
      const std::int64_t to = table.place(row.slot, row.to);
      const std::int64_t from_page = from / kCachePageRows;
      const std::int64_t to_page = to / kCachePageRows;
      for (std::int64_t head = 0; head < shape[2]; ++head) {
        copy_columns(page_keys(cache.keys, from_page, head), from % kCachePageRows, 1, shape[3],
                     page_keys(cache.keys, to_page, head), to % kCachePageRows);
      }
      std::copy_n(page_values(cache.values, from_page, from % kCachePageRows, 0),
                  shape[2] * shape[3], page_values(cache.values, to_page, to % kCachePageRows, 0));
    }
  }
}

void CpuKernelSet::cached_attention(const DecodePlan& plan, DecodeRows which, ConstTensorView q,
                                    LayerCache cache, TensorView output) {
  check_cached_attention(plan, which, q, cache, output);
  const std::span<const CacheRow> rows = plan.places(which);
  const AttentionShape shape = check_attention(q, plan.heads().key_heads);
  const std::int64_t count = std::ssize(rows);
  expect_float32(q, "cached_attention q");
  expect_float32(output, "cached_attention output");
  blocks_.clear();
  double work = 0;
  const std::int64_t step = block_rows(shape.group());
  for (std::int64_t row = 0; row < count;) {
    const CacheRow* place = rows.data() + row;
    std::int64_t size = 0;
    std::int64_t longest = 0;
    for (; row + size < count && size < step && place[size].follows(*place); ++size) {
      longest = std::max(longest, std::int64_t{place[size].position} + 1);
    }
    for (std::int64_t head = 0; head < shape.key_heads; ++head) {
      const std::int64_t at = row * shape.query_stride() + head * shape.group() * shape.dim;
      blocks_.push_back({.first = at,
                         .log_sum_exp = nullptr,
                         .rows = size,
                         .first_visible = 0,
                         .places = place,
                         .runs = {.pages = plan.batch().table.slot(place->slot),
                                  .rows = {0, place->fork_row},
                                  .cache = &cache,
                                  .head = head,
                                  .counts = {place->fork, longest - place->fork}}});
    }
    work += static_cast<double>(std::max<std::int64_t>(size * shape.group(), 8) * longest *
                                shape.key_stride());
    row += size;
  }
  attend_all(shape, q, output, blocks_, work);
}

}  // namespace jforge
