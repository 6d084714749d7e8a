#pragma once

/// How long a job will take: an estimate from the model's arithmetic and a short measurement of
/// this machine (--dry-run).

#include <cstdint>
#include <filesystem>
#include <string>

#include "model/kernels/kernel_set.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/device/known_devices.h"

namespace jforge {

/// What all ranks together reach while they run side by side.
struct MachineSpeed {
  double flops = 0;             ///< FLOP/s in a large product of float32.
  double training_flops = 0;    ///< FLOP/s in one of the type that training computes in.
  double bytes_per_second = 0;  ///< Of weights read in a product with one row.
};

/// Collective. Measures for some tenths of a second; a product's peak that `peaks`, a run's file,
/// knows is not lowered by it. `training`: the type that training computes in.
[[nodiscard]] MachineSpeed measure_speed(KernelSet& kernels, const Communicator& comm,
                                         DType training, const std::filesystem::path& peaks);

/// What `ranks` ranks with one `device` each reach by its data sheet, in products of `decoding` and
/// `training`: nothing is measured.
[[nodiscard]] MachineSpeed sheet_speed(const KnownDevice& device, DType decoding, DType training,
                                       int ranks);

/// Weights that take part in a matrix product for every row: all but the embedding's look-up.
[[nodiscard]] double matrix_weights(const TransformerConfig& model);

/// The work of one round. Lengths in tokens.
struct RoundWork {
  std::int64_t prompts_generated = 0;
  std::int64_t samples_trained = 0;
  double prompt_tokens = 0;        ///< Mean prompt length, or its bound.
  std::int64_t answer_tokens = 0;  ///< Whole blocks, at most.
  std::int32_t block_size = 0;
  std::int32_t batch_prompts = 0;  ///< Sequences decoded together on a rank.
  double weight_bytes = 4;         ///< Of a weight as decoding stores it.
  bool recompute = false;          ///< Activation checkpointing: one more forward in training.
};

struct RoundSeconds {
  double generate = 0;
  double train = 0;
};

/// Share of the measured matrix-product speed that training and decoding are taken to reach.
inline constexpr double kPlannedEfficiency = 0.5;

/// Generation: one token gained in each forward pass (a model not yet trained for more), every
/// answer of full length; a pass takes the longer of reading all weights once and computing a
/// block's rows for each sequence of the batch. Training: 6 FLOPs per row and matrix weight (8 with
/// recomputation), a row for each prompt token and two for each answer token, and the attention
/// over them. Both are bounds from above for what the efficiency assumes.
[[nodiscard]] RoundSeconds estimate_round(const TransformerConfig& model, const RoundWork& work,
                                          const MachineSpeed& speed, int ranks);

/// "40 s", "12 min", "3.5 h", "2.1 days".
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace jforge
