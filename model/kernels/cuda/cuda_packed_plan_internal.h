#pragma once

/// A packed batch's index data for CUDA kernels.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/kernels/cuda/attention_visits.h"
#include "model/kernels/cuda/device_queue.cuh"
#include "model/kernels/cuda/tile_sizes.h"
#include "model/kernels/kernel_arguments.h"
#include "model/kernels/packed_plan.h"

namespace jforge {

/// Queries of adjacent rows that share keys: a block's work per key head. Logical key j lies at row
/// first_key + j if j < first_count, else second_key + j − first_count: of the key tensor, or of
/// the slot whose pages begin at first_page.
struct QueryTile {
  std::int64_t row_begin = 0;
  std::int64_t rows = 0;
  std::int64_t first_key = 0;
  std::int64_t first_count = 0;
  std::int64_t second_key = 0;
  std::int64_t keys = 0;  ///< Of the longest row.
  std::int64_t first_page = 0;
};

struct SeeingRows {
  std::int64_t row_begin;
  std::int64_t row_end;
  AttentionSegment segment;

  [[nodiscard]] __device__ bool sees(std::int64_t row, std::int64_t key) const {
    return (segment.prefix_begin <= key && key < segment.prefix_end) ||
           (segment.causal_begin <= key && key <= row);
  }
};

/// Rows are rows of the chunk's logits.
struct LossItemRows {
  std::int64_t student;      ///< −1: none.
  std::int64_t teacher;      ///< Used if a row is taught.
  std::int64_t clean;        ///< Used if there is a target.
  std::int64_t target;       ///< −1: none.
  float consistency_weight;  ///< Unscaled.
  float ar_weight;           ///< Unscaled.
};

class CudaPackedPlan final : public PackedPlan {
 public:
  CudaPackedPlan(const AttentionHeads& heads, DeviceQueue& queue, MemoryAccount& account);

  struct Queries {
    const QueryTile* tiles = nullptr;
    std::int64_t num_tiles = 0;
    const std::int32_t* visible = nullptr;  ///< [T]: keys that each row sees.
    std::int64_t most_rows = 0;             ///< Of a block.
  };
  [[nodiscard]] const Queries& queries() const noexcept { return queries_; }

  /// For every tile of keys, the rows that may see one, ascending.
  struct Keys {
    const SeeingRows* ranges = nullptr;
    const std::int64_t* begins = nullptr;  ///< [tiles + 1]: where each tile's ranges begin.
    std::int64_t tile_keys = 0;
  };
  /// Made on the first call per batch; tensor-core kernels need none.
  [[nodiscard]] const Keys& keys() const;

  struct Visits {
    const RowKeys* rows = nullptr;
    const TileWork* query_tiles = nullptr;
    std::int64_t num_query_tiles = 0;
    const KeyVisit* key_visits = nullptr;
    const KeyWork* key_work = nullptr;
    std::int64_t num_key_work = 0;
    const SplitTile* split_tiles = nullptr;
    std::int64_t num_split_tiles = 0;
    std::int64_t num_parts = 0;
    const StripVisit* strip_visits = nullptr;
  };
  /// Made on the first call per batch.
  [[nodiscard]] const Visits& visits() const;

  /// Rows grouped by the place that they are added to.
  struct RowGroups {
    const std::int64_t* order = nullptr;   ///< Sorted by place, then by row.
    const std::int64_t* begins = nullptr;  ///< [distinct + 1]: where each place's rows begin.
    std::int64_t distinct = 0;
  };
  [[nodiscard]] const RowGroups& token_rows() const noexcept { return token_rows_; }

  /// Loss items whose logits are held at once.
  struct LossChunk {
    const LossItemRows* items;
    std::int64_t num_items;
    const std::int64_t* sources;  ///< [rows]: hidden row (LossPlacement).
    std::int64_t rows;
    std::int64_t own;            ///< The student's rows come before the teacher's.
    std::int64_t with_gradient;  ///< Rows with gradient; they come first.
    RowGroups groups;            ///< Rows with gradient, by hidden row.
  };
  /// Chunks of at most `most_rows` rows, made on the first call per batch.
  [[nodiscard]] std::span<const LossChunk> loss(std::int64_t most_rows, LossUse use) const;

 private:
  struct Loss {
    Loss(DeviceQueue& queue, MemoryAccount& account)
        : staged_items(queue, account),
          staged_sources(queue, account),
          staged_order(queue, account),
          staged_begins(queue, account) {}
    void place(std::span<const LossItem> loss_items);

    std::int64_t most_rows = -1;  ///< −1: not made for this batch.
    LossUse use;
    LossPlacement placement;
    std::vector<LossItemRows> items;
    std::vector<std::int64_t> sources;
    std::vector<std::int64_t> order;
    std::vector<std::int64_t> begins;
    std::vector<LossChunk> chunks;
    StagedArray staged_items;
    StagedArray staged_sources;
    StagedArray staged_order;
    StagedArray staged_begins;
  };

  struct StagedVisits {
    StagedVisits(DeviceQueue& queue, MemoryAccount& account)
        : rows(queue, account),
          query_tiles(queue, account),
          key_visits(queue, account),
          key_work(queue, account),
          split_tiles(queue, account),
          strip_visits(queue, account) {}

    bool placed = false;
    AttentionVisits host;
    Visits device;
    StagedArray rows;
    StagedArray query_tiles;
    StagedArray key_visits;
    StagedArray key_work;
    StagedArray split_tiles;
    StagedArray strip_visits;
  };

  struct StagedKeys {
    StagedKeys(DeviceQueue& queue, MemoryAccount& account)
        : staged_ranges(queue, account), staged_begins(queue, account) {}

    bool placed = false;
    std::vector<SeeingRows> ranges;
    std::vector<std::int64_t> begins;
    Keys device;
    StagedArray staged_ranges;
    StagedArray staged_begins;
  };

  void place(const PackedBatch& batch, PlannedRows& rows) override;
  void place_queries(const PackedLayout& layout);
  void place_keys() const;
  void place_token_rows(std::span<const TokenId> tokens);

  LaneTiles lane_tiles_;
  Queries queries_;
  RowGroups token_rows_;
  mutable std::array<Loss, 2> loss_;  ///< Without and with students.
  mutable StagedVisits visits_;
  mutable StagedKeys keys_;

  std::vector<QueryTile> tiles_;
  std::vector<std::int32_t> visible_;
  std::vector<std::int64_t> order_;
  std::vector<std::int64_t> order_begins_;

  StagedArray staged_tokens_;
  StagedArray staged_positions_;
  StagedArray staged_tiles_;
  StagedArray staged_visible_;
  StagedArray staged_order_;
  StagedArray staged_order_begins_;
};

/// Throws InternalError for a plan of another kind of set.
[[nodiscard]] const CudaPackedPlan& on_device(const PackedPlan& plan);

}  // namespace jforge
