#pragma once

/// What every kernel set does before its arithmetic: entry checks, and the small tables and plans
/// that are made on the host whatever the device.

#include <cstdint>
#include <span>
#include <vector>

#include "model/kernels/adamw_step.h"
#include "model/kernels/kernel_set.h"

namespace jforge {

/// Throws InternalError unless the elements are float32: sums, what is kept for backward of them,
/// and gradients of parameters always are.
void expect_float32(const ConstTensorView& view, const char* name);

/// Throws InternalError unless the elements are float32 or bfloat16: weights, activations and their
/// gradients.
void expect_floating(const ConstTensorView& view, const char* name);

/// The element type of a product's two operands, which must be the same. Throws InternalError
/// unless the result has it too or is float32.
[[nodiscard]] DType product_type(const ConstTensorView& a, const ConstTensorView& b,
                                 const ConstTensorView& result, const char* name);

/// Throws InternalError unless x is a matrix that has the plan's rows.
void expect_kept_rows(const DecodePlan& plan, const ConstTensorView& x);

/// Throws InternalError unless the cache has the plan's type, heads and pages.
void expect_cache(const DecodePlan& plan, const LayerCache& cache);
/// … and k and v are of the plan's rows.
void check_cache_write(const DecodePlan& plan, const ConstTensorView& k, const ConstTensorView& v,
                       const LayerCache& cache);
/// Throws InternalError unless q is of the plan's rows that `which` says.
void check_rotate_and_write(const DecodePlan& plan, DecodeRows which, const ConstTensorView& q,
                            const HeadNorms& norms);
/// expect_cache(), and throws InternalError unless q and output are of the plan's rows that `which`
/// says.
void check_cached_attention(const DecodePlan& plan, DecodeRows which, const ConstTensorView& q,
                            const LayerCache& cache, const ConstTensorView& output);

/// Checks the shapes of sample_tokens(). Throws InternalError.
void check_sampled(const ConstTensorView& logits, std::int64_t rows, const ConstTensorView& tokens);

/// y [m, n] = x [m, k] · weight [n, k]ᵀ
struct LinearShape {
  std::int64_t m, n, k;
};
/// Throws InternalError when the three do not fit together.
[[nodiscard]] LinearShape check_linear(const ConstTensorView& x, const ConstTensorView& weight,
                                       const ConstTensorView& y);

/// Throws InternalError unless a table of `vocabulary` rows has one for every token.
void expect_tokens(const PlannedRows& rows, std::int64_t vocabulary);

/// Throws InternalError unless the rows have the table's type or float32.
void expect_embedding_types(const ConstTensorView& table, const ConstTensorView& output);

/// Throws InternalError unless x is [T, heads, D] with even D and T planned positions.
void check_rotary(const ConstTensorView& x, const PlannedRows& rows);

/// Query heads to a key head that a CUDA device's attention takes, at most; the CPU's takes any.
inline constexpr std::int64_t kMostDeviceGroup = 32;
/// Throws EnvironmentError where attention of `device` does not take a model's heads, as plans for
/// them do: to be asked before weights are loaded.
void expect_heads(Device device, const AttentionHeads& heads);

/// Throws InternalError when shapes do not fit the plan's rows and heads.
void check_packed_attention(const PackedPlan& plan, const ConstTensorView& q,
                            const ConstTensorView& k, const ConstTensorView& v,
                            const ConstTensorView& output, const ConstTensorView& log_sum_exp);

/// Throws InternalError unless `sums` is float64 [count].
void expect_sums(const ConstTensorView& sums, std::int64_t count, const char* name);

/// Cosines and sines of one (theta, D): [positions][D/2] each.
struct RotaryTable {
  RotarySettings settings;
  std::int64_t half = 0;
  std::int64_t positions = 0;
  std::vector<float> cosines;
  std::vector<float> sines;

  /// Adds the angles of positions up to `needed`, and some more; true when any were added.
  bool grow(std::int64_t needed);
};
/// The step's factors. Throws InternalError when the step is below 1.
[[nodiscard]] AdamWStep adamw_step(const AdamWSettings& settings, bool decay);
/// Throws InternalError unless all have the gradient's shape and their types.
void expect_adamw_shapes(const ConstTensorView& gradient, const AdamWState& state);
/// Throws InternalError unless they are what AdamWHashes says.
void expect_adamw_hashes(const AdamWHashes& hashes);
/// Adds to `sums`, int64 [4], what KernelSet::adamw would as AdamWHashes::found, by passes of its
/// own.
void hash_adamw_state(KernelSet& kernels, const AdamWState& state, std::uint64_t seed,
                      const TensorView& sums);
/// Throws InternalError unless `sum` is int64 [1].
void expect_hash_sum(const ConstTensorView& sum);
/// Elements of x for each of `sums` (KernelSet::content_hash_of_parts).
[[nodiscard]] std::int64_t part_size(const ConstTensorView& x, const ConstTensorView& sums);

/// Which rows the items of a vocabulary loss need.
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

/// Where the items of a chunk sit in the gathered rows of the vocabulary loss: students first, then
/// clean rows with a target, then pure teachers, so that rows with gradient are adjacent.
struct LossPlacement {
  /// Row that each gathered row is: of the hidden states for the first `own`, then of the separate
  /// teacher's.
  std::vector<std::int64_t> sources;
  std::vector<std::int64_t> student;  ///< Gathered row of each item's student; −1: none.
  /// Gathered row that has the item's target, teaches, or both; −1: none.
  std::vector<std::int64_t> clean;
  /// Gathered row that teaches: `clean`, or one of a separate teacher. Read where there is a
  /// student, or a clean row that is taught.
  std::vector<std::int64_t> teacher;
  std::int64_t with_gradient = 0;  ///< Gathered rows with gradient; they come first.
  std::int64_t own = 0;

  void place(std::span<const LossItem> items, LossUse use);
};

/// Throws InternalError when shapes, rows or targets do not fit.
void check_vocabulary_loss(const PackedPlan& plan, const ConstTensorView& hidden,
                           const ConstTensorView& head, const LossTerms& terms,
                           const ConstTensorView& hidden_gradient,
                           const ConstTensorView& head_gradient);

/// Items from `begin` on whose logits fit a chunk; returns one past the last. `most_rows` ≥ 3.
[[nodiscard]] std::size_t loss_chunk_end(std::span<const LossItem> items, std::size_t begin,
                                         LossUse use, std::int64_t most_rows);

/// Rows of logits held at once on the CPU for a vocabulary: about 128 MiB of them, but never so few
/// that the products lose their speed: the head is read and packed for each chunk.
[[nodiscard]] std::int64_t loss_chunk_rows(std::int64_t vocabulary);

}  // namespace jforge
