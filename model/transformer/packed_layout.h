#pragma once

/// Which keys each row of a packed sequence sees, without an L×L mask (METHOD.md §3,
/// ARCHITECTURE.md "packed sequence"). A sample is stored as [prompt | c_0 … c_{N−1} | k_0 …
/// k_{N−1}]; then clean rows are plain causal attention and every noisy row sees two intervals: a
/// prefix of prompt and clean rows, and a causal run of noisy rows.

#include <cstdint>
#include <span>
#include <vector>

#include "data/batches/packed_sample.h"
#include "runtime/ids.h"

namespace jforge {

/// Rows [row_begin, row_end) see keys [prefix_begin, prefix_end) and keys [causal_begin, row]. The
/// prefix lies wholly before causal_begin; it may be empty. All indices are rows of the packed
/// batch.
struct AttentionSegment {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t prefix_begin = 0;
  std::int64_t prefix_end = 0;
  std::int64_t causal_begin = 0;
};

/// Segments in ascending row order that cover all rows exactly once.
struct PackedLayout {
  std::int64_t num_rows = 0;
  std::vector<AttentionSegment> segments;
};

/// One clean row that takes part in the loss: as autoregressive target holder, as teacher, or both.
struct LossItem {
  std::int32_t clean_row = 0;
  TokenId target = -1;  ///< Next-token target; −1 when the row has none.
  float ar_weight = 0;  ///< Weight of its cross-entropy in the batch's AR loss (before `ar_weight`
                        ///< of the config).
  std::int32_t student_row =
      -1;  ///< Noisy row at the same position; −1 when that offset is not kept.
  float consistency_weight =
      0;  ///< Weight of KL(teacher ‖ student) in the batch's consistency loss.
  /// Row of a separate teacher's batch at the same position (take_teacher_rows); −1: none.
  std::int32_t teacher_row = -1;
};

/// How token losses become one number (METHOD.md §4; L is the mean over samples of the
/// per-sample loss).
enum class LossReduction : std::uint8_t {
  token_mean,  ///< Mean over kept offsets.
  paper,       ///< Sum over kept offsets / blocks up to and including the one with end of sequence.
  repo,        ///< Mean over kept offsets / that number of blocks.
};

/// Which offsets of a block carry a consistency target.
enum class KeptOffsets : std::uint8_t { from_first_difference, all };

struct PackingOptions {
  MaskKind mask = MaskKind::noise;
  LossReduction reduction = LossReduction::token_mean;
  KeptOffsets kept = KeptOffsets::from_first_difference;
  /// γ in (0, 1]: weight of a block's kept offset over that of the kept one before it. Means and
  /// sums over kept offsets are weighted so.
  float consistency_decay = 1;
  bool train_prompt = false;       ///< Also AR-train prompt tokens (compat = repo).
  std::vector<TokenId> eos_ids{};  ///< Blocks after the first end of sequence are dropped; later
                                   ///< offsets carry no target.
};

/// Several samples in one token budget, ready for the transformer and the loss.
struct PackedBatch {
  std::vector<TokenId> tokens;          ///< [T]
  std::vector<std::int32_t> positions;  ///< [T]; k_i and c_i share positions.
  PackedLayout layout;
  std::vector<LossItem> loss_items;  ///< Ascending clean_row.
  std::int64_t num_samples = 0;
  std::int64_t kept_offsets = 0;  ///< Consistency targets.
  std::int64_t ar_targets = 0;

  /// Empty again, with its memory: the next batch of that size allocates nothing.
  void clear() noexcept;
};

/// Appends `samples` one after another. Every sample's weights are scaled by `sample_weight` (1 /
/// samples in the global batch), so that summing over micro-batches and ranks gives the mean over
/// samples (invariant I17). Throws DataError for a sample whose lengths do not fit P + 2nN.
void append_samples(PackedBatch& batch, std::span<const PackedSample> samples,
                    const PackingOptions& options, float sample_weight);

/// append_samples into a new batch.
[[nodiscard]] PackedBatch pack_samples(std::span<const PackedSample> samples,
                                       const PackingOptions& options, float sample_weight);

/// Appends a plain causal sequence whose AR targets are tokens[first_target …], each weighted
/// sample_weight / number of targets: pre-training and plain fine-tuning.
void append_causal_sequence(PackedBatch& batch, std::span<const TokenId> tokens,
                            std::int64_t first_target, float sample_weight);

/// What a separate teacher forwards for `batch`: of each sample with consistency targets (with
/// `all_items`, of each with loss items) the prompt and clean rows up to the last that teaches, as
/// plain causal sequences. Fills `teacher` anew, without loss items, and the items' teacher_row.
void take_teacher_rows(PackedBatch& batch, PackedBatch& teacher, bool all_items);

/// Whether the row at packed index `query` sees `key`: the slow reading of a layout, for tests and
/// probes.
[[nodiscard]] bool visible(const PackedLayout& layout, std::int64_t query, std::int64_t key);

}  // namespace jforge
