#pragma once

/// What a job would do, without doing it (--dry-run), and whether there is memory for it.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/commands/plan_time.h"
#include "model/transformer/transformer_config.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/device/known_devices.h"
#include "runtime/tensor/tensor_view.h"
#include "workers/job_config.h"
#include "workers/train/sharding.h"
#include "workers/training_probe.h"

namespace jforge {

/// Memory of one rank, bytes, largest over the rounds. Packed weights, cache, activations and, but
/// for train.optimizer_offload, training's `state` lie where the kernels compute, everything else
/// on the host. What kernels need besides (a few % on a device) and MPI's buffers are not counted.
struct MemoryPlan {
  Device device = Device::cpu;
  double weights = 0;      ///< Flat float32 vector; in training where `state` says.
  double decoding = 0;     ///< Generation: packed copy of the matrices and work space …
  double cache = 0;        ///< … and the key/value cache (generate.batch_prompts, cache_mb) …
  double least_cache = 0;  ///< … of which a device needs no more than one sequence takes.
  Sharding sharding;
  TrainingMemory state;    ///< Training: weights, gradients, optimizer, buffers …
  double snapshot = 0;     ///< … the copy from which a checkpoint is written …
  double activations = 0;  ///< … and those of `rows` packed rows.
  double loss = 0;         ///< … of a device's vocabulary loss over them.
  double products = 0;     ///< On a device, in both: what its library works in.
  std::int64_t rows = 0;   ///< The largest micro-batch.
  ProbeMemory probe;       ///< Decoding in the middle of training.
  double copies = 0;       ///< Offloaded training on a device: its copies of weights and gradients.
  std::int64_t micro_batches = 0;  ///< In a step, on the rank that has most.
  StepPayload payload;             ///< Of one rank in a step.

  /// On the host; on the device too when that is the host.
  [[nodiscard]] double generation() const;
  [[nodiscard]] double training() const;
  /// On the device; 0 when that is the host.
  [[nodiscard]] double generation_on_device() const;
  [[nodiscard]] double training_on_device() const;
};

/// Of a step's micro-batches, on the rank that has most.
struct StepRows {
  std::int64_t packed = 0;  ///< Of the largest one.
  std::int64_t taught = 0;  ///< Rows of the loss that it has besides: a frozen teacher's.
  std::int64_t micro_batches = 1;
};
/// What training takes, of any command: without what else a job does. `table` is cut for the ranks.
[[nodiscard]] MemoryPlan plan_training(const TransformerConfig& model, const ParameterTable& table,
                                       const TrainConfig& train, const Sharding& sharding,
                                       Device device, const StepRows& rows);

/// How generation of round `round` (1-based) stores the matrices, where the source holds bfloat16
/// matrices or not: "auto" finds float32 in what a round has trained.
[[nodiscard]] DType decoding_type(const JobConfig& config, std::size_t round,
                                  bool source_is_bfloat16);

/// The prompts that a plan is made for.
struct PlannedPrompts {
  std::optional<std::int64_t> count;       ///< Empty: so many that every place of a batch is taken.
  std::int64_t longest = 0;                ///< Tokens.
  std::vector<std::int64_t> lengths = {};  ///< Of all, tokens; empty: each as the longest.
  std::int64_t longest_problem = 0;        ///< Of those that training is checked on, tokens.
};

/// Answers are taken at their full length. `source_is_bfloat16`: hf_matrices_are_bfloat16().
[[nodiscard]] MemoryPlan plan_memory(const JobConfig& config, const TransformerConfig& model,
                                     int ranks, Device device, const PlannedPrompts& prompts,
                                     bool source_is_bfloat16);

/// Which of a job's phases a process will run: `generate` alone needs no memory for training.
struct PlannedPhases {
  bool generation = true;
  bool training = true;
};

/// Throws EnvironmentError, with both figures and what to lower, when `ranks_here` ranks of the
/// plan need more than `available` bytes in one of `phases`.
void expect_fits(const MemoryPlan& plan, const JobConfig& config, const PlannedPhases& phases,
                 int ranks_here, std::uint64_t available);

/// The same for `ranks_here` ranks that share a device with `available` bytes: a model is on one
/// device as a whole while it decodes, and at stages below 3 while it trains. A rank with a device
/// of its own makes do with a smaller cache (InferenceTransformer::Options::cache_pages).
void expect_fits_device(const MemoryPlan& plan, const JobConfig& config,
                        const PlannedPhases& phases, int ranks_here, std::uint64_t available);

/// Ranks, this one among them, that share its host's memory and its device's.
struct SharingRanks {
  int host = 1;
  int device = 1;
};
/// Collective.
[[nodiscard]] SharingRanks sharing_ranks(const Communicator& comm, Device device);

/// Both with what is available here to the ranks that share it; nothing where the kernel does not
/// tell.
void expect_fits_here(const MemoryPlan& plan, const JobConfig& config, const PlannedPhases& phases,
                      SharingRanks sharing);

/// Collective. expect_fits_here() of the job's plan on every host. Prompts count with their
/// true lengths once they are imported, before that not at all. Throws EnvironmentError on every
/// rank, DataError for a bad model directory.
void expect_memory(const JobConfig& config, const PlannedPhases& phases, Device device,
                   const Communicator& comm);

/// What of a rank's plan lies on its device, by label, bytes; their sums are
/// generation_on_device() and training_on_device().
struct DeviceRows {
  using Row = std::pair<std::string, double>;
  std::vector<Row> generation;
  std::vector<Row> training;
};
[[nodiscard]] DeviceRows rows_on_device(const MemoryPlan& plan);

/// Memory and disk per rank, steps, prompts generated against consumed, an estimate of the time at
/// `speed`: plain text. Reads config.json of the model, the headers of its weight files where they
/// exist, and the run's prompt store where it does; nothing else is touched. Throws DataError for a
/// bad model directory.
[[nodiscard]] std::string describe_plan(const JobConfig& config, int ranks, Device device,
                                        const MachineSpeed& speed);

/// The same for ranks with one `device` each, which need not be here: its memory against what lies
/// there, and times from its data sheet. The text says that it is a calculation.
[[nodiscard]] std::string describe_device_plan(const JobConfig& config, int ranks,
                                               const KnownDevice& device);

}  // namespace jforge
