#pragma once

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

/// Bytes of one rank, maximum over the rounds. Packed weights, cache, activations and `state`
/// (unless train.optimizer_offload) are on the compute device, the rest on the host. Kernel
/// overhead (a few % on a device) and MPI's buffers are not counted.
struct MemoryPlan {
  Device device = Device::cpu;
  double weights = 0;      ///< Shard of the float32 weights; in training part of `state`.
  double gathered = 0;     ///< Generation: float32 weights of a group, while they are packed.
  double decoding = 0;     ///< Generation: packed matrices and work space.
  double cache = 0;        ///< Generation: KV cache (generate.batch_prompts, cache_mb).
  double least_cache = 0;  ///< KV cache of one sequence, enough for a device.
  Sharding sharding;
  double frozen = 0;               ///< Training: the model beside an adapter.
  TrainingMemory state;            ///< Training: weights, gradients, optimizer, buffers.
  double snapshot = 0;             ///< Training: copy from which a checkpoint is written.
  double activations = 0;          ///< Training: for `rows` packed rows.
  double loss = 0;                 ///< Training on a device: vocabulary loss over them.
  double products = 0;             ///< Both, on a device: work space of its library.
  std::int64_t rows = 0;           ///< Rows of the largest micro-batch.
  ProbeMemory probe;               ///< Decoding during training.
  double copies = 0;               ///< Offloaded training: a device's weights and gradients.
  std::int64_t micro_batches = 0;  ///< In a step, on the rank that has most.
  StepPayload payload;             ///< One rank's in a step.

  /// Bytes on the host, which may be the device.
  [[nodiscard]] double generation() const;
  [[nodiscard]] double training() const;
  /// Bytes on the device; 0 if that is the host.
  [[nodiscard]] double generation_on_device() const;
  [[nodiscard]] double training_on_device() const;
};

/// A step's micro-batches on the rank that has most.
struct StepRows {
  std::int64_t packed = 0;  ///< Rows of the largest one.
  std::int64_t taught = 0;  ///< Its additional loss rows, of a frozen teacher.
  std::int64_t micro_batches = 1;
};
/// Returns the memory of training alone. `table`: of what is trained, divided among the ranks of
/// each copy.
[[nodiscard]] MemoryPlan plan_training(const TransformerConfig& model, const ParameterTable& table,
                                       const TrainConfig& train, const Sharding& sharding,
                                       Device device, const StepRows& rows, int copies);

struct PlannedPrompts {
  std::optional<std::int64_t> count;       ///< Empty: enough to fill every batch.
  std::int64_t longest = 0;                ///< Tokens.
  std::vector<std::int64_t> lengths = {};  ///< Each prompt's tokens; empty: all the longest.
  std::int64_t longest_problem = 0;        ///< Tokens; of problems that training decodes.
};

/// Assumes full-length answers. `source_is_bfloat16`: hf_matrices_are_bfloat16().
[[nodiscard]] MemoryPlan plan_memory(const JobConfig& config, const TransformerConfig& model,
                                     int ranks, Device device, const PlannedPrompts& prompts,
                                     bool source_is_bfloat16);

/// The phases that a process will run: `generate` alone needs no memory for training.
struct PlannedPhases {
  bool generation = true;
  bool training = true;
};

/// Throws EnvironmentError, with what to lower, if `ranks_here` ranks need more than `available`
/// bytes in one of `phases`.
void expect_fits(const MemoryPlan& plan, const JobConfig& config, const PlannedPhases& phases,
                 int ranks_here, std::uint64_t available);

/// The same for `ranks_here` ranks on one device, which holds the whole model in decoding and,
/// below ZeRO stage 3, in training. A rank with its own device needs only `least_cache`.
void expect_fits_device(const MemoryPlan& plan, const JobConfig& config,
                        const PlannedPhases& phases, int ranks_here, std::uint64_t available);

/// Ranks, with this one, that share its host's and its device's memory.
struct SharingRanks {
  int host = 1;
  int device = 1;
};
/// Collective.
[[nodiscard]] SharingRanks sharing_ranks(const Communicator& comm, Device device);

/// Calls both with the available memory, unless it is unknown.
void expect_fits_here(const MemoryPlan& plan, const JobConfig& config, const PlannedPhases& phases,
                      SharingRanks sharing);

/// Collective. Calls expect_fits_here() on every host; prompts count after the import. Throws
/// EnvironmentError on every rank, DataError for a bad model directory.
void expect_memory(const JobConfig& config, const PlannedPhases& phases, Device device,
                   const Communicator& comm);

/// Bytes on the device by label; the sums are generation_on_device() and training_on_device().
struct DeviceRows {
  using Row = std::pair<std::string, double>;
  std::vector<Row> generation;
  std::vector<Row> training;
};
[[nodiscard]] DeviceRows rows_on_device(const MemoryPlan& plan);

struct PlannedRanks {
  int all = 1;
  int of_node = 1;  ///< Sharing a host's memory.
};
/// Returns memory, disk, steps, prompts and estimated time as plain text. Reads only config.json,
/// weight files' headers and the prompt store. Throws DataError for a bad model directory.
/// `sheet`: the planned device, or null for this machine.
[[nodiscard]] std::string describe_plan(const JobConfig& config, PlannedRanks ranks, Device device,
                                        const MachineSpeed& speed,
                                        const KnownDevice* sheet = nullptr);

/// The same by the data sheet of a `device` per rank, which need not be here; the text says so.
[[nodiscard]] std::string describe_device_plan(const JobConfig& config, int ranks,
                                               const KnownDevice& device);

}  // namespace jforge
