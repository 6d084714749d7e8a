#pragma once

/// Between the optimizer and its checkpoints.

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/checkpoint_writer.h"
#include "model/transformer/parameter_table.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/tensor/buffer.h"
#include "workers/train/sharded_adamw.h"

namespace jforge {

/// Collective. Starts saving weights and moments (CheckpointWriter::save); fills
/// state.optimizer_updates.
void save_training(CheckpointWriter& writer, CheckpointState state, const ParameterTable& table,
                   const ShardedAdamW& optimizer);

/// Collective. Loads weights, moments and update count of `checkpoint`, whatever world size wrote
/// it. Each rank reads its own shard; the weights are gathered. A rank that cannot read is
/// everybody's DataError, naming it; the weights are then what they were, the moments may not be.
/// `account` is charged with one shard vector meanwhile.
void resume_training(const Communicator& comm, const Checkpoint& checkpoint,
                     const ParameterTable& table, ShardedAdamW& optimizer, MemoryAccount& account);

}  // namespace jforge
