#pragma once

/// Which key tiles the rows of a packed batch visit in tensor-core attention. A strip of 32 rows is
/// one warp's; four strips make a query tile. Rows visit 32 keys at a time; key gradients use tiles
/// of 64. Strips skip keys that no row sees; keys that all rows see need no mask.

#include <cstdint>
#include <vector>

#include "model/kernels/cuda/device_code.h"
#include "model/transformer/packed_layout.h"

namespace jforge {

inline constexpr std::int64_t kStripRows = 32;
inline constexpr std::int64_t kTileStrips = 4;
inline constexpr std::int64_t kQueryTileRows = kStripRows * kTileStrips;
inline constexpr std::int64_t kVisitKeys = 32;
inline constexpr std::int64_t kKeyTileRows = 2 * kVisitKeys;
/// Keeps the number of strip visits in 32 bits.
inline constexpr std::int64_t kMostVisitingRows = 1 << 21;

/// A row sees [prefix_begin, prefix_end) and [causal_begin, causal_end); all zero in padding rows.
struct alignas(16) RowKeys {
  std::int32_t prefix_begin = 0;
  std::int32_t prefix_end = 0;
  std::int32_t causal_begin = 0;
  std::int32_t causal_end = 0;

  [[nodiscard]] JFORGE_DEVICE_AND_HOST bool sees(std::int32_t key) const {
    return (prefix_begin <= key && key < prefix_end) || (causal_begin <= key && key < causal_end);
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST bool sees_nothing() const { return causal_end == 0; }
};

/// A query tile's visit to keys [kVisitKeys · place, …).
struct KeyVisit {
  std::int32_t place = 0;
  /// Bit s: strip s sees keys here. Bit kTileStrips + s: all its rows see all of them.
  std::uint32_t strips = 0;

  [[nodiscard]] JFORGE_DEVICE_AND_HOST bool seen_by(unsigned strip) const {
    return (strips >> strip & 1U) != 0;
  }
  [[nodiscard]] JFORGE_DEVICE_AND_HOST bool complete_for(unsigned strip) const {
    return (strips >> (kTileStrips + strip) & 1U) != 0;
  }
};

struct StripVisit {
  std::int32_t strip = 0;
  std::int32_t complete = 0;  ///< 1: all its rows see all keys of the tile.
};

struct TileWork {
  std::int32_t tile = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;

  [[nodiscard]] std::int64_t length() const { return end - begin; }
  [[nodiscard]] std::int64_t order() const { return tile; }
};

/// A block's share of a key tile's gradient: steps [first_step, last_step) of visits [begin, end)
/// for each query head of a group in turn.
struct KeyWork {
  std::int32_t tile = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t first_step = 0;
  std::int32_t last_step = 0;
  std::int32_t part = -1;  ///< Where its sums go; −1: it has all steps.

  [[nodiscard]] std::int64_t length() const { return last_step - first_step; }
  [[nodiscard]] std::int64_t order() const { return (std::int64_t{tile} << 32) + first_step; }
};

/// A key tile whose steps are cut into parts.
struct SplitTile {
  std::int32_t tile = 0;
  std::int32_t first_part = 0;
  std::int32_t last_part = 0;
};

/// Visits in ascending order; the longest blocks come first. Early keys are seen by more rows, so
/// steps are cut into about kKeyBlocks similar blocks, depending only on layout and heads.
class AttentionVisits {
 public:
  /// Two to four times the resident blocks of 108 to 132 multiprocessors.
  static constexpr std::int64_t kKeyBlocks = 768;
  /// Minimum steps of a part, whose sums cost a few steps.
  static constexpr std::int64_t kLeastSteps = 16;

  void place(const PackedLayout& layout, std::int64_t group, std::int64_t key_heads);

  /// Padded to full query tiles.
  [[nodiscard]] const std::vector<RowKeys>& rows() const noexcept { return rows_; }
  [[nodiscard]] const std::vector<TileWork>& query_tiles() const noexcept { return query_tiles_; }
  [[nodiscard]] const std::vector<KeyVisit>& key_visits() const noexcept { return key_visits_; }
  [[nodiscard]] const std::vector<KeyWork>& key_work() const noexcept { return key_work_; }
  [[nodiscard]] const std::vector<SplitTile>& split_tiles() const noexcept { return split_tiles_; }
  [[nodiscard]] std::int64_t num_parts() const noexcept {
    return split_tiles_.empty() ? 0 : split_tiles_.back().last_part;
  }
  [[nodiscard]] const std::vector<StripVisit>& strip_visits() const noexcept {
    return strip_visits_;
  }

 private:
  void place_rows(const PackedLayout& layout);
  void place_query_tiles(std::int64_t num_rows);
  void place_key_tiles();
  void place_key_work(std::int64_t group, std::int64_t key_heads);
  void note_strip(std::int64_t row_begin, std::int64_t row_end, unsigned strip);

  struct Seen {
    std::int32_t complete_rows = 0;  ///< Of the current strip.
    std::uint32_t strips = 0;
  };

  std::vector<RowKeys> rows_;
  std::vector<TileWork> query_tiles_;
  std::vector<KeyVisit> key_visits_;
  std::vector<TileWork> key_tiles_;
  std::vector<StripVisit> strip_visits_;
  std::vector<KeyWork> key_work_;
  std::vector<SplitTile> split_tiles_;
  std::vector<Seen> seen_;  ///< [visit places]
};

}  // namespace jforge
