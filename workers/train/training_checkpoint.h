#pragma once

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/checkpoint_writer.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/sharded_adamw.h"

namespace jforge {

/// Collective. Starts saving weights and moments; sets state.optimizer_updates.
void save_training(CheckpointWriter& writer, CheckpointState state, const ParameterTable& table,
                   const ShardedAdamW& optimizer);

/// Collective. Loads weights, moments and update count, written at any world size; each rank reads
/// its own shard. Throws DataError on all ranks, naming one that cannot read; weights are unchanged
/// then, moments may not be. Charges `account` with one shard vector.
void resume_training(const Communicator& comm, const Checkpoint& checkpoint,
                     const ParameterTable& table, ShardedAdamW& optimizer, MemoryAccount& account);

}  // namespace jforge
