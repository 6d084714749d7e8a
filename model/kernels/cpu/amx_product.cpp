/// Products by AMX: a tile holds 16 rows of a by a group of steps, a group by 16 columns of b (a
/// panel as it lies), or 16 by 16 sums. A group has 32 steps of bfloat16 (BFloat16Sums::groups) or
/// 64 of int8. No templates of the library: see vector_product_internal.h.

#include <cstddef>
#include <cstdint>

#include "model/kernels/cpu/denormals_internal.h"
#include "model/kernels/cpu/vec_avx512_internal.h"
#include "model/kernels/cpu/vector_kernels_internal.h"
// The header below uses the vector type of the header above.
#include "model/kernels/cpu/vector_int8_internal.h"

namespace jforge {

namespace {

constexpr std::int64_t kTileSide = 16;
/// Rows and columns of two by two tiles of sums.
constexpr std::int64_t kBlockSide = 2 * kTileSide;
/// Bytes of a row of any tile, which is a cache line, and of a whole tile.
constexpr std::int64_t kRowBytes = 64;
constexpr std::int64_t kTileBytes = kTileSide * kRowBytes;
/// For a single block of rows, b is fetched so many bytes of a panel before its use.
constexpr std::int64_t kAhead = 4 * kTileBytes;

constexpr std::int64_t at_most(std::int64_t value, std::int64_t limit) {
  return value < limit ? value : limit;
}

/// LDTILECFG's operand (Intel SDM, volume 1, chapter 18).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// The intrinsics do not tell GCC that they read memory: writes it now.
inline void written(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

/// Tiles 0 … 3 hold sums (upper left, upper right, lower left, lower right), 4 and 5 upper and
/// lower rows of a, 6 and 7 left and right columns of b.
void configure(std::int64_t rows) {
  const auto upper = static_cast<std::uint8_t>(at_most(rows, kTileSide));
  const auto lower = static_cast<std::uint8_t>(rows > kTileSide ? rows - kTileSide : 1);
  const std::uint8_t tile_rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kRowBytes;
    config.rows[tile] = tile_rows[tile];
  }
  written(&config);
  _tile_loadconfig(&config);
}

struct Block {
  std::int64_t row, rows;  ///< At most kBlockSide.
  std::int64_t column, columns;
  std::int64_t index, count;  ///< Of the blocks of rows.
};

/// The sums on their way from and to what no tile can access.
using Sums = float[kBlockSide][kBlockSide];
/// The steps after the last whole group, zero-padded.
struct Rest {
  alignas(64) BFloat16 a[kBlockSide][kGroupSteps];
  alignas(64) BFloat16 b[2][kTileSide * kGroupSteps];
};

enum class Elements : std::uint8_t { bfloat16, int8 };
using Bytes = const unsigned char*;
/// Whole groups of steps; distances are in bytes.
struct Groups {
  Bytes a;
  std::int64_t a_row;
  Bytes b;
  std::int64_t b_panel;
  std::int64_t count;
};
inline Bytes bytes(const void* p) { return static_cast<Bytes>(p); }

template <bool kLower, bool kRight>
inline void load_sums(const float* upper, const float* lower, std::int64_t row_bytes) {
  _tile_loadd(0, upper, row_bytes);
  if constexpr (kRight) {
    _tile_loadd(1, upper + kTileSide, row_bytes);
  }
  if constexpr (kLower) {
    _tile_loadd(2, lower, row_bytes);
  }
  if constexpr (kLower && kRight) {
    _tile_loadd(3, lower + kTileSide, row_bytes);
  }
}

template <bool kLower, bool kRight, class Sum>
inline void store_sums(Sum* upper, Sum* lower, std::int64_t row_bytes) {
  _tile_stored(0, upper, row_bytes);
  if constexpr (kRight) {
    _tile_stored(1, upper + kTileSide, row_bytes);
  }
  if constexpr (kLower) {
    _tile_stored(2, lower, row_bytes);
  }
  if constexpr (kLower && kRight) {
    _tile_stored(3, lower + kTileSide, row_bytes);
  }
}

template <Elements kElements, bool kLower, bool kRight>
inline void add_group(Bytes upper, Bytes lower, std::int64_t row_bytes, Bytes left, Bytes right) {
  constexpr bool kBFloat16 = kElements == Elements::bfloat16;
  _tile_loadd(6, left, kRowBytes);
  _tile_loadd(4, upper, row_bytes);
  if constexpr (kBFloat16) {
    _tile_dpbf16ps(0, 4, 6);
  } else {
    _tile_dpbssd(0, 4, 6);
  }
  if constexpr (kRight) {
    _tile_loadd(7, right, kRowBytes);
    if constexpr (kBFloat16) {
      _tile_dpbf16ps(1, 4, 7);
    } else {
      _tile_dpbssd(1, 4, 7);
    }
  }
  if constexpr (kLower) {
    _tile_loadd(5, lower, row_bytes);
    if constexpr (kBFloat16) {
      _tile_dpbf16ps(2, 5, 6);
    } else {
      _tile_dpbssd(2, 5, 6);
    }
  }
  if constexpr (kLower && kRight) {
    if constexpr (kBFloat16) {
      _tile_dpbf16ps(3, 5, 7);
    } else {
      _tile_dpbssd(3, 5, 7);
    }
  }
}

/// Fetches lines of a left and a right panel into the caches from level 4 − `kLocality` on.
template <int kLocality>
inline void fetch_lines(Bytes left, Bytes right, std::int64_t lines) {
  for (std::int64_t i = 0; i < lines * kRowBytes; i += kRowBytes) {
    __builtin_prefetch(left + i, 0, kLocality);
    __builtin_prefetch(right + i, 0, kLocality);
  }
}

template <bool kLower>
inline void fetch_rows(Bytes upper, Bytes lower, std::int64_t a_row) {
  for (std::int64_t i = 0; i < kTileSide; ++i) {
    __builtin_prefetch(upper + i * a_row);
    if constexpr (kLower) {
      __builtin_prefetch(lower + i * a_row);
    }
  }
}

template <Elements kElements, bool kLower, bool kRight>
inline void add_groups(const Groups& t, const Block& block) {
  Bytes upper = t.a + block.row * t.a_row;
  Bytes lower = upper + kTileSide * t.a_row;
  Bytes left = t.b + block.column / kLanes * t.b_panel;
  Bytes right = left + t.b_panel;
  // Several blocks of rows share the fetching of the next columns, line by line in order, as
  // hardware prefetch expects it; memory delivers them meanwhile.
  const bool shares = block.count > 1;
  const std::int64_t lines = (kTileSide + block.count - 1) / block.count;
  Bytes next = left + 2 * t.b_panel + block.index * t.count * lines * kRowBytes;
  for (std::int64_t group = 0; group < t.count; ++group) {
    if (shares) {
      fetch_lines<2>(next, next + t.b_panel, lines);
      next += lines * kRowBytes;
    } else {
      fetch_rows<kLower>(upper + kRowBytes, lower + kRowBytes, t.a_row);
      fetch_lines<3>(left + kAhead, right + kAhead, kTileSide);
    }
    add_group<kElements, kLower, kRight>(upper, lower, t.a_row, left, right);
    upper += kRowBytes;
    lower += kRowBytes;
    left += kTileBytes;
    right += kTileBytes;
  }
}

/// Copies steps of so many panels.
void copy_rest(const PairProduct& t, const Block& block, std::int64_t panels, Rest& rest) {
  const std::int64_t done = t.depth / kGroupSteps * kGroupSteps;
  rest = {};
  for (std::int64_t i = 0; i < block.rows; ++i) {
    __builtin_memcpy(rest.a[i], t.a + (block.row + i) * t.a_row + done,
                     static_cast<std::size_t>(t.depth - done) * sizeof(BFloat16));
  }
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    __builtin_memcpy(rest.b[panel],
                     t.b + (block.column / kLanes + panel) * t.b_panel + done * kLanes,
                     static_cast<std::size_t>((t.depth - done + 1) / 2) * kRowBytes);
  }
  written(&rest);
}

/// Where the sums begin from, if not from c.
void begin_sums(const PairProduct& t, const Block& block, Sums& sums) {
  for (std::int64_t i = 0; i < block.rows; ++i) {
    for (std::int64_t j = 0; j < block.columns; j += kLanes) {
      const std::int64_t lanes = at_most(block.columns - j, kLanes);
      const std::int64_t at = (block.row + i) * t.c_row + block.column + j;
      store(sums[i] + j, t.start != nullptr ? load_first(t.start + at, lanes)
                                            : load_first(t.c + at, lanes, zero()));
    }
  }
  written(&sums);
}

void end_sums(const PairProduct& t, const Block& block, const Sums& sums) {
  for (std::int64_t i = 0; i < block.rows; ++i) {
    for (std::int64_t j = 0; j < block.columns; j += kLanes) {
      const std::int64_t lanes = at_most(block.columns - j, kLanes);
      const std::int64_t at = (block.row + i) * t.c_row + block.column + j;
      Vec sum = load(sums[i] + j);
      if (t.bias != nullptr) {
        sum = sum + load_first(t.bias + block.column + j, lanes, zero());
      }
      if (t.rounded != nullptr) {
        store_first(t.rounded + at, sum, lanes);
      } else {
        store_first(t.c + at, sum, lanes);
      }
    }
  }
}

template <bool kLower, bool kRight>
void block_product(const PairProduct& t, const Block& block) {
  constexpr std::int64_t kSumsBytes = sizeof(Sums) / kBlockSide;
  const bool whole = block.columns == (kRight ? 2 : 1) * kLanes;
  const std::int64_t at = block.row * t.c_row + block.column;
  float* const upper_sums = t.c == nullptr ? nullptr : t.c + at;
  float* const lower_sums = t.c == nullptr ? nullptr : upper_sums + kTileSide * t.c_row;
  const std::int64_t c_bytes = t.c_row * static_cast<std::int64_t>(sizeof(float));
  alignas(64) Sums sums;
  if (t.start == nullptr && !t.accumulate) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else if (t.start == nullptr && whole) {
    load_sums<kLower, kRight>(upper_sums, lower_sums, c_bytes);
  } else {
    begin_sums(t, block, sums);
    load_sums<kLower, kRight>(sums[0], sums[kTileSide], kSumsBytes);
  }
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(BFloat16));
  add_groups<Elements::bfloat16, kLower, kRight>(
      {bytes(t.a), t.a_row * kBytes, bytes(t.b), t.b_panel * kBytes, t.depth / kGroupSteps}, block);
  if (t.depth % kGroupSteps != 0) {
    Rest rest;
    copy_rest(t, block, kRight ? 2 : 1, rest);
    add_group<Elements::bfloat16, kLower, kRight>(bytes(rest.a[0]), bytes(rest.a[kTileSide]),
                                                  kRowBytes, bytes(rest.b[0]), bytes(rest.b[1]));
  }
  if (whole && t.bias == nullptr && t.rounded == nullptr) {
    store_sums<kLower, kRight>(upper_sums, lower_sums, c_bytes);
  } else {
    store_sums<kLower, kRight>(sums[0], sums[kTileSide], kSumsBytes);
    end_sums(t, block, sums);
  }
}

/// A row of x is two rows of tiles, of its upper and its lower bytes.
template <bool kLower, bool kRight>
void block_product(const Int8Product& t, const Block& block) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  add_groups<Elements::int8, kLower, kRight>(
      {bytes(t.a), t.depth, bytes(t.b), t.depth * kLanes, t.depth / kInt8Steps}, block);
  alignas(64) std::int32_t sums[kBlockSide][kBlockSide];
  store_sums<kLower, kRight>(sums[0], sums[kTileSide], sizeof(sums) / kBlockSide);
  for (std::int64_t i = 0; i < block.rows; i += 2) {
    for (std::int64_t j = 0; j < block.columns; j += kLanes) {
      std::int64_t totals[kLanes];
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        totals[lane] = 256 * std::int64_t{sums[i][j + lane]} + sums[i + 1][j + lane];
      }
      finish_int8(t, (block.row + i) / 2, block.column + j, totals);
    }
  }
}

template <class Product>
void multiply(const Product& t, std::int64_t rows) {
  std::int64_t configured = 0;
  Block block;
  block.count = (rows + kBlockSide - 1) / kBlockSide;
  for (block.column = 0; block.column < t.columns; block.column += kBlockSide) {
    block.columns = at_most(t.columns - block.column, kBlockSide);
    for (block.index = 0; block.index < block.count; ++block.index) {
      block.row = block.index * kBlockSide;
      block.rows = at_most(rows - block.row, kBlockSide);
      if (block.rows != configured) {
        configure(block.rows);
        configured = block.rows;
      }
      const bool right = block.columns > kTileSide;
      if (block.rows > kTileSide) {
        right ? block_product<true, true>(t, block) : block_product<true, false>(t, block);
      } else {
        right ? block_product<false, true>(t, block) : block_product<false, false>(t, block);
      }
    }
  }
  _tile_release();
}

}  // namespace

void amx_group_product(const PairProduct& product) {
  const DenormalsAsZero scope;
  PairProduct t = product;
  if (t.whole_groups) {
    t.depth = (t.depth + kGroupSteps - 1) / kGroupSteps * kGroupSteps;
  }
  multiply(t, t.rows);
}

float amx_quantise(const float* x, std::int64_t count, std::int64_t depth, void* row) {
  return quantise<true>(x, count, depth, row);
}

void amx_int8_product(const Int8Product& product) { multiply(product, 2 * product.rows); }

}  // namespace jforge
