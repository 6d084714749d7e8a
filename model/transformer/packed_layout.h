#pragma once

/// Training samples packed into one sequence (METHOD.md §3). A sample's rows are [prompt | c_0 …
/// c_{N−1} | k_0 … k_{N−1}]; with PackingOptions::noisy_last those of k follow all samples' others.
/// Clean rows have causal attention; a noisy row sees two intervals, a prefix of prompt and clean
/// rows and a causal run of noisy rows, so no L×L mask is needed.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/batches/packed_sample.h"
#include "runtime/ids.h"

namespace jforge {

/// Rows [row_begin, row_end) see keys [prefix_begin, prefix_end), which may be empty and end by
/// causal_begin, and keys [causal_begin, row]. All indices are rows of the packed batch.
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

/// Rows [begin, end).
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Returns in `ranges` the noisy rows of each sample that has some; only they see a prefix.
void find_noisy_rows(const PackedLayout& layout, std::vector<RowRange>& ranges);

/// One clean row in the loss: it has an AR target, teaches a noisy row, or both.
struct LossItem {
  std::int32_t clean_row = 0;
  TokenId target = -1;            ///< Next token; −1: none.
  float ar_weight = 0;            ///< Of its cross-entropy in the batch's AR loss.
  std::int32_t student_row = -1;  ///< Noisy row that learns it; −1: offset not kept.
  float consistency_weight = 0;   ///< Of KL(teacher ‖ student) in the batch's consistency loss.
  std::int32_t teacher_row = -1;  ///< In a separate teacher's batch; −1: none.
};

/// How a sample's token losses become one number (METHOD.md §4).
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
  /// γ in (0, 1]: each kept offset of a block weighs γ times the one before it, in means and sums.
  float consistency_decay = 1;
  bool ar_targets = true;     ///< Whether answer tokens are AR targets.
  bool noisy_last = false;    ///< So that a batch's noisy rows are adjacent; the batch is empty.
  bool train_prompt = false;  ///< Whether prompt tokens are AR targets too (compat = repo).
  /// For a head (drafter.h): noisy rows are a block's first token and this one, and learn what
  /// comes at their own position, all of it. Else noisy rows learn what comes after them.
  std::optional<TokenId> mask_token{};
  /// Blocks after the first end of sequence are dropped; later offsets of its block have no target.
  std::vector<TokenId> eos_ids{};
};

struct PackedBatch {
  std::vector<TokenId> tokens;          ///< [T]
  std::vector<std::int32_t> positions;  ///< [T]; k_i and c_i share positions.
  PackedLayout layout;
  std::vector<LossItem> loss_items;  ///< Ascending clean_row.
  std::int64_t num_samples = 0;
  std::int64_t kept_offsets = 0;  ///< Consistency targets.
  std::int64_t ar_targets = 0;

  /// Keeps the memory.
  void clear() noexcept;
};

/// Appends samples, with weights scaled by `sample_weight`: 1 / samples in the global batch, so
/// that sums over micro-batches and ranks give the mean (invariant I17). Throws DataError for a
/// sample whose lengths do not fit P + 2nN.
void append_samples(PackedBatch& batch, std::span<const PackedSample> samples,
                    const PackingOptions& options, float sample_weight);

[[nodiscard]] PackedBatch pack_samples(std::span<const PackedSample> samples,
                                       const PackingOptions& options, float sample_weight);

/// Appends a causal sequence with AR targets tokens[first_target …], each of weight sample_weight /
/// number of targets, for pre-training and fine-tuning.
void append_causal_sequence(PackedBatch& batch, std::span<const TokenId> tokens,
                            std::int64_t first_target, float sample_weight);

/// Makes a separate teacher's batch: for each sample with consistency targets (if `all_items`, with
/// loss items) the prompt and clean rows up to the last one that teaches. Sets the items'
/// teacher_row; `teacher` gets no loss items.
void take_teacher_rows(PackedBatch& batch, PackedBatch& teacher, bool all_items);

/// Makes the frozen model's batch beside a head's, which was packed with noisy_last: all its prompt
/// and clean rows. Sets the items' teacher_row to their clean_row; `clean` gets no loss items.
void take_clean_rows(PackedBatch& batch, PackedBatch& clean);

/// Returns whether row `query` sees row `key`. Slow: for tests and probes.
[[nodiscard]] bool visible(const PackedLayout& layout, std::int64_t query, std::int64_t key);

}  // namespace jforge
