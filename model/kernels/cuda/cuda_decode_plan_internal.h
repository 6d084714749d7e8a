#pragma once

/// A decoding batch's index data for CUDA kernels: one block of words, copied once per forward.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/kernels/cuda/device_queue.cuh"
#include "model/kernels/cuda/tile_sizes.h"
#include "model/kernels/decode_plan.h"

namespace jforge {

/// Queries of adjacent rows that share keys, against all keys or one split: a block's work per key
/// head. Logical key j is the slot's row j if j < fork, else fork_row + j − fork. All zero: empty.
struct DecodeTile {
  std::int32_t row_begin = 0;
  std::int32_t rows = 0;
  std::int32_t fork = 0;
  std::int32_t fork_row = 0;
  std::int32_t first_page = 0;  ///< The slot's first entry in the plan's pages.
  std::int32_t key_begin = 0;   ///< A multiple of kSplitKeys.
  std::int32_t key_end = 0;     ///< End of the longest row's keys, or of the split.
  std::int32_t whole = 0;       ///< 1: takes all keys; the block merges the splits itself.
};

/// Batches up to kMostPadded rows are padded to a power of two, larger ones to a multiple of
/// kPaddedRows, because there time grows with rows.
inline constexpr std::int64_t kMostPadded = 256;
inline constexpr std::int64_t kPaddedRows = 64;
/// Larger batches are neither padded nor recorded: they rarely repeat.
inline constexpr std::int64_t kMostRecorded = 640;

class CudaDecodePlan final : public DecodePlan {
 public:
  /// Appends the addresses of movable memory that launches use.
  using MovingMemory = std::function<void(std::vector<const void*>& places)>;
  CudaDecodePlan(const AttentionHeads& heads, DType cache, std::int64_t max_rows,
                 DeviceQueue& queue, MovingMemory moving_memory, MemoryAccount& account);

  /// Records a padded batch's work the second time, then replays it unless memory has moved.
  void run(std::int32_t step, const std::function<void()>& work) override;
  [[nodiscard]] std::int64_t replays() const noexcept override { return replays_; }

  [[nodiscard]] bool on_tensor_cores() const noexcept;
  [[nodiscard]] std::int64_t tile_rows() const noexcept;

  struct Queries {
    const DecodeTile* tiles = nullptr;
    std::int64_t num_tiles = 0;
    std::int64_t most_rows = 0;             ///< Of a tile.
    const std::int32_t* visible = nullptr;  ///< [rows]: keys that each sees.
    /// [rows]: first part of each row; −1: the tile completes the row.
    const std::int32_t* first_part = nullptr;
    std::int64_t num_parts = 0;  ///< Of all rows; 0: all complete.
  };
  [[nodiscard]] const Queries& queries(DecodeRows which) const noexcept {
    return which == DecodeRows::kept && !keeps_all() ? kept_queries_ : queries_;
  }
  /// [rows]: rows of the cache seen as [pages · kCachePageRows, …]; −1: none.
  [[nodiscard]] const std::int32_t* places() const noexcept { return places_; }
  /// Pairs of source and target cache rows.
  [[nodiscard]] const std::int32_t* copies() const noexcept { return copies_; }
  [[nodiscard]] std::int64_t num_copies() const noexcept { return num_copies_; }
  [[nodiscard]] const std::int32_t* kept() const noexcept { return kept_; }
  [[nodiscard]] const std::int32_t* pages() const noexcept { return pages_; }
  [[nodiscard]] float* parts(std::int64_t floats) const { return parts_.at_least<float>(floats); }

 private:
  /// Host queries and their offsets in block_.
  struct HostQueries {
    std::vector<DecodeTile> tiles;
    std::vector<std::int32_t> visible;
    std::vector<std::int32_t> first_part;
    std::int64_t num_parts = 0;
    std::int64_t most_rows = 0;
    std::size_t tiles_at = 0;
    std::size_t visible_at = 0;
    std::size_t first_part_at = 0;
  };

  /// All that launches depend on besides the block's contents.
  struct Shapes {
    std::int32_t step = 0;
    std::int64_t rows = 0;
    std::int64_t kept = 0;
    bool with_tokens = false;
    bool separate = false;
    std::array<std::int64_t, 3> queries{};  ///< Tiles, their maximum rows, parts.
    std::array<std::int64_t, 3> kept_queries{};
    std::int64_t copies = 0;
    std::int64_t positions = 0;  ///< Required by the rotary table.
    bool operator==(const Shapes&) const = default;
  };
  struct Work {
    Shapes shapes;
    std::vector<const void*> places;  ///< Addresses when it ran or was recorded.
    RecordedLaunches launches;
    bool recorded = false;
    std::uint64_t used = 0;  ///< The last of runs_.
  };
  /// Maximum remembered works; the least recently used is dropped.
  static constexpr std::size_t kMostWorks = 64;

  void place(PlannedRows& rows, PlannedRows& kept) override;
  [[nodiscard]] Shapes shapes(std::int32_t step) const;
  [[nodiscard]] std::int64_t padded(std::int64_t count, std::int64_t most) const;
  [[nodiscard]] std::int64_t padded_parts(std::int64_t parts) const;
  /// Returns the values' offset; fills with `filler` up to `count`.
  std::size_t append(std::span<const std::int32_t> values, std::int64_t count,
                     std::int32_t filler = 0);
  void place_pages();
  void place_tiles(std::span<const CacheRow> places, HostQueries& queries);
  void append_queries(HostQueries& queries, std::int64_t rows);
  [[nodiscard]] Queries on_device(const HostQueries& queries, const std::int32_t* block) const;

  Queries queries_;
  Queries kept_queries_;
  const std::int32_t* places_ = nullptr;
  const std::int32_t* copies_ = nullptr;
  std::int64_t num_copies_ = 0;
  const std::int32_t* kept_ = nullptr;
  const std::int32_t* pages_ = nullptr;
  const std::int32_t* block_on_device_ = nullptr;

  HostQueries host_queries_;
  HostQueries host_kept_queries_;
  std::vector<DecodeTile> row_tiles_;
  std::vector<std::int32_t> block_;
  std::vector<std::int32_t> table_;       ///< Pages of the slots in use.
  std::vector<std::int32_t> slot_begin_;  ///< [slots]: offset in table_; −1: none.
  std::vector<std::int32_t> numbers_;

  DeviceQueue& queue_;
  MovingMemory moving_memory_;
  StagedArray staged_;
  mutable DeviceScratch parts_;
  std::vector<Work> works_;
  std::vector<const void*> memory_;
  std::int64_t replays_ = 0;
  std::uint64_t runs_ = 0;
  bool cannot_record_ = false;  ///< The device lacked memory.
};

/// Throws InternalError for a plan of another kind of set.
[[nodiscard]] const CudaDecodePlan& on_device(const DecodePlan& plan);

}  // namespace jforge
