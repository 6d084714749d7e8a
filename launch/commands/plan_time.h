#pragma once

/// Estimates a job's time from arithmetic and a short measurement (--dry-run).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "model/kernels/kernel_set.h"
#include "model/transformer/drafter.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/device/known_devices.h"
#include "workers/train/sharding.h"

namespace jforge {

/// Speed of one rank.
struct MachineSpeed {
  double decoding_flops = 0;           ///< FLOP/s in decoding's products of many rows.
  double training_flops = 0;           ///< FLOP/s in large products of training's type.
  double bytes_per_second = 0;         ///< Weights read, in a product with one row.
  double link_bytes_per_second = 0;    ///< Sent within a copy of the state; 0: unknown.
  double across_bytes_per_second = 0;  ///< Sent to other copies.
};
/// 0 if the speed is unknown.
[[nodiscard]] double sending_seconds(const StepPayload& payload, const MachineSpeed& speed);

/// Collective; the mean of all ranks. Measures for some tenths of a second, but never lowers a peak
/// of `peaks`, a run's file. `training`: the type in which training computes.
[[nodiscard]] MachineSpeed measure_speed(KernelSet& kernels, const Communicator& comm,
                                         WeightStorage decoding, DType training,
                                         const std::filesystem::path& peaks);

/// Returns the speed of each of `ranks` ranks, in copies of `of_copy`, with a `device` by its data
/// sheet.
[[nodiscard]] MachineSpeed sheet_speed(const KnownDevice& device, WeightStorage decoding,
                                       DType training, int ranks, int of_copy);

/// Returns the weights in matrix products of every row: all but the embedding's look-up.
[[nodiscard]] double matrix_weights(const TransformerConfig& model);

/// Returns what training a drafter (none: 0) costs for a row of a block, in forwards of `model`. A
/// backward is two, or one through weights that stay; `recompute`: as RoundWork's.
[[nodiscard]] double drafter_forwards(const TransformerConfig& model,
                                      const std::optional<DrafterShape>& shape, bool recompute);

/// Work in one round of the rank that has most; lengths in tokens.
struct RoundWork {
  std::int64_t prompts_generated = 0;
  std::int64_t steps = 0;
  std::int64_t step_samples = 0;   ///< In a step.
  StepPayload step_payload = {};   ///< Sent in a step, beside its arithmetic.
  double prompt_tokens = 0;        ///< Mean prompt length, or its bound.
  std::int64_t answer_tokens = 0;  ///< Whole blocks, at most.
  std::int32_t block_size = 0;
  std::int64_t batch_prompts = 0;  ///< Sequences decoded together.
  double weight_bytes = 4;         ///< Per weight, in decoding.
  bool recompute = false;          ///< Activation checkpointing: one more forward.
  double drafter_forwards = 0;     ///< drafter_forwards(); 0: the model itself is trained.
};

struct RoundSeconds {
  double generate = 0;
  double train = 0;
};

/// Assumed share of a peak in matrix products.
inline constexpr double kPlannedEfficiency = 0.5;

/// Estimates at that efficiency. Generation, an upper bound: a forward pass gains one token of a
/// full-length answer, and takes the longer of reading all weights and computing a block's rows for
/// the batch. Training: a step takes the longer of sending and of 6 FLOPs per row and matrix weight
/// (8 with recomputation) plus attention; a row per prompt token and two per answer token. Beside a
/// drafter a forward for each row but those of blocks.
[[nodiscard]] RoundSeconds estimate_round(const TransformerConfig& model, const RoundWork& work,
                                          const MachineSpeed& speed);

/// Returns "40 s", "12 min", "3.5 h" or "2.1 days".
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace jforge
