/// Attention over the paged cache on lanes. A row's bits depend only on its query and its keys in
/// logical order: splits begin at multiples of kSplitKeys, with tiles of kTileKeys within. Scores
/// add over D in order, sums over a tile's keys in order; each split has its own softmax, and a
/// row's splits are merged in order.
///
/// Shared memory is the bound (results/reference/gpu_plan.md).

#include <cmath>

#include "model/kernels/cuda/attention_tiles.h"
#include "model/kernels/cuda/cached_attention_parts.h"
#include "model/kernels/cuda/tensor_core_attention.cuh"

namespace jforge {

namespace {

/// A share of a tile's queries; block index = (tile · key heads + key head) · shares + share.
struct CachedAttention : CachedAttentionInputs<FloatSource> {
  std::int64_t share_queries;
  bool words;  ///< Keys and values are aligned for words.

  [[nodiscard]] static constexpr std::int64_t shared_bytes(const HeadShape& heads,
                                                           std::int64_t queries) {
    const std::int64_t stride = tile_stride(heads);
    return 3 * shared_size<float>(queries * stride) + 2 * shared_size<float>(kTileKeys * stride) +
           shared_size<float>(queries * kScoreStride) + 2 * shared_size<SoftmaxPart>(queries) +
           shared_size<float>(queries) + shared_size<Merge>(queries) +
           shared_size<std::int64_t>(kTileKeys);
  }
  [[nodiscard]] std::int64_t shared_bytes() const { return shared_bytes(shape, share_queries); }

  /// Returns all queries, or equal parts that fit `most_shared`.
  [[nodiscard]] static constexpr std::int64_t share_of(const HeadShape& heads, std::int64_t queries,
                                                       std::int64_t most_shared) {
    std::int64_t shares = 1;
    while (shares < queries && shared_bytes(heads, divide_up(queries, shares)) > most_shared) {
      ++shares;
    }
    return divide_up(queries, shares);
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST std::int64_t shares() const {
    return divide_up(most_queries, share_queries);
  }

  struct Block {
    DecodeTile tile;
    std::int64_t key_head;
    std::int32_t first_query;  ///< Of the tile.
    std::int32_t queries;
    std::int32_t stride;
    float* query;   ///< [queries][stride], scaled.
    float* sums;    ///< [queries][stride], of the split.
    float* totals;  ///< [queries][stride], of earlier splits if the block has all.
    float* keys;    ///< [kTileKeys][stride]
    float* values;
    float* scores;          ///< [queries][kScoreStride]
    SoftmaxPart* softmax;   ///< [queries], of the split.
    SoftmaxPart* total;     ///< [queries]
    float* shrink;          ///< [queries]: factor for the split's earlier sums.
    Merge* merge;           ///< [queries]
    std::int64_t* sources;  ///< [kTileKeys]: offsets in k and v.
  };

  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    Block block;
    const std::int64_t queries_index = index / shares();
    block.tile = tiles[queries_index / shape.key_heads];
    block.key_head = queries_index % shape.key_heads;
    block.first_query = static_cast<std::int32_t>(index % shares() * share_queries);
    const std::int32_t left =
        block.tile.rows * static_cast<std::int32_t>(shape.group()) - block.first_query;
    if (left <= 0) {
      return;
    }
    const auto most = static_cast<std::int32_t>(share_queries);
    block.queries = left < most ? left : most;
    const std::int64_t stride = tile_stride(shape);
    block.stride = static_cast<std::int32_t>(stride);
    block.query = group.shared<float>(share_queries * stride);
    block.sums = group.shared<float>(share_queries * stride);
    block.totals = group.shared<float>(share_queries * stride);
    block.keys = group.shared<float>(kTileKeys * stride);
    block.values = group.shared<float>(kTileKeys * stride);
    block.scores = group.shared<float>(share_queries * kScoreStride);
    block.softmax = group.shared<SoftmaxPart>(share_queries);
    block.total = group.shared<SoftmaxPart>(share_queries);
    block.shrink = group.shared<float>(share_queries);
    block.merge = group.shared<Merge>(share_queries);
    block.sources = group.shared<std::int64_t>(kTileKeys);

    load_tile(group, FloatSource{q, false}, block.queries, shape.dim, stride, scale, block.query,
              [&](std::int64_t i) { return place(block, i); });
    for (std::int32_t begin = block.tile.key_begin; begin < block.tile.key_end;
         begin += static_cast<std::int32_t>(kSplitKeys)) {
      const auto split = static_cast<std::int32_t>(kSplitKeys);
      const std::int32_t end =
          block.tile.key_end - begin < split ? block.tile.key_end : begin + split;
      take_split(group, block, begin, end);
      finish_split(group, block, begin);
    }
    write_totals(group, block);
  }

  /// Returns the begin of query i in q and output.
  [[nodiscard]] __device__ std::int64_t place(const Block& block, std::int64_t i) const {
    return query_offset(shape, block.tile.row_begin, block.key_head, block.first_query + i);
  }
  [[nodiscard]] __device__ std::int32_t row_of(const Block& block, std::int32_t i) const {
    return block.tile.row_begin +
           (block.first_query + i) / static_cast<std::int32_t>(shape.group());
  }
  /// Keys from `begin` on that query i sees, at most `count`.
  [[nodiscard]] __device__ std::int32_t seen(const Block& block, std::int32_t i, std::int32_t begin,
                                             std::int32_t count) const {
    const std::int32_t left = visible[row_of(block, i)] - begin;
    return left < 0 ? 0 : (left < count ? left : count);
  }

  __device__ void take_split(BlockGroup& group, const Block& block, std::int32_t begin,
                             std::int32_t end) const {
    const auto dim = static_cast<std::int32_t>(shape.dim);
    group.each([&](std::int64_t lane) {
      for (auto i = static_cast<std::int32_t>(lane); i < block.queries;
           i += static_cast<std::int32_t>(group.lanes())) {
        block.softmax[i] = {-INFINITY, 0.0F};
      }
      for (auto at = static_cast<std::int32_t>(lane); at < block.queries * block.stride;
           at += static_cast<std::int32_t>(group.lanes())) {
        block.sums[at] = 0.0F;
      }
    });
    const auto keys_each = static_cast<std::int32_t>(kTileKeys);
    for (std::int32_t first = begin; first < end; first += keys_each) {
      const std::int32_t size = end - first < keys_each ? end - first : keys_each;
      load_keys(group, block, first, size);
      // Few queries take a lane each, to keep lanes busy; many share reads.
      if (block.queries <= 4) {
        score<1>(group, block, first, size);
      } else {
        score<4>(group, block, first, size);
      }
      soften(group, block, first, size);
      if (block.queries * dim <= 4 * static_cast<std::int32_t>(group.lanes())) {
        add_values<1>(group, block, first, size);
      } else {
        add_values<4>(group, block, first, size);
      }
    }
  }

  __device__ void load_keys(BlockGroup& group, const Block& block, std::int32_t first,
                            std::int32_t size) const {
    group.each([&](std::int64_t lane) {
      for (std::int64_t j = lane; j < size; j += group.lanes()) {
        const DecodeTile& tile = block.tile;
        const std::int64_t key = first + j;
        const std::int64_t row = key < tile.fork ? key : tile.fork_row + key - tile.fork;
        const std::int64_t page = pages[tile.first_page + row / kCachePageRows];
        block.sources[j] = (page * kCachePageRows + row % kCachePageRows) * shape.key_stride() +
                           block.key_head * shape.dim;
      }
    });
    if (words) {
      copy_keys<kWordElements>(group, block, size);
    } else {
      copy_keys<1>(group, block, size);
    }
  }

  template <int kEach>
  __device__ void copy_keys(BlockGroup& group, const Block& block, std::int32_t size) const {
    // A warp writes 32 elements of each of kEach rows at an odd stride, without bank conflicts.
    constexpr std::int32_t kAcross = 32 / kEach;
    const auto dim = static_cast<std::int32_t>(shape.dim);
    const auto pieces = static_cast<std::int32_t>(divide_up(dim, 32));
    const auto lanes = static_cast<std::int32_t>(divide_up(size, kEach)) * pieces * 32;
    group.each([&](std::int64_t lane) {
      for (auto at = static_cast<std::int32_t>(lane); at < lanes;
           at += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t j = at / 32 / pieces * kEach + at / kAcross % kEach;
        const std::int32_t d = at / 32 % pieces * 32 + at % kAcross * kEach;
        if (j >= size || d >= dim) {
          continue;
        }
        float key[kEach];
        float value[kEach];
        k.read(block.sources[j] + d, key);
        v.read(block.sources[j] + d, value);
        for (std::int32_t e = 0; e < kEach; ++e) {
          block.keys[j * block.stride + d + e] = key[e];
          block.values[j * block.stride + d + e] = value[e];
        }
      }
    });
  }

  /// kEach queries of one key per lane.
  template <int kEach>
  __device__ void score(BlockGroup& group, const Block& block, std::int32_t first,
                        std::int32_t size) const {
    constexpr auto kKeys = static_cast<std::int32_t>(kTileKeys);
    constexpr auto kRow = static_cast<std::int32_t>(kScoreStride);
    const auto dim = static_cast<std::int32_t>(shape.dim);
    group.each([&](std::int64_t lane) {
      for (auto at = static_cast<std::int32_t>(lane); at < divide_up(block.queries, kEach) * kKeys;
           at += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t i = at / kKeys * kEach;
        const std::int32_t j = at % kKeys;
        if (j >= size) {
          continue;
        }
        float sums[kEach] = {};
        for (std::int32_t d = 0; d < dim; ++d) {
          const float key = block.keys[j * block.stride + d];
          for (int e = 0; e < kEach; ++e) {
            if (i + e < block.queries) {
              sums[e] = fmaf(block.query[(i + e) * block.stride + d], key, sums[e]);
            }
          }
        }
        for (int e = 0; e < kEach; ++e) {
          if (i + e < block.queries && j < seen(block, i + e, first, size)) {
            block.scores[(i + e) * kRow + j] = sums[e];
          }
        }
      }
    });
  }

  /// Turns scores into exp(score − maximum so far).
  __device__ void soften(BlockGroup& group, const Block& block, std::int32_t first,
                         std::int32_t size) const {
    constexpr auto kKeys = static_cast<std::int32_t>(kTileKeys);
    constexpr auto kRow = static_cast<std::int32_t>(kScoreStride);
    group.each([&](std::int64_t lane) {
      for (auto i = static_cast<std::int32_t>(lane); i < block.queries;
           i += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t count = seen(block, i, first, size);
        const float before = block.softmax[i].maximum;
        float maximum = before;
        for (std::int32_t j = 0; j < count; ++j) {
          maximum = fmaxf(maximum, block.scores[i * kRow + j]);
        }
        // Avoids NaN from −∞ − −∞ before the first key.
        block.shrink[i] = count == 0 ? 1.0F : expf(before - maximum);
        block.softmax[i].maximum = maximum;
      }
    });
    group.each([&](std::int64_t lane) {
      for (auto at = static_cast<std::int32_t>(lane); at < block.queries * kKeys;
           at += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t i = at / kKeys;
        const std::int32_t j = at % kKeys;
        if (j < seen(block, i, first, size)) {
          float& score = block.scores[i * kRow + j];
          score = expf(score - block.softmax[i].maximum);
        }
      }
    });
    group.each([&](std::int64_t lane) {
      for (auto i = static_cast<std::int32_t>(lane); i < block.queries;
           i += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t count = seen(block, i, first, size);
        float sum = block.softmax[i].sum * block.shrink[i];
        for (std::int32_t j = 0; j < count; ++j) {
          sum += block.scores[i * kRow + j];
        }
        block.softmax[i].sum = sum;
      }
    });
  }

  /// kEach queries of one column per lane. Hidden keys are never multiplied in.
  template <int kEach>
  __device__ void add_values(BlockGroup& group, const Block& block, std::int32_t first,
                             std::int32_t size) const {
    constexpr auto kRow = static_cast<std::int32_t>(kScoreStride);
    const auto dim = static_cast<std::int32_t>(shape.dim);
    group.each([&](std::int64_t lane) {
      for (auto at = static_cast<std::int32_t>(lane); at < divide_up(block.queries, kEach) * dim;
           at += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t i = at / dim * kEach;
        const std::int32_t d = at % dim;
        float sums[kEach] = {};
        std::int32_t counts[kEach] = {};
        std::int32_t most = 0;
        for (int e = 0; e < kEach; ++e) {
          if (i + e < block.queries) {
            sums[e] = block.sums[(i + e) * block.stride + d] * block.shrink[i + e];
            counts[e] = seen(block, i + e, first, size);
            most = most < counts[e] ? counts[e] : most;
          }
        }
        for (std::int32_t j = 0; j < most; ++j) {
          const float value = block.values[j * block.stride + d];
          for (int e = 0; e < kEach; ++e) {
            if (j < counts[e]) {
              sums[e] = fmaf(block.scores[(i + e) * kRow + j], value, sums[e]);
            }
          }
        }
        for (int e = 0; e < kEach; ++e) {
          if (i + e < block.queries) {
            block.sums[(i + e) * block.stride + d] = sums[e];
          }
        }
      }
    });
  }

  /// Merges the split into the total, or stores it as a part.
  __device__ void finish_split(BlockGroup& group, const Block& block, std::int32_t begin) const {
    const auto dim = static_cast<std::int32_t>(shape.dim);
    const auto heads = static_cast<std::int32_t>(shape.group());
    if (block.tile.whole != 0 || begin == 0) {
      group.each([&](std::int64_t lane) {
        for (auto i = static_cast<std::int32_t>(lane); i < block.queries;
             i += static_cast<std::int32_t>(group.lanes())) {
          if (begin == 0) {
            block.total[i] = block.softmax[i];
          } else if (block.softmax[i].sum != 0.0F) {
            block.merge[i] = Merge::of(block.total[i], block.softmax[i]);
          }
        }
      });
      group.each([&](std::int64_t lane) {
        for (auto at = static_cast<std::int32_t>(lane); at < block.queries * dim;
             at += static_cast<std::int32_t>(group.lanes())) {
          const std::int32_t i = at / dim;
          const std::int32_t place = i * block.stride + at % dim;
          if (begin == 0) {
            block.totals[place] = block.sums[place];
          } else if (block.softmax[i].sum != 0.0F) {
            block.totals[place] = block.merge[i].together(block.totals[place], block.sums[place]);
          }
        }
      });
    }
    if (block.tile.whole != 0) {
      return;
    }
    const auto split = begin / static_cast<std::int32_t>(kSplitKeys);
    group.each([&](std::int64_t lane) {
      for (auto at = static_cast<std::int32_t>(lane); at < block.queries * dim;
           at += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t i = at / dim;
        const std::int32_t row = row_of(block, i);
        if (first_part[row] < 0 || visible[row] <= begin) {
          continue;
        }
        const std::int64_t part = std::int64_t{first_part[row] + split} * shape.heads +
                                  block.key_head * heads + (block.first_query + i) % heads;
        parts.sums[part * dim + at % dim] = block.sums[i * block.stride + at % dim];
        if (at % dim == 0) {
          parts.softmax[part] = block.softmax[i];
        }
      }
    });
  }

  /// Writes the rows that the tile completes.
  __device__ void write_totals(BlockGroup& group, const Block& block) const {
    const auto dim = static_cast<std::int32_t>(shape.dim);
    if (block.tile.key_begin != 0) {
      return;
    }
    group.each([&](std::int64_t lane) {
      for (auto at = static_cast<std::int32_t>(lane); at < block.queries * dim;
           at += static_cast<std::int32_t>(group.lanes())) {
        const std::int32_t i = at / dim;
        if (first_part[row_of(block, i)] < 0) {
          output.set(place(block, i) + at % dim,
                     block.totals[i * block.stride + at % dim] / block.total[i].sum);
        }
      }
    });
  }
};

static_assert(CachedAttention::shared_bytes(kLargestHeads,
                                            CachedAttention::share_of(kLargestHeads, kMostQueries,
                                                                      kMostSharedBytes)) <=
              kMostSharedBytes);

/// Block index = row · heads + head. A lane takes several elements, because a part's two
/// exponentials cost more than one.
struct MergeParts {
  static constexpr std::int64_t kLanes = 32;
  static constexpr std::int64_t kNumbers = 4;

  RowParts parts;
  const std::int32_t* visible;
  const std::int32_t* first_part;
  FloatTarget output;
  std::int64_t heads;
  std::int64_t dim;

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    const std::int64_t row = index / heads;
    if (first_part[row] < 0) {
      return;
    }
    group.each([&](std::int64_t lane) {
      const std::int64_t splits = divide_up(std::int64_t{visible[row]}, kSplitKeys);
      const std::int64_t first = std::int64_t{first_part[row]} * heads + index % heads;
      for (std::int64_t d = lane * kNumbers; d < dim; d += group.lanes() * kNumbers) {
        SoftmaxPart total = parts.softmax[first];
        float sums[kNumbers];
        each_below(dim - d, [&](int i) { sums[i] = parts.sums[first * dim + d + i]; });
        for (std::int64_t split = 1; split < splits; ++split) {
          const std::int64_t part = first + split * heads;
          const Merge merge = Merge::of(total, parts.softmax[part]);
          each_below(dim - d, [&](int i) {
            sums[i] = merge.together(sums[i], parts.sums[part * dim + d + i]);
          });
        }
        each_below(dim - d, [&](int i) { output.set(index * dim + d + i, sums[i] / total.sum); });
      }
    });
  }

 private:
  /// Constant loop bounds keep the elements in registers.
  template <class Visit>
  __device__ static void each_below(std::int64_t count, const Visit& visit) {
    for (int i = 0; i < kNumbers; ++i) {
      if (i < count) {
        visit(i);
      }
    }
  }
};

struct WriteCache {
  const std::int32_t* rows;  ///< Of the cache seen as [pages · kCachePageRows, Hkv · D].
  FloatSource source_keys;
  FloatSource source_values;
  FloatTarget keys;
  FloatTarget values;
  std::int64_t width;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = rows[i / width];
    if (row < 0) {
      return;
    }
    const std::int64_t at = row * width + i % width;
    keys.set(at, source_keys[i]);
    values.set(at, source_values[i]);
  }
};

/// Moves cache rows of several layers at once, to save launches. Block index = keys or values of a
/// layer, and a part of the copies.
struct CopyCache {
  static constexpr std::int64_t kMostHalves = 128;
  static constexpr std::int64_t kRowsEach = 16;
  static constexpr std::int64_t kLanes = 256;

  const std::int32_t* rows;  ///< Pairs of source and target.
  std::int64_t copies;
  std::int64_t words;  ///< 32-bit words of a row.
  std::uint32_t* halves[kMostHalves];

  [[nodiscard]] std::int64_t shared_bytes() const { return 0; }
  __device__ void operator()(BlockGroup& group, std::int64_t block) const {
    const std::int64_t parts = divide_up(copies, kRowsEach);
    std::uint32_t* const half = halves[block / parts];
    const std::int64_t begin = block % parts * kRowsEach;
    const std::int64_t end = begin + kRowsEach < copies ? begin + kRowsEach : copies;
    group.each([&](std::int64_t lane) {
      for (std::int64_t copy = begin; copy < end; ++copy) {
        const std::int64_t from = rows[2 * copy];
        const std::int64_t to = rows[2 * copy + 1];
        for (std::int64_t i = lane; i < words; i += group.lanes()) {
          half[to * words + i] = half[from * words + i];
        }
      }
    });
  }
};

}  // namespace

void CudaKernelSet::cache_write(const DecodePlan& plan, ConstTensorView k, ConstTensorView v,
                                LayerCache cache) {
  check_cache_write(plan, k, v, cache);
  launch_elements(queue_, k.elements(),
                  WriteCache{on_device(plan).places(), floating(k), floating(v),
                             floating(cache.keys), floating(cache.values), k.dim(1) * k.dim(2)},
                  "cache_write");
}

void CudaKernelSet::cache_copy(const DecodePlan& plan, std::span<const LayerCache> layers) {
  const CudaDecodePlan& own = on_device(plan);
  const std::size_t row_bytes =
      storage_bytes(plan.heads().key_heads * plan.heads().size, plan.cache_type());
  CopyCache copy{.rows = own.copies(), .copies = own.num_copies(), .words = {}, .halves = {}};
  copy.words = static_cast<std::int64_t>(row_bytes / sizeof(std::uint32_t));
  expect(row_bytes % sizeof(std::uint32_t) == 0, "rows of the cache are no whole 32-bit words");
  std::int64_t halves = 0;
  const auto launch = [&] {
    if (copy.copies > 0 && halves > 0) {
      queue_.launch(halves * divide_up(copy.copies, CopyCache::kRowsEach), CopyCache::kLanes, copy,
                    "cache_copy");
    }
    halves = 0;
  };
  for (const LayerCache& cache : layers) {
    expect_cache(plan, cache);
    for (const TensorView& half : {cache.keys, cache.values}) {
      copy.halves[halves++] = static_cast<std::uint32_t*>(floating(half).data);
    }
    if (halves == CopyCache::kMostHalves) {
      launch();
    }
  }
  launch();
}

void CudaKernelSet::cached_attention(const DecodePlan& plan, DecodeRows which, ConstTensorView q,
                                     LayerCache cache, TensorView output) {
  check_cached_attention(plan, which, q, cache, output);
  const std::int64_t rows = plan.num_rows(which);
  if (rows == 0) {
    return;
  }
  const CudaDecodePlan& own = on_device(plan);
  const CudaDecodePlan::Queries& queries = own.queries(which);
  const HeadShape shape = check_heads(q, plan.heads().key_heads);
  RowParts parts{};
  if (queries.num_parts > 0) {
    const std::int64_t count = queries.num_parts * shape.heads;
    constexpr auto kSoftmaxFloats = static_cast<std::int64_t>(sizeof(SoftmaxPart) / sizeof(float));
    float* const memory = own.parts(count * (kSoftmaxFloats + shape.dim));
    parts = {reinterpret_cast<SoftmaxPart*>(memory), memory + count * kSoftmaxFloats};
  }
  const auto inputs = [&]<class Elements>(const Elements& k, const Elements& v) {
    return CachedAttentionInputs<Elements>{shape,
                                           queries.tiles,
                                           queries.visible,
                                           queries.first_part,
                                           own.pages(),
                                           floats(q),
                                           k,
                                           v,
                                           floating(output),
                                           parts,
                                           1.0F / std::sqrt(static_cast<float>(shape.dim)),
                                           queries.most_rows * shape.group()};
  };
  if (own.on_tensor_cores()) {
    tensor_core_cached_attention(queue_, queries.num_tiles, queries.num_parts == 0,
                                 inputs(tensor_core_rows(ConstTensorView(cache.keys)),
                                        tensor_core_rows(ConstTensorView(cache.values))));
  } else {
    const FloatSource k = floating(ConstTensorView(cache.keys));
    const FloatSource v = floating(ConstTensorView(cache.values));
    const CachedAttention body{inputs(k, v),
                               CachedAttention::share_of(shape, queries.most_rows * shape.group(),
                                                         queue_.most_shared_bytes()),
                               shape.dim % kWordElements == 0 && begin_words(k, v)};
    queue_.launch(queries.num_tiles * shape.key_heads * body.shares(), kAttentionLanes, body,
                  "cached_attention");
  }
  if (queries.num_parts > 0) {
    queue_.launch(rows * shape.heads, MergeParts::kLanes,
                  MergeParts{parts, queries.visible, queries.first_part, floating(output),
                             shape.heads, shape.dim},
                  "cached_attention parts");
  }
}

}  // namespace jforge
