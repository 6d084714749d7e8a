#pragma once

/// What the CUDA kernels read of a batch of decoding rows: one block of numbers, copied to the
/// device once per forward, in the queue's order.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/kernels/cuda/device_queue.h"
#include "model/kernels/decode_plan.h"

namespace jforge {

/// Queries of adjacent rows that share keys, against all of these or one split: what one block of
/// lanes, or a few for large heads, work on for one key head. Key j of the logical order (ascending
/// position) lies in row j of the slot while j < fork, then in fork_row + j − fork. All zero:
/// nothing.
struct DecodeTile {
  std::int32_t row_begin = 0;
  std::int32_t rows = 0;
  std::int32_t fork = 0;
  std::int32_t fork_row = 0;
  std::int32_t first_page = 0;  ///< Of the slot, in the plan's pages.
  std::int32_t key_begin = 0;   ///< A multiple of kSplitKeys.
  std::int32_t key_end = 0;     ///< What the row that sees most sees, or the split's end.
  std::int32_t whole = 0;       ///< 1: all keys, and the block adds the splits up itself.
};

/// Keys whose part of the softmax is computed by itself, from a multiple of it in logical order on:
/// the parts of a row are added up in order, whoever computed them.
inline constexpr std::int64_t kSplitKeys = 128;
/// Batches of up to so many rows are padded to a power of two, and larger ones to a multiple of
/// kPaddedRows, which leaves less than a quarter of them empty: there rows take time, not the
/// weights alone.
inline constexpr std::int64_t kMostPadded = 256;
inline constexpr std::int64_t kPaddedRows = 64;
/// Batches of more rows are neither padded nor recorded: few are alike, and their arithmetic takes
/// longer than the launches.
inline constexpr std::int64_t kMostRecorded = 640;
/// Blocks that keep a device busy: two for each of an H100's 132 multiprocessors.
inline constexpr std::int64_t kBusyBlocks = 264;
/// Parts (of a row and head) that are kept at most: beyond, blocks add them up themselves. With
/// heads of 128 this many take 136 MB.
inline constexpr std::int64_t kMostParts = 1 << 18;

/// How many keys a launch's tiles have to go through.
struct TileKeys {
  std::int64_t tiles = 0;
  std::int64_t longest = 0;
  std::int64_t all = 0;
};
/// Whether each split of the keys is a block's own work: where whole tiles would not keep a device
/// busy, or it would wait for the longest of them, and so many parts have room.
[[nodiscard]] inline bool splits_keys(const TileKeys& keys, const AttentionHeads& heads,
                                      std::int64_t parts) noexcept {
  const bool idle = keys.tiles * heads.key_heads < kBusyBlocks;
  const bool waits = keys.longest * kBusyBlocks > 2 * keys.all * heads.key_heads;
  return parts > 0 && parts * heads.heads <= kMostParts && (idle || waits);
}

/// Queries (rows × heads of one group) of a tile on tensor cores, at most.
inline constexpr std::int64_t kMostTensorCoreQueries = 64;

class CudaDecodePlan final : public DecodePlan {
 public:
  /// Appends the places of memory that launches of decoding functions name and that may move.
  using MovingMemory = std::function<void(std::vector<const void*>& places)>;
  CudaDecodePlan(const AttentionHeads& heads, DType cache, std::int64_t max_rows,
                 DeviceQueue& queue, MovingMemory moving_memory, MemoryAccount& account);

  /// A padded batch's work is recorded when it comes a second time and replayed from then on,
  /// unless memory that it names has moved.
  void run(std::int32_t step, const std::function<void()>& work) override;
  [[nodiscard]] std::int64_t replays() const noexcept override { return replays_; }

  /// Whether cached attention of this plan runs on tensor cores. The host, which plays a device,
  /// has none.
  [[nodiscard]] bool on_tensor_cores() const noexcept;
  /// Rows of a tile, at most.
  [[nodiscard]] std::int64_t tile_rows() const noexcept;

  struct Queries {
    const DecodeTile* tiles = nullptr;
    std::int64_t num_tiles = 0;
    std::int64_t most_rows = 0;             ///< Of a tile.
    const std::int32_t* visible = nullptr;  ///< [rows] keys that each sees.
    /// [rows] where a row's parts begin, −1: the row is complete with its tile.
    const std::int32_t* first_part = nullptr;
    std::int64_t num_parts = 0;  ///< Of all rows; 0: all are complete.
  };
  [[nodiscard]] const Queries& queries(DecodeRows which) const noexcept {
    return which == DecodeRows::kept && !keeps_all() ? kept_queries_ : queries_;
  }
  /// [rows] the cache's row, seen as [pages · kCachePageRows, …], of each; −1: none.
  [[nodiscard]] const std::int32_t* places() const noexcept { return places_; }
  /// Cache rows from and to, of each copy in turn.
  [[nodiscard]] const std::int32_t* copies() const noexcept { return copies_; }
  [[nodiscard]] std::int64_t num_copies() const noexcept { return num_copies_; }
  [[nodiscard]] const std::int32_t* kept() const noexcept { return kept_; }
  [[nodiscard]] const std::int32_t* pages() const noexcept { return pages_; }
  /// Room for parts of rows, at least so many floats.
  [[nodiscard]] float* parts(std::int64_t floats) const { return parts_.at_least<float>(floats); }

 private:
  /// Queries on the host, and where their numbers begin in the block.
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

  /// All that launches of a work depend on beside the contents of the plan's block.
  struct Shapes {
    std::int32_t step = 0;
    std::int64_t rows = 0;
    std::int64_t kept = 0;
    bool with_tokens = false;
    bool separate = false;
    std::array<std::int64_t, 3> queries{};  ///< Tiles, their most rows, parts …
    std::array<std::int64_t, 3> kept_queries{};
    std::int64_t copies = 0;
    std::int64_t positions = 0;  ///< That a table of rotations must have.
    bool operator==(const Shapes&) const = default;
  };
  struct Work {
    Shapes shapes;
    std::vector<const void*> places;  ///< Of memory when it ran, or was recorded.
    RecordedLaunches launches;
    bool recorded = false;
    std::uint64_t used = 0;  ///< The last of runs_.
  };
  /// Works that are remembered, and with them the memory of graphs: the one goes that was not used
  /// for longest.
  static constexpr std::size_t kMostWorks = 64;

  void place(PlannedRows& rows, PlannedRows& kept) override;
  [[nodiscard]] Shapes shapes(std::int32_t step) const;
  [[nodiscard]] std::int64_t padded(std::int64_t count, std::int64_t most) const;
  [[nodiscard]] std::int64_t padded_parts(std::int64_t parts) const;
  /// Appends numbers, and zeros or `filler` up to `count`, to the block; where they begin.
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

  // On the host, reused.
  HostQueries host_queries_;
  HostQueries host_kept_queries_;
  std::vector<DecodeTile> row_tiles_;
  std::vector<std::int32_t> block_;
  std::vector<std::int32_t> table_;       ///< Pages of the slots that occur.
  std::vector<std::int32_t> slot_begin_;  ///< [slots] where theirs begin there, −1: none.
  std::vector<std::int32_t> numbers_;

  DeviceQueue& queue_;
  MovingMemory moving_memory_;
  StagedArray staged_;
  mutable DeviceScratch parts_;
  std::vector<Work> works_;
  std::vector<const void*> memory_;  ///< Where it is now.
  std::int64_t replays_ = 0;
  std::uint64_t runs_ = 0;
  bool cannot_record_ = false;  ///< The device had no memory for it.
};

/// Throws InternalError for a plan that another kind of set made.
[[nodiscard]] const CudaDecodePlan& on_device(const DecodePlan& plan);

}  // namespace jforge
