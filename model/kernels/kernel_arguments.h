#pragma once

/// Argument checks, small tables and plans of all kernel sets. Checks throw InternalError.

#include <cstdint>
#include <span>
#include <vector>

#include "model/kernels/adamw_step.h"
#include "model/kernels/kernel_set.h"

namespace jforge {

void expect_float32(const ConstTensorView& view, const char* name);

void expect_floating(const ConstTensorView& view, const char* name);

/// Returns the operands' common type, which the result must have unless it is float32.
[[nodiscard]] DType product_type(const ConstTensorView& a, const ConstTensorView& b,
                                 const ConstTensorView& result, const char* name);

void expect_kept_rows(const DecodePlan& plan, const ConstTensorView& x);

void expect_cache(const DecodePlan& plan, const LayerCache& cache);
void check_cache_write(const DecodePlan& plan, const ConstTensorView& k, const ConstTensorView& v,
                       const LayerCache& cache);
void check_rotate_and_write(const DecodePlan& plan, DecodeRows which, const ConstTensorView& q,
                            const HeadNorms& norms);
void check_cached_attention(const DecodePlan& plan, DecodeRows which, const ConstTensorView& q,
                            const LayerCache& cache, const ConstTensorView& output);

void check_sampled(const ConstTensorView& logits, std::int64_t rows, const ConstTensorView& tokens);

/// y [m, n] = x [m, k] · weight [n, k]ᵀ
struct LinearShape {
  std::int64_t m, n, k;
};
[[nodiscard]] LinearShape check_linear(const ConstTensorView& x, const ConstTensorView& weight,
                                       const ConstTensorView& y);

void expect_tokens(const PlannedRows& rows, std::int64_t vocabulary);

void expect_embedding_types(const ConstTensorView& table, const ConstTensorView& output);

/// Expects x [T, heads, D] with even D and T positions.
void check_rotary(const ConstTensorView& x, const PlannedRows& rows);

/// Maximum query heads per key head of attention on CUDA.
inline constexpr std::int64_t kMostDeviceGroup = 32;
/// Throws EnvironmentError if attention does not support the heads. Call before loading weights.
void expect_heads(Device device, const AttentionHeads& heads);

void check_packed_attention(const PackedPlan& plan, const ConstTensorView& q,
                            const ConstTensorView& k, const ConstTensorView& v,
                            const ConstTensorView& output, const ConstTensorView& log_sum_exp);

/// Expects float64 [count].
void expect_sums(const ConstTensorView& sums, std::int64_t count, const char* name);

/// Cosines and sines, [positions][D/2] each.
struct RotaryTable {
  RotarySettings settings;
  std::int64_t half = 0;
  std::int64_t positions = 0;
  std::vector<float> cosines;
  std::vector<float> sines;

  /// Returns whether the table grew.
  bool grow(std::int64_t needed);
};
/// Requires: settings.step ≥ 1.
[[nodiscard]] AdamWStep adamw_step(const AdamWSettings& settings, bool decay);
void expect_adamw_shapes(const ConstTensorView& gradient, const AdamWState& state);
void expect_adamw_hashes(const AdamWHashes& hashes);
/// Adds to `sums`, int64 [4], what adamw() adds to AdamWHashes::found.
void hash_adamw_state(KernelSet& kernels, const AdamWState& state, std::uint64_t seed,
                      const TensorView& sums);
void expect_hash_sum(const ConstTensorView& sum);
/// Elements of x per sum.
[[nodiscard]] std::int64_t part_size(const ConstTensorView& x, const ConstTensorView& sums);

struct LossUse {
  bool students = true;           ///< There is a consistency term.
  bool separate_teacher = false;  ///< LossTeacher is not empty.
  bool distills_clean = false;    ///< ArLoss::distillation
  bool operator==(const LossUse&) const = default;
};
[[nodiscard]] inline LossUse loss_use(const LossTerms& terms) {
  return {.students = terms.consistency_scale != 0.0F,
          .separate_teacher = !terms.teacher.hidden.empty(),
          .distills_clean = terms.ar_loss == ArLoss::distillation};
}

/// Gathers rows of a chunk: students, clean rows with a target (both with gradient), pure teachers.
struct LossPlacement {
  /// Source of each gathered row: a hidden state for the first `own`, then a separate teacher's.
  std::vector<std::int64_t> sources;
  std::vector<std::int64_t> student;  ///< Gathered row of each item's student; −1: none.
  /// Gathered row that has the target or teaches; −1: none.
  std::vector<std::int64_t> clean;
  /// Gathered row that teaches: `clean` or a separate teacher's. Unused if nothing is taught.
  std::vector<std::int64_t> teacher;
  std::int64_t with_gradient = 0;  ///< Number of gathered rows with gradient; they come first.
  std::int64_t own = 0;

  void place(std::span<const LossItem> items, LossUse use);
};

void check_vocabulary_loss(const PackedPlan& plan, const ConstTensorView& hidden,
                           const ConstTensorView& head, const LossTerms& terms,
                           const ConstTensorView& hidden_gradient,
                           const ConstTensorView& head_gradient);

/// Returns the end of the items whose rows fit a chunk. Requires: most_rows ≥ 3.
[[nodiscard]] std::size_t loss_chunk_end(std::span<const LossItem> items, std::size_t begin,
                                         LossUse use, std::int64_t most_rows);

/// CPU logits held at once: about 256 MiB, at least 64 rows, since each chunk packs the head again.
[[nodiscard]] std::int64_t loss_chunk_rows(std::int64_t vocabulary);

}  // namespace jforge
